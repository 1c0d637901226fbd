// Trains a population for one epoch: one thread block per model, with no exchange with the host in between.
//
//     for each step:
//         for each round of two samples, or of one (SAMPLES_AT_ONCE), with four warps each:
//             forward through all blocks ─ classifier ─ back, the last block first         (forward.cuh, backward.cuh)
//             after the backward pass of each block, or of each of its parts (TAKE_TURNS):
//                 all eight warps add the samples to their weight gradients                            (gradients.cuh)
//         every warp updates the weights whose gradients it holds                                         (update.cuh)
//
// Device memory is read for the tokens, and read and written for the optimizer's numbers once per step. Activations and
// gradients never leave the chip if shared memory and registers have room for them (KEEP_ALL, not GRADIENTS_WAIT), and
// weights stay there for a whole step (ALL_WEIGHTS). Nothing depends on other thread blocks, so a run's bytes do not
// depend on its population.
#include "gradients.cuh"
#include "inputs.cuh"

constexpr int TRAIN_THREADS = WARPS * WARP;
constexpr long long PARKED_WORDS = Parking::WORDS + Gradients::WORDS;  // of device memory, of each model

// Where the tokens of a group's samples come in.
struct InputBuffers {
    static constexpr int COUNT = IMAGES ? 2 : 1;  // patches are needed to the end of a sample, word vectors are not
    static constexpr u32 BYTES = COUNT * TokenRows<FEATURES>::BYTES;
    u32 start;
    DEVICE TokenRows<FEATURES> operator[](int buffer) const { return {start + buffer * TokenRows<FEATURES>::BYTES, 0}; }
};

// Shared memory:  weights │ classifier's rows of 16 samples │ sums │ tokens │ sample of group 0 │ sample of group 1
struct TrainMemory {
    static constexpr u32 RECENT_SAMPLES = Weights::BYTES;
    static constexpr u32 SUMS = RECENT_SAMPLES + RecentSamples::BYTES;
    static constexpr u32 INPUTS = SUMS + GROUPS * TokenSums::BYTES;
    static constexpr u32 LINE = larger(128u, PITCH<HIDDEN>);
    static constexpr u32 SAMPLES = (INPUTS + GROUPS * InputBuffers::BYTES + LINE - 1) / LINE * LINE;
    static constexpr u32 BYTES = SAMPLES + GROUPS * Sample::BYTES;
    u32 start;

    DEVICE Weights weights() const { return {start}; }
    DEVICE RecentSamples recent() const { return {start + RECENT_SAMPLES}; }
    DEVICE TokenSums sums(int group) const { return {start + SUMS + group * TokenSums::BYTES}; }
    DEVICE TokenRows<FEATURES> input(int group, int buffer) const {
        return {start + INPUTS + (group * InputBuffers::COUNT + buffer) * TokenRows<FEATURES>::BYTES, 0};
    }
    DEVICE InputBuffers inputs(int group) const { return {input(group, 0).base}; }
    DEVICE Sample sample(int group) const { return {start + SAMPLES + group * Sample::BYTES}; }
};
static_assert(TrainMemory::BYTES <= SHARED_BYTES, "a block has no more shared memory");

// What a launch passes, field by field as TrainArguments of arguments.py has it.
struct TrainArguments {
    const u16* tokens;            // [steps, batch, TOKENS, FEATURES] halves
    const u32* facts;             // [steps, batch] Facts
    const float* positions;       // [TOKENS, DIM]
    const float* corrections;     // [steps, 2] Adam's c₁ and √c₂
    const float* rules;           // [models, RULE_NUMBERS]
    const float* epsilons;        // [models] of LayerNorm, with dropout's factor in it
    const u32* thresholds;        // [models] of dropout
    const u32* seeds;             // [models]
    const u8* alive;              // [models]
    float* weights;               // [models, PARAMETERS]
    float* first_moments;         // [models, PARAMETERS]
    float* second_moments;        // [models, PARAMETERS]
    double* losses;               // [models] mean over the epoch's samples
    int steps;
    int batch;
    int first_step;
    u32* parked;                  // [models, PARKED_WORDS]

