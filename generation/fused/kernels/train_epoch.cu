// Trains a population for one epoch: one thread block per model, and the host hears nothing in between.
//
//     for each step:
//         for each round of two samples, one per group of four warps:
//             forward through both blocks ─ classifier ─ back through block 1 and block 0   (forward.cuh, backward.cuh)
//             after each block's way back: all eight warps add both samples to their weight gradients   (gradients.cuh)
//         every warp updates the weights whose gradients it holds                                        (update.cuh)
//
// Shared memory:  weights (halves) │ classifier's rows of 16 samples │ sums │ tokens │ sample of group 0 │ of group 1
// Device memory sees the tokens come in and the optimizer's numbers pass once per step; activations and gradients never
// leave the chip. Nothing depends on other blocks, so a run's bytes do not depend on its population.
#include "gradients.cuh"
#include "inputs.cuh"

constexpr int INPUT_BUFFERS = IMAGES ? 2 : 1;  // patches are needed to the end of a sample, word vectors are not
constexpr u32 RECENT_ROWS = (WEIGHTS_END + 127) / 128 * 128;
constexpr u32 SHARES = RECENT_ROWS + RECENT_END;
constexpr u32 INPUTS = SHARES + GROUPS * SHARES_BYTES;
constexpr u32 SAMPLES = (INPUTS + GROUPS * INPUT_BUFFERS * INPUT_BYTES + 127) / 128 * 128;
constexpr u32 TRAIN_SHARED_BYTES = SAMPLES + GROUPS * SAMPLE_END;
static_assert(TRAIN_SHARED_BYTES <= 227 * 1024, "a block of sm_90 has no more shared memory");

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
};

