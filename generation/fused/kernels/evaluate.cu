// Measures a population: correct answers and losses of every model on the same examples, forward pass only.
//
// A thread block takes one model and one part of the examples; each of its groups of four warps takes one example at a
// time. Counts are summed as integers and losses as one number per part, in a fixed order, so the result depends only
// on the model.
#include "evaluation.cuh"
#include "language.cuh"

constexpr int EVALUATE_THREADS = EVALUATE_GROUPS * GROUP_THREADS;
constexpr int SHARES = CAUSAL ? GROUP_WARPS : 1;  // of a group's losses: each warp has those of its own tokens

// A group's keys and values. Where there is room, each block has its own, so that no warp waits for another block.
template <bool APART> struct KeysAndValues {
    static constexpr u32 BLOCK_BYTES = 2 * TokenRows<INNER>::BYTES, BYTES = (APART ? BLOCKS : 1) * BLOCK_BYTES;
    u32 start;
    DEVICE BlockPlaces places(int block) const {
        const u32 keys = start + (APART ? block * BLOCK_BYTES : 0);
        return {{keys, 0}, {keys, 0}, {keys, TokenRows<INNER>::BYTES}};
    }
};

// Shared memory:  weights │ sums of each group │ tokens of each group │ keys and values of each group
struct EvaluateMemory {
    static constexpr u32 SUMS = Weights::BYTES;
    static constexpr u32 COUNT = 16;  // offset of a group's correct answers at the end, behind its sum of losses
    static constexpr u32 INPUTS = SUMS + EVALUATE_GROUPS * TokenSums::BYTES;
    static constexpr u32 INPUT_BYTES = EVALUATE_GROUPS * InputRows::BYTES;
    static constexpr u32 KEYS = INPUTS + INPUT_BYTES;
    static constexpr bool APART = KEYS + EVALUATE_GROUPS * KeysAndValues<true>::BYTES <= SHARED_BYTES;
    using GroupKeys = KeysAndValues<APART>;
    static constexpr u32 BYTES = KEYS + EVALUATE_GROUPS * GroupKeys::BYTES;
    static_assert(BYTES <= SHARED_BYTES, "a thread block has no more shared memory");
    // Whether a block's keys and values lie where some warp may still read others. Sums over tokens have a barrier.
    DEVICE static bool overwrites_keys(int block) {
        return CAUSAL ? !APART || BLOCKS == 1 : !APART && block;
    }
    u32 start;

    DEVICE Weights weights() const { return {start}; }
    DEVICE TokenSums sums(int group) const { return {start + SUMS + group * TokenSums::BYTES}; }
    DEVICE InputRows input(int group) const { return {start + INPUTS + group * InputRows::BYTES, 0}; }
    DEVICE GroupKeys keys_and_values(int group) const { return {start + KEYS + group * GroupKeys::BYTES}; }
};

// Requirements of a launch: threads per thread block, bytes of shared memory, and bytes of arguments.
extern "C" __global__ void evaluate_needs(int* needs) {
    needs[0] = EVALUATE_THREADS;
    needs[1] = EvaluateMemory::BYTES;
    needs[2] = sizeof(EvaluateArguments);
}

