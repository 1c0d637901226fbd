// Trains a population for one epoch: one thread block per model, with no exchange with the host in between.
//
//     for each step:
//         for each round of a few samples, one per group of warps:
//             forward through all blocks ─ classifier                                       (forward.cuh, classifier.cuh)
//             back through each block, the MLP and then attention                                         (backward.cuh)
//             after each block, or each half if there is little room: all warps add the samples to their gradients
//                                                                                                       (gradients.cuh)
//         every warp updates the weights whose gradients it holds                                          (update.cuh)
//
// Device memory is read for the tokens, and read and written for the optimizer's numbers once per step; activations and
// gradients never leave the chip, except, if there is little room, what blocks before the last need again. Nothing depends on other blocks of threads, so a
// run's bytes do not depend on its population.
#include "gradients.cuh"
#include "inputs.cuh"

constexpr int TRAIN_THREADS = WARPS * WARP;
constexpr bool ALL_HAVE_SAMPLES = GROUPS * GROUP_WARPS == WARPS;

// Shared memory:  weights │ classifier's rows of 16 samples and gradients │ sums of each group │ facts, losses │ samples
struct TrainMemory {
    static constexpr u32 RECENT_SAMPLES = Weights::BYTES;
    static constexpr u32 CLASSIFIER = RECENT_SAMPLES + RecentSamples::BYTES;
    static constexpr u32 SUMS = CLASSIFIER + ClassifierGradients::BYTES;
    static constexpr u32 FACTS = SUMS + GROUPS * TokenSums::BYTES;
    static constexpr u32 FACTS_BYTES = 32;  // a word of facts, and the sum of losses
    static constexpr u32 SAMPLES = (FACTS + GROUPS * FACTS_BYTES + 127) / 128 * 128;
    static constexpr u32 BYTES = SAMPLES + GROUPS * Sample::BYTES;
    u32 start;

    DEVICE Weights weights() const { return {start}; }
    DEVICE RecentSamples recent() const { return {start + RECENT_SAMPLES}; }
    DEVICE ClassifierGradients classifier() const { return {start + CLASSIFIER}; }
    DEVICE TokenSums sums(int group) const { return {start + SUMS + group * TokenSums::BYTES}; }
    DEVICE u32 facts(int group) const { return start + FACTS + group * FACTS_BYTES; }
    DEVICE u32 loss(int group) const { return facts(group) + 16; }
    DEVICE Sample sample(int group) const { return {start + SAMPLES + group * Sample::BYTES}; }
};
static_assert(TrainMemory::BYTES <= SHARED_BYTES, "more shared memory than this GPU has");
static_assert(!ROOMY || BLOCKS <= 2, "numbers of two blocks are kept in registers");

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
    u32* parked;                  // [models, Parking::WORDS] what blocks before the last need again
    double* losses;               // [models] mean over the epoch's samples
    int steps;
    int batch;
    int first_step;

    DEVICE const u16* sample(int index) const { return tokens + (long long)index * TOKENS * FEATURES; }

    // A model's rule at a step of the epoch: read when it is needed, once in a step.
    DEVICE Optimizer optimizer(int model, int step) const {
        const long long first_weight = (long long)model * PARAMETERS;
        Optimizer rule(rules + model * RULE_NUMBERS, corrections + 2 * step);
        rule.weights = weights + first_weight;
        rule.first = first_moments + first_weight;
        rule.second = second_moments + first_weight;
        rule.gradient_scale = 1.0f / (LOSS_SCALE * batch);
        return rule;
    }
};

// What a launch must provide: threads per block, bytes of shared memory, bytes of arguments, words to park per model.
extern "C" __global__ void train_epoch_needs(int* needs) {
    needs[0] = TRAIN_THREADS;
    needs[1] = TrainMemory::BYTES;
    needs[2] = sizeof(TrainArguments);
    needs[3] = Parking::WORDS;
}