    DEVICE const u16* sample(int index) const { return tokens + (long long)index * TOKENS * FEATURES; }
};

// What a launch must provide: threads per block, bytes of shared memory, bytes of arguments, and a model's parked words.
extern "C" __global__ void train_epoch_needs(int* needs) {
    needs[0] = TRAIN_THREADS;
    needs[1] = TrainMemory::BYTES;
    needs[2] = sizeof(TrainArguments);
    needs[3] = PARKED_WORDS;
}

extern "C" __global__ void __launch_bounds__(TRAIN_THREADS, 1) train_epoch(const TrainArguments arguments) {
    const int model = model_index();
    if (!arguments.alive[model]) return;
    const Thread me;
    const TrainMemory memory = {shared_start()};
    const Weights weights = memory.weights();
    const RecentSamples recent = memory.recent();
    const TokenSums sums = memory.sums(me.group);
    const InputBuffers inputs = memory.inputs(me.group);
    const bool works = GROUPS * GROUP_WARPS == WARPS || me.group < GROUPS;  // on a sample
    Sample sample = memory.sample(me.group);
    sample.parking = {arguments.parked + model * PARKED_WORDS};
    const long long first_weight = (long long)model * PARAMETERS;

    Optimizer rule(arguments.rules + model * RULE_NUMBERS);
    rule.weights = arguments.weights + first_weight;
    rule.first = arguments.first_moments + first_weight;
    rule.second = arguments.second_moments + first_weight;
    rule.gradient_scale = 1.0f / (LOSS_SCALE * arguments.batch);
    Dropout dropout;
    dropout.seed = arguments.seeds[model];
    dropout.threshold = arguments.thresholds[model];
    dropout.epsilon = arguments.epsilons[model];

    const Worker all_threads = {thread_index(), TRAIN_THREADS};
    int there = NO_BLOCK;  // the block whose weights are in shared memory, where blocks take turns
    load_weights(rule.weights, weights, all_threads);
    for (u32 i = thread_index(); i < GROUPS * InputBuffers::BYTES / FLOAT; i += TRAIN_THREADS) {
        store_word(memory.inputs(0).start + i * FLOAT, 0);
    }
    block_barrier();

    double losses[2 / GROUPS] = {};  // of even and odd samples apart, in every variant
    int buffer = 0;
    const int rounds = arguments.batch / GROUPS, total = arguments.steps * arguments.batch;
    // one round ahead, so that no warp waits for device memory
    if (works) start_tokens(me, arguments.sample(me.group), inputs[buffer]);
    u32 next_facts0 = arguments.facts[0], next_facts1 = arguments.facts[GROUPS - 1];
    Gradients gradients(arguments.parked + model * PARKED_WORDS + Parking::WORDS);
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        gradients.reset();
        dropout.step = arguments.first_step + step;
        #pragma unroll 1
        for (int round = 0; round < rounds; round++) {
            const Thread me;  // read again: else the addresses that follow from it are kept and crowd out the gradients
            const int next = (step * rounds + round + 1) * GROUPS;
            const Facts pair0(next_facts0), pair1(next_facts1), mine(me.group ? next_facts1 : next_facts0);
            const PerGroup<int> lengths = {pair0.length, pair1.length};
            const TokenRows<FEATURES> input = inputs[buffer];
            dropout.start_sample(me, mine.place);

            Rows<DIM> x;
            if (works) {
                copies_done();
                warp_barrier();
                embed(me, x, weights, input, arguments.positions);
                warp_barrier();  // all lanes have read what the next copy may overwrite
            }
            buffer = InputBuffers::COUNT - 1 - buffer;
            if (next < total) {
                if (works) start_tokens(me, arguments.sample(next + me.group), inputs[buffer]);
                next_facts0 = arguments.facts[next];
                next_facts1 = arguments.facts[next + GROUPS - 1];
            }
            const u32 kept_first = works ? drop(me, x, dropout, 0) : 0;

            BlockMemory block_memory = {}, earlier;
            #pragma unroll 1
            for (int from = 0; from < BLOCKS; from += Weights::RESIDENT) {
                bring_block(rule.weights, weights, all_threads, from, there);
                if (works) with_tokens(me, mine.length, [&](const auto& tokens) {
                    #pragma unroll 1
                    for (int block = from; block < from + Weights::RESIDENT; block++) {
                        if (!GRADIENTS_WAIT) earlier = block_memory;
                        const BlockPlaces places = sample.places(block);
                        forward_block<true>(me, tokens, x, block, weights.block(block), places, dropout, block_memory);
                        if (GRADIENTS_WAIT && is_earlier(block)) put_memory(sample.parking, block, block_memory);
                    }
                    if (from + Weights::RESIDENT < BLOCKS) return;
                    PerRow<float> r;
                    PackedRows<DIM> normalized;
                    if (tokens.busy) {
                        normalize(x, r, dropout.epsilon, tokens.real);
                        pack_rows(normalized, x);
                        share_sums(me, x, sums);
                    }
                    group_barrier(me.group);
                    if (tokens.busy) {
                        const int row = (round * GROUPS + me.group) % RECENT;
                        const float loss = classify_and_return(me, tokens, weights, sums, recent, row, mine.label, x);
                        losses[GROUPS == 1 && round % 2] += loss;
                        normalize_backward(x, normalized, r);
                    }
                });
            }

            #pragma unroll 1
            for (int block = BLOCKS - 1; block >= 0; block--) {
                bring_block(rule.weights, weights, all_threads, block, there);
                if (GRADIENTS_WAIT && is_earlier(block) && works) get_memory(sample.parking, block, block_memory);
                if constexpr (TAKE_TURNS) {
                    if (works) with_tokens(me, mine.length, [&](const auto& tokens) {
                        backward_block<MLP>(me, tokens, block, weights.block(block), sample, block_memory, x);
                    });
                    block_barrier();
                    gradients.add_samples<MLP>(me, memory, block, round, lengths, 1 - buffer);
                    block_barrier();
                }
                constexpr Part rest = TAKE_TURNS ? ATTENTION : WHOLE;
                if (works) with_tokens(me, mine.length, [&](const auto& tokens) {
                    backward_block<rest>(me, tokens, block, weights.block(block), sample, block_memory, x);
                });
                if (!GRADIENTS_WAIT) block_memory = earlier;
                if (IMAGES && block == 0 && works) {
                    PackedRows<DIM> rows;
                    drop_backward(x, kept_first);
                    pack_rows(rows, x);
                    store_rows(me, sample.d_embedded(), rows);
                }
                block_barrier();
                gradients.add_samples<rest>(me, memory, block, round, lengths, 1 - buffer);
                if (block == 0 && round % (RECENT / GROUPS) == RECENT / GROUPS - 1) {
                    gradients.add_classifier(me, recent, round < RECENT / GROUPS);
                }
                block_barrier();
            }
        }
        const Thread me;
        gradients.apply(me, rule.at_step(arguments.corrections + 2 * step), weights);
        there = NO_BLOCK;
        block_barrier();
    }
    // each group's first lane has the sums over its samples
    if (works && me.tile == 0 && me.lane == 0) {
        for (int i = 0; i < 2 / GROUPS; i++) store_double(sums.start + i * DOUBLE, losses[i]);
    }
    block_barrier();
    if (thread_index() == 0) {
        double sum = 0.0;
        for (int i = 0; i < 2; i++) sum += load_double(memory.sums(i % GROUPS).start + i / GROUPS * DOUBLE);
        arguments.losses[model] = sum / ((double)arguments.steps * arguments.batch);
    }
}