// __grid_constant__, so that arguments are read where they are needed; in registers they would make this kernel spill.
extern "C" __global__ void __launch_bounds__(EVALUATE_THREADS, 1) evaluate(
    const __grid_constant__ EvaluateArguments arguments
) {
    const int model = model_index(), part = part_index();
    if (!arguments.alive[model]) return;
    const Thread me;
    const EvaluateMemory memory = {shared_start()};
    const Weights weights = memory.weights();
    const TokenSums sums = memory.sums(me.group);
    const InputRows input = memory.input(me.group);
    const EvaluateMemory::GroupKeys keys_and_values = memory.keys_and_values(me.group);
    const float* const flat = arguments.weights + (long long)model * PARAMETERS;
    const Loader all_threads = {thread_index(), EVALUATE_THREADS};
    int resident = NO_BLOCK;  // the block whose weights are in shared memory, where blocks take turns
    load_weights(flat, weights, all_threads);
    for (u32 i = thread_index(); i < EvaluateMemory::INPUT_BYTES / FLOAT; i += EVALUATE_THREADS) {
        store_word(memory.input(0).address() + i * FLOAT, 0);
    }
    thread_block_barrier();

    const int first = part * arguments.part_size, end = first + arguments.part_size;
    const int last = end < arguments.examples ? end : arguments.examples;
    double loss = 0.0;
    int hits = 0;
    if (first + me.group < last) prefetch_tokens(me, arguments.example(first + me.group), input);
    // where blocks take turns, groups without an example continue as long as others have one
    #pragma unroll 1
    for (int index = first + me.group; index - (ALL_WEIGHTS ? 0 : me.group) < last; index += EVALUATE_GROUPS) {
        const bool active = ALL_WEIGHTS || index < last;
        const Facts facts(arguments.facts[active ? index : first]);
        Rows<DIM> x;
        PerRow<int> next;  // tokens of a window
        if (active) embed(me, x, weights, input, CAUSAL ? flat : arguments.positions);
        if (CAUSAL && active) read_next(me, {input.base, input.offset}, next);
        if (index + EVALUATE_GROUPS < last) prefetch_tokens(me, arguments.example(index + EVALUATE_GROUPS), input);
        #pragma unroll 1
        for (int from = 0; from < BLOCKS; from += Weights::RESIDENT) {
            make_resident(flat, weights, all_threads, from, resident);
            if (active) with_tokens(me, facts.length, [&](const auto& tokens) {
                BlockMemory block_memory;
                Dropout none;
                none.epsilon = LAYER_NORM_EPSILON;
                #pragma unroll 1
                for (int block = from; block < from + Weights::RESIDENT; block++) {
                    const BlockPlaces places = keys_and_values.places(block);
                    if (EvaluateMemory::overwrites_keys(block)) group_barrier(me.group);
                    forward_block<false>(me, tokens, x, block, weights.block(block), places, none, block_memory);
                }
                if (from + Weights::RESIDENT < BLOCKS) return;
                if constexpr (CAUSAL) {
                    if (!tokens.busy) return;
                    PerRow<float> r;
                    PackedRows<DIM> normalized;
                    normalize(x, r, LAYER_NORM_EPSILON, tokens.real);
                    pack_rows(normalized, x);
                    const Prediction prediction = predict(me, weights, normalized, next);
                    PerRow<float> hit;
                    #pragma unroll
                    for (int half = 0; half < 2; half++) {
                        hit[half] = tokens.real[half] && prediction.answer[half] == next[half] ? 1.0f : 0.0f;
                    }
                    loss += sum_of_losses(prediction, tokens.real);
                    hits += (int)sum_of_rows(hit);
                    return;
                }
                if (tokens.busy) {
                    PerRow<float> r;
                    normalize(x, r, LAYER_NORM_EPSILON, tokens.real);
                    share_sums(me, x, sums);
                }
                group_barrier(me.group);
                if (me.tile == 0) {
                    PackedRows<DIM> pooled, active;
                    Rows<DIM> z;
                    Rows<TILE> logit;
                    PerClass probability;
                    mean_row(me, tokens, pooled, sums);
                    classify(me, weights, pooled, z, active, logit);
                    loss += cross_entropy(me, logit, facts.label, probability);
                    hits += answer(me, logit) == facts.label;
                }
            });
        }
    }
    thread_block_barrier();
    if ((CAUSAL || me.tile == 0) && me.lane == 0) {
        const u32 share = CAUSAL ? sums.at(me.tile, 0) : sums.start;
        store_double(share, loss);
        store_word(share + EvaluateMemory::COUNT, hits);
    }
    thread_block_barrier();
    if (thread_index() == 0) {
        double sum = 0.0;
        int count = 0;
        for (int i = 0; i < SHARES * EVALUATE_GROUPS; i++) {
            const u32 share = CAUSAL ? memory.sums(i / SHARES).at(i % SHARES, 0) : memory.sums(i).start;
            sum += load_double(share);
            count += load_word(share + EvaluateMemory::COUNT);
        }
        arguments.correct[model * arguments.parts + part] = count;
        arguments.losses[model * arguments.parts + part] = sum;
    }
}