// Calls `code` with a block's number as a constant, since registers have no index.
template <int NUMBER> struct Constant {
    static constexpr int VALUE = NUMBER;
};
template <int FIRST = 0, class Code> DEVICE void with_block(int block, Code code) {
    if constexpr (FIRST == LAST_BLOCK) {
        code(Constant<FIRST>());
    } else {
        if (block == FIRST) code(Constant<FIRST>());
        else with_block<FIRST + 1>(block, code);
    }
}

// Calls `code` with the tokens and the rows of each group's sample.
template <class Code> DEVICE void each_sample(const Thread& me, const TrainMemory& memory, Code code) {
    if constexpr (FULL_LENGTH) {
        const Tokens<SAMPLE_TILES, WARP_TILES> tokens(me, TOKENS);
        #pragma unroll
        for (int group = 0; group < GROUPS; group++) code(tokens, memory.sample(group));
    } else {
        #pragma unroll 1
        for (int group = 0; group < GROUPS; group++) {
            const int length = Facts(load_word(memory.facts(group))).length;
            with_tokens(me, length, [&](const auto& tokens) { code(tokens, memory.sample(group)); });
        }
    }
}

extern "C" __global__ void __launch_bounds__(TRAIN_THREADS, 1) train_epoch(
    const __grid_constant__ TrainArguments arguments
) {
    const int model = model_index();
    if (!arguments.alive[model]) return;
    const TrainMemory memory = {shared_start()};
    const Weights weights = memory.weights();
    const RecentSamples recent = memory.recent();
    Dropout dropout;
    dropout.seed = arguments.seeds[model];
    dropout.threshold = arguments.thresholds[model];
    dropout.epsilon = arguments.epsilons[model];
    load_weights(arguments.weights + (long long)model * PARAMETERS, weights, {thread_index(), TRAIN_THREADS});

    const int rounds = arguments.batch / GROUPS, total = arguments.steps * arguments.batch;
    {
        const Thread me;
        if (ALL_HAVE_SAMPLES || me.group < GROUPS) {
            start_tokens(me, arguments.sample(me.group), memory.sample(me.group).next_tokens());
            if (me.member == 0 && me.lane == 0) store_double(memory.loss(me.group), 0.0);
        }
        copies_done();
        memory.classifier().reset(me);
    }
    block_barrier();
    Gradients gradients;
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        gradients.reset();
        dropout.step = arguments.first_step + step;
        #pragma unroll 1
        for (int round = 0; round < rounds; round++) {
            const Thread me;  // read again: else the addresses that follow from it are kept and crowd out the gradients
            const bool works = ALL_HAVE_SAMPLES || me.group < GROUPS;
            const int index = (step * rounds + round) * GROUPS + me.group;
            const u32 fact_word = works ? arguments.facts[index] : 0;
            const Facts facts(fact_word);
            PerTile<Rows<DIM>> x;
            PerTile<u32> dropped_first;
            BlockMemory block_memory = {}, earlier;
            #pragma unroll
            for (int i = 0; i < WARP_TILES; i++) dropped_first[i] = 0;

            if (works) {
                const Sample sample = memory.sample(me.group);
                const TokenSums sums = memory.sums(me.group);
                if (me.member == 0 && me.lane == 0) store_word(memory.facts(me.group), fact_word);
                dropout.start_sample(me, facts.place);
                embed(me, x, weights, sample.next_tokens(), arguments.positions);
                drop<WARP_TILES>(me, x, dropout, 0, dropped_first, 0);
                with_tokens(me, facts.length, [&](const auto& tokens) {
                    constexpr int MINE = Count<decltype(tokens)>::MINE;
                    #pragma unroll 1
                    for (int block = 0; block < BLOCKS; block++) {
                        const Parking parking(me, arguments.parked, model);
                        earlier = block_memory;
                        forward_block<true>(
                            me, tokens, x, block, weights.block(block), memory.sample(me.group).places(block), parking,
                            dropout, block_memory
                        );
                    }
                    PerTile<PerRow<float>> r;
                    PerTile<PackedRows<DIM>> normalized;
                    if (tokens.busy) {
                        normalize<MINE>(x, r, dropout.epsilon, tokens.real);
                        pack_all<MINE>(normalized, x);
                        share_sums<MINE>(me, x, sums);
                    }
                    group_barrier(me.group);
                    if (tokens.busy) {
                        const int row = (round * GROUPS + me.group) % RECENT;
                        const float loss = classify_and_return(me, tokens, weights, sums, recent, row, facts.label, x);
                        if (me.member == 0 && me.lane == 0) {
                            store_double(memory.loss(me.group), load_double(memory.loss(me.group)) + loss);
                        }
                        normalize_backward<MINE>(x, normalized, r);
                    }
                });
            }

            #pragma unroll 1
            for (int block = LAST_BLOCK; block >= 0; block--) {
                const Sample sample = memory.sample(me.group);
                const BlockWeights block_weights = weights.block(block);
                const auto each = [&](auto code) { each_sample(me, memory, code); };
                if (works) {
                    with_tokens(me, facts.length, [&](const auto& tokens) {
                        constexpr int MINE = Count<decltype(tokens)>::MINE;
                        const Parking parking(me, arguments.parked, model);
                        if (tokens.busy) backward_mlp<MINE>(me, block, block_weights, sample, parking, block_memory, x);
                    });
                }
                if (!ROOMY) {
                    block_barrier();
                    with_block(block, [&](auto number) {
                        gradients.add_block<decltype(number)::VALUE, Gradients::MLP>(me, each);
                    });
                }
                if (works) {
                    with_tokens(me, facts.length, [&](const auto& tokens) {
                        constexpr int MINE = Count<decltype(tokens)>::MINE;
                        const Parking parking(me, arguments.parked, model);
                        PerTile<PackedRows<DIM>> query, da, d_joined;
                        PerTile<PerRow<float>> delta[HEADS];
                        if (tokens.busy) {
                            prepare_attention<MINE>(
                                me, block, block_weights, sample, parking, x, query, da, d_joined, delta
                            );
                        }
                        if (!ROOMY) block_barrier();  // all have added the MLP's share
                        if (block == 0) {
                            const int index = (step * rounds + round) * GROUPS + me.group, next = index + GROUPS;
                            if (IMAGES) start_tokens(me, arguments.sample(index), sample.same_tokens());
                            if (next < total) start_tokens(me, arguments.sample(next), sample.next_tokens());
                        }
                        if (tokens.busy) {
                            store_rows<MINE>(me, sample.da(), da);
                            store_rows<MINE>(me, sample.d_joined(), d_joined);
                        }
                        backward_attention(
                            me, tokens, block, block_weights, sample, block_memory, query, d_joined, delta, x
                        );
                    });
                } else if (!ROOMY) {
                    block_barrier();
                }
                if (ROOMY) block_memory = earlier;
                if (block == 0) {
                    if (IMAGES && works) {
                        PerTile<PackedRows<DIM>> rows;
                        drop_backward<WARP_TILES>(x, dropped_first, 0);
                        pack_all<WARP_TILES>(rows, x);
                        store_rows<WARP_TILES>(me, sample.d_joined(), rows);
                    }
                    copies_done();
                }
                block_barrier();
                with_block(block, [&](auto number) {
                    constexpr int BLOCK = decltype(number)::VALUE;
                    constexpr int BOTH = Gradients::MLP | Gradients::ATTENTION;
                    gradients.add_block<BLOCK, ROOMY ? BOTH : Gradients::ATTENTION>(me, each);
                    if (IMAGES && BLOCK == 0) gradients.add_embedding(me, each);
                });
                if (block == 0 && round % (RECENT / GROUPS) == RECENT / GROUPS - 1) {
                    memory.classifier().add(me, recent);
                }
                block_barrier();
            }
        }
        const Thread me;
        gradients.apply(me, arguments.optimizer(model, step), weights, memory.classifier());
        block_barrier();
    }
    if (thread_index() == 0) {
        double sum = 0.0;
        for (int group = 0; group < GROUPS; group++) sum += load_double(memory.loss(group));
        arguments.losses[model] = sum / ((double)arguments.steps * arguments.batch);
    }
}