// What a launch must provide: threads per block, bytes of shared memory, and bytes of arguments.
extern "C" __global__ void train_epoch_needs(int* needs) {
    needs[0] = WARPS * WARP;
    needs[1] = TRAIN_SHARED_BYTES;
    needs[2] = sizeof(TrainArguments);
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP, 1) train_epoch(
    const TrainArguments arguments
) {
    const int model = model_index();
    if (!arguments.alive[model]) return;
    const Thread me;
    const u32 start = shared_start();
    const u32 recent = start + RECENT_ROWS, shares = start + SHARES + me.group * SHARES_BYTES;
    const u32 input_start = start + INPUTS + me.group * INPUT_BUFFERS * INPUT_BYTES;
    const u32 sample = start + SAMPLES + me.group * SAMPLE_END;
    const long long own = (long long)model * PARAMETERS;

    Optimizer rule(arguments.rules + model * RULE_NUMBERS);
    rule.weights = arguments.weights + own, rule.first = arguments.first_moments + own,
    rule.second = arguments.second_moments + own;
    rule.gradient_scale = 1.0f / (LOSS_SCALE * arguments.batch);
    Dropout dropout;
    dropout.seed = arguments.seeds[model], dropout.threshold = arguments.thresholds[model];
    const float epsilon = arguments.epsilons[model];

    load_weights(rule.weights, start, thread_index(), WARPS * WARP);
    for (u32 i = thread_index(); i < GROUPS * INPUT_BUFFERS * INPUT_BYTES / FLOAT; i += WARPS * WARP)
        store_word(start + INPUTS + i * FLOAT, 0);
    block_barrier();

    double loss = 0.0;
    int buffer = 0;
    const int rounds = arguments.batch / GROUPS, total = arguments.steps * arguments.batch;
    // one round ahead, so that no warp waits for device memory
    start_tokens(me, arguments.tokens + (long long)me.group * TOKENS * FEATURES, input_start);
    u32 coming0 = arguments.facts[0], coming1 = arguments.facts[1];
    Gradients gradients;
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        gradients.reset();
        dropout.step = arguments.first_step + step;
        #pragma unroll 1
        for (int round = 0; round < rounds; round++) {
            const Thread me;  // anew: addresses that follow from it would else be kept, and crowd out the gradients
            const int next = (step * rounds + round + 1) * GROUPS;
            const Facts pair0(coming0), pair1(coming1), mine(me.group ? coming1 : coming0);
            const u32 input = input_start + buffer * INPUT_BYTES;
            dropout.start_sample(me, mine.place);

            float x[4][4];
            copies_done();
            warp_barrier();
            embed(me, x, start, input, arguments.positions);
            warp_barrier();  // all lanes have read what the next copy may overwrite
            buffer = INPUT_BUFFERS - 1 - buffer;
            if (next < total) {
                start_tokens(
                    me, arguments.tokens + (long long)(next + me.group) * TOKENS * FEATURES,
                    input_start + buffer * INPUT_BYTES
                );
                coming0 = arguments.facts[next], coming1 = arguments.facts[next + 1];
            }
            const u32 kept_first = drop(me, x, dropout, 0);

            BlockMemory memory = {}, earlier;
            with_tokens(me, mine.length, [&](const auto& tokens) {
                #pragma unroll 1
                for (int block = 0; block < BLOCKS; block++) {
                    earlier = memory;
                    // the first block's keys and values lie where P will be, so that the second's find their place free
                    const Tile keys = {sample + (block ? KEYS : P), 0},
                               values = {sample + (block ? VALUES : P + ROWS32), 0};
                    forward_block<true>(
                        me, tokens, x, block, start, sample + block * KEPT_BLOCK, {sample, QUERIES}, keys, values,
                        dropout, epsilon, memory
                    );
                }
                float r[2];
                u32 normalized[2][4];
                if (tokens.busy) {
                    normalize(x, r, epsilon, tokens.real);
                    pack_rows(normalized, x);
                    share_sums(me, x, shares);
                }
                group_barrier(me.group);
                if (tokens.busy) {
                    const int row = (round * GROUPS + me.group) % RECENT;
                    loss += classify_and_return(me, tokens, start, shares, recent, row, mine.label, x);
                    normalize_backward(x, normalized, r);
                }
            });

            #pragma unroll 1
            for (int block = BLOCKS - 1; block >= 0; block--) {
                with_tokens(me, mine.length, [&](const auto& tokens) {
                    backward_block(me, tokens, start, block, sample, x, memory);
                });
                memory = earlier;
                if (IMAGES && block == 0) {
                    u32 rows[2][4];
                    drop_backward(x, kept_first);
                    pack_rows(rows, x);
                    store_rows<DIM>(me, {sample, DO}, rows);
                }
                block_barrier();
                #pragma unroll 1
                for (int group = 0; group < GROUPS; group++) {
                    const u32 other = start + SAMPLES + group * SAMPLE_END;
                    with_tokens(me, group ? pair1.length : pair0.length, [&](const auto& tokens) {
                        if (block) gradients.add_block<1>(me, tokens, other);
                        else gradients.add_block<0>(me, tokens, other);
                    });
                    if (IMAGES && block == 0)
                        gradients.add_embedding(
                            me, other, start + INPUTS + (group * INPUT_BUFFERS + 1 - buffer) * INPUT_BYTES
                        );
                }
                if (block == 0 && round % (RECENT / GROUPS) == RECENT / GROUPS - 1)
                    gradients.add_classifier(me, recent);
                block_barrier();
            }
        }
        const Thread me;
        gradients.apply(me, rule.at_step(arguments.corrections + 2 * step), start);
        block_barrier();
    }
    // each group's first lane has the sum over its samples
    if (me.tile == 0 && me.lane == 0) store_double(shares, loss);
    block_barrier();
    if (thread_index() == 0) {
        double sum = 0.0;
        for (int group = 0; group < GROUPS; group++) sum += load_double(start + SHARES + group * SHARES_BYTES);
        arguments.losses[model] = sum / ((double)arguments.steps * arguments.batch);
    }
}
