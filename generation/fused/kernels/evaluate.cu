// Measures a population: correct answers and losses of every model on the same examples, forward pass only.
//
// A block takes one model and one part of the examples; its groups of warps take one sample at a time each. Counts
// are summed as integers and losses as one number per part, in a fixed order, so the result depends on nothing but the
// model.
#include "classifier.cuh"
#include "inputs.cuh"

constexpr int EVALUATE_GROUPS = EVALUATED_AT_ONCE;
constexpr int EVALUATE_THREADS = EVALUATE_GROUPS * GROUP_THREADS;

// A group's keys and values: those of each block apart, so that no warp waits for the other block.
struct KeysAndValues {
    static constexpr u32 BLOCK_BYTES = 2 * TokenRows<DIM>::BYTES, BYTES = BLOCKS * BLOCK_BYTES;
    u32 start;
    DEVICE BlockPlaces places(int block) const {
        const u32 keys = start + block * BLOCK_BYTES;
        return {{keys, 0}, {keys, TokenRows<DIM>::BYTES}};
    }
};

// Shared memory:  weights │ sums of each group │ tokens of each group │ keys and values of each group
struct EvaluateMemory {
    static constexpr u32 SUMS = Weights::BYTES;
    static constexpr u32 COUNT = 16;  // where a group's correct answers stand at the end, behind its sum of losses
    static constexpr u32 INPUTS = SUMS + EVALUATE_GROUPS * TokenSums::BYTES;
    static constexpr u32 INPUT_BYTES = EVALUATE_GROUPS * TokenRows<FEATURES>::BYTES;
    static constexpr u32 KEYS = INPUTS + INPUT_BYTES;
    static constexpr u32 BYTES = KEYS + EVALUATE_GROUPS * KeysAndValues::BYTES;
    u32 start;

    DEVICE Weights weights() const { return {start}; }
    DEVICE TokenSums sums(int group) const { return {start + SUMS + group * TokenSums::BYTES}; }
    DEVICE TokenRows<FEATURES> input(int group) const {
        return {start + INPUTS + group * TokenRows<FEATURES>::BYTES, 0};
    }
    DEVICE KeysAndValues keys_and_values(int group) const { return {start + KEYS + group * KeysAndValues::BYTES}; }
};

static_assert(EvaluateMemory::BYTES <= SHARED_BYTES, "more shared memory than this GPU has");

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

    DEVICE const u16* sample(int index) const { return tokens + (long long)index * TOKENS * FEATURES; }
};

// What a launch must provide: threads per block, bytes of shared memory, bytes of arguments, words to park.
extern "C" __global__ void evaluate_needs(int* needs) {
    needs[0] = EVALUATE_THREADS;
    needs[1] = EvaluateMemory::BYTES;
    needs[2] = sizeof(EvaluateArguments);
    needs[3] = 0;
}

// __grid_constant__, so that arguments are read where they are needed; kept in registers they make this kernel spill.
extern "C" __global__ void __launch_bounds__(EVALUATE_THREADS, 1) evaluate(
    const __grid_constant__ EvaluateArguments arguments
) {
    const int model = model_index(), part = part_index();
    if (!arguments.alive[model]) return;
    const Thread me;
    const EvaluateMemory memory = {shared_start()};
    const Weights weights = memory.weights();
    const TokenSums sums = memory.sums(me.group);
    const TokenRows<FEATURES> input = memory.input(me.group);
    const KeysAndValues keys_and_values = memory.keys_and_values(me.group);
    load_weights(arguments.weights + (long long)model * PARAMETERS, weights, {thread_index(), EVALUATE_THREADS});
    block_barrier();

    const int first = part * arguments.part_size, end = first + arguments.part_size;
    const int last = end < arguments.examples ? end : arguments.examples;
    double loss = 0.0;
    int hits = 0;
    if (first + me.group < last) start_tokens(me, arguments.sample(first + me.group), input);
    #pragma unroll 1
    for (int index = first + me.group; index < last; index += EVALUATE_GROUPS) {
        const Facts facts(arguments.facts[index]);
        PerTile<Rows<DIM>> x;
        copies_done();
        warp_barrier();
        embed(me, x, weights, input, arguments.positions);
        warp_barrier();
        if (index + EVALUATE_GROUPS < last) start_tokens(me, arguments.sample(index + EVALUATE_GROUPS), input);
        with_tokens(me, facts.length, [&](const auto& tokens) {
            constexpr int MINE = Count<decltype(tokens)>::MINE;
            BlockMemory block_memory;
            Dropout none;
            none.epsilon = LAYER_NORM_EPSILON;
            #pragma unroll 1
            for (int block = 0; block < BLOCKS; block++) {
                const BlockPlaces places = keys_and_values.places(block);
                const Parking nowhere(me, nullptr, 0);
                forward_block<false>(me, tokens, x, block, weights.block(block), places, nowhere, none, block_memory);
            }
            if (tokens.busy) {
                PerTile<PerRow<float>> r;
                normalize<MINE>(x, r, LAYER_NORM_EPSILON, tokens.real);
                share_sums<MINE>(me, x, sums);
            }
            group_barrier(me.group);
            if (me.member == 0) {
                PerTile<PackedRows<DIM>> pooled, active;
                PerTile<Rows<DIM>> z;
                PerTile<Rows<TILE>> logit;
                PerClass probability;
                mean_row(me, tokens, pooled[0], sums);
                classify(me, weights, pooled, z, active, logit);
                loss += cross_entropy(me, logit[0], facts.label, probability);
                hits += answer(me, logit[0]) == facts.label;
            }
        });
    }
    block_barrier();
    if (me.member == 0 && me.lane == 0) {
        store_double(sums.start, loss);
        store_word(sums.start + EvaluateMemory::COUNT, hits);
    }
    block_barrier();
    if (thread_index() == 0) {
        double sum = 0.0;
        int count = 0;
        for (int group = 0; group < EVALUATE_GROUPS; group++) {
            const u32 shares = memory.sums(group).start;
            sum += load_double(shares);
            count += load_word(shares + EvaluateMemory::COUNT);
        }
        arguments.correct[model * arguments.parts + part] = count;
        arguments.losses[model * arguments.parts + part] = sum;
    }
}
