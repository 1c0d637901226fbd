// Measures a population: correct answers and losses of every model on the same examples, forward pass only.
//
// A block takes one model and one part of the examples; its groups of four warps take a sample each in turn. Counts are
// summed as integers and losses as one number per part, in a fixed order, so the result depends on nothing but the
// model.
#include "classifier.cuh"
#include "inputs.cuh"

constexpr int EVALUATION_GROUPS = 4;
constexpr int EVALUATION_THREADS = EVALUATION_GROUPS * GROUP_THREADS;
constexpr u32 EVALUATION_SHARES = (WEIGHTS_END + 127) / 128 * 128;
constexpr u32 COUNT = 16;  // of correct answers, behind the sum of losses
constexpr u32 EVALUATION_INPUTS = EVALUATION_SHARES + EVALUATION_GROUPS * SHARES_BYTES;
constexpr u32 EVALUATION_ROWS = EVALUATION_INPUTS + EVALUATION_GROUPS * INPUT_BYTES;
constexpr u32 GROUP_ROWS = 2 * BLOCKS * ROWS32;  // keys and values of each block: no warp waits for the other block
constexpr u32 EVALUATE_SHARED_BYTES = EVALUATION_ROWS + EVALUATION_GROUPS * GROUP_ROWS;

// What a launch passes, field by field as EvaluateArguments of arguments.py has it.
struct EvaluateArguments {
    const u16* tokens;            // [examples, TOKENS, FEATURES] halves
    const u32* facts;             // [examples] Facts
    const float* positions;       // [TOKENS, DIM]
    const u8* alive;              // [models]
    const float* weights;         // [models, PARAMETERS]
    int* correct;                 // [models, parts]
    double* losses;               // [models, parts] sums
    int examples;
    int part_size;
    int parts;
};

// What a launch must provide: threads per block, bytes of shared memory, and bytes of arguments.
extern "C" __global__ void evaluate_needs(int* needs) {
    needs[0] = EVALUATION_THREADS;
    needs[1] = EVALUATE_SHARED_BYTES;
    needs[2] = sizeof(EvaluateArguments);
}

extern "C" __global__ void __launch_bounds__(EVALUATION_THREADS, 1) evaluate(
    const __grid_constant__ EvaluateArguments arguments
) {
    const int model = model_index(), part = part_index();
    if (!arguments.alive[model]) return;
    const Thread me;
    const u32 start = shared_start();
    const u32 shares = start + EVALUATION_SHARES + me.group * SHARES_BYTES;
    const u32 input = start + EVALUATION_INPUTS + me.group * INPUT_BYTES;
    const u32 rows = start + EVALUATION_ROWS + me.group * GROUP_ROWS;
    load_weights(arguments.weights + (long long)model * PARAMETERS, start, thread_index(), EVALUATION_THREADS);
    for (u32 i = thread_index(); i < EVALUATION_GROUPS * INPUT_BYTES / FLOAT; i += EVALUATION_THREADS)
        store_word(start + EVALUATION_INPUTS + i * FLOAT, 0);
    block_barrier();

    const int first = part * arguments.part_size, end = first + arguments.part_size;
    const int last = end < arguments.examples ? end : arguments.examples;
    double loss = 0.0;
    int hits = 0;
    if (first + me.group < last)
        start_tokens(me, arguments.tokens + (long long)(first + me.group) * TOKENS * FEATURES, input);
    #pragma unroll 1
    for (int mine = first + me.group; mine < last; mine += EVALUATION_GROUPS) {
        const Facts fact(arguments.facts[mine]);
        float x[4][4];
        copies_done();
        warp_barrier();
        embed(me, x, start, input, arguments.positions);
        warp_barrier();
        if (mine + EVALUATION_GROUPS < last)
            start_tokens(me, arguments.tokens + (long long)(mine + EVALUATION_GROUPS) * TOKENS * FEATURES, input);
        with_tokens(me, fact.length, [&](const auto& tokens) {
            BlockMemory memory;
            Dropout none;
            #pragma unroll 1
            for (int block = 0; block < BLOCKS; block++) {
                const Tile keys = {rows + block * 2 * ROWS32, 0}, values = {keys.base, ROWS32};
                forward_block<false>(
                    me, tokens, x, block, start, 0, keys, keys, values, none, LAYER_NORM_EPSILON, memory
                );
            }
            if (tokens.busy) {
                float r[2];
                normalize(x, r, LAYER_NORM_EPSILON, tokens.real);
                share_sums(me, x, shares);
            }
            group_barrier(me.group);
            if (me.tile == 0) {
                u32 pooled[2][4], active[2][4];
                float z[4][4], logit[2][4], share[4];
                mean_row(me, tokens, pooled, shares);
                classify(me, start, pooled, z, active, logit);
                loss += cross_entropy(me, logit, fact.label, share);
                hits += answer(me, logit) == fact.label;
            }
        });
    }
    block_barrier();
    if (me.tile == 0 && me.lane == 0) store_double(shares, loss), store_word(shares + COUNT, hits);
    block_barrier();
    if (thread_index() == 0) {
        double sum = 0.0;
        int count = 0;
        for (int group = 0; group < EVALUATION_GROUPS; group++) {
            const u32 share = start + EVALUATION_SHARES + group * SHARES_BYTES;
            sum += load_double(share), count += load_word(share + COUNT);
        }
        arguments.correct[model * arguments.parts + part] = count;
        arguments.losses[model * arguments.parts + part] = sum;
    }
}
