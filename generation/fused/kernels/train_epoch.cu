// Trains a population for one epoch: one thread block per model, without going back to the host.
//
//     for each step:
//         for each example, with four warps:
//             forward through all blocks ─ classifier ─ back, the last block first         (forward.cuh, backward.cuh)
//             after the backward pass of each block, or of each of its parts:
//                 its rows are added to the weight gradients                                            (gradients.cuh)
//         the weights are updated                                                                          (update.cuh)
//
// There are two ways to divide this among the warps: all do the same, in rounds of one or two examples
// (unspecialized.cuh), or producers process three examples and consumers add up the gradients (warp_specialized.cuh).
//
// Tokens are read from device memory, and the optimizer's numbers are read and written there once per step; rows and
// gradients that do not fit on the chip are spilled there (spill_buffer.cuh, SPILL_GRADIENTS). Weights stay in shared
// memory for a whole step if all of them fit (ALL_WEIGHTS). Nothing depends on other thread blocks, so a run's bytes do
// not depend on its population.
#include "gradients.cuh"
#include "language_gradients.cuh"
#include "producer_storage.cuh"

constexpr int TRAIN_THREADS = WARPS * WARP;
// A model's scratch memory on the device: spills and gradients.
constexpr long long WORKSPACE_WORDS = SpillBuffer::WORDS + Gradients::WORDS + LanguageGradients::WORDS;

// Where the tokens of a group's examples are copied to, those of the next one while this one's are still needed.
struct InputStages {
    static constexpr int COUNT = LEARNS_EMBEDDING ? 2 : 1;  // for weight gradients, tokens are needed to the end
    static constexpr u32 BYTES = COUNT * InputRows::BYTES;
    u32 start;
    DEVICE InputRows operator[](int stage) const { return {start + (COUNT > 1 ? stage : 0) * InputRows::BYTES, 0}; }
};

// Shared memory:  weights │ classifier's rows of 16 examples │ losses │ sums │ tokens │ example of group 0, 1 ...
// If WARP_SPECIALIZED, there are rows and losses of 32 examples, since producers run ahead, followed by │ producers'
// storage. A language model has neither the classifier's rows nor sums over tokens, and each of its warps a loss.
struct TrainMemory {
    static constexpr u32 RECENT_EXAMPLES = Weights::BYTES;
    static constexpr int SETS = WARP_SPECIALIZED ? 2 : 1;              // of 16 recent examples
    static constexpr u32 LOSSES = RECENT_EXAMPLES + (CAUSAL ? 0 : SETS * RecentExamples::BYTES);
    static constexpr u32 WARP_LOSS = 16, LOSS = CAUSAL ? GROUP_WARPS * WARP_LOSS : 16;  // bytes apart
    static constexpr int LOSSES_KEPT = CAUSAL ? 8 : WARP_SPECIALIZED ? SETS * RECENT : GROUPS * GROUP_WARPS;
    static constexpr u32 TOTALS = LOSSES + LOSSES_KEPT * LOSS;         // of the epoch, even and odd examples apart
    static constexpr u32 STORAGE = (TOTALS + 2 * DOUBLE + 127) / 128 * 128;
    static constexpr u32 SUMS = STORAGE + (WARP_SPECIALIZED ? GROUPS * ProducerStorage::BYTES : 0);
    static constexpr u32 INPUTS = SUMS + (CAUSAL ? 0 : GROUPS * TokenSums::BYTES);
    static constexpr u32 LINE = larger(128u, PITCH<HIDDEN>);
    static constexpr u32 EXAMPLES = (INPUTS + GROUPS * InputStages::BYTES + LINE - 1) / LINE * LINE;
    static constexpr u32 BYTES = EXAMPLES + GROUPS * Example::BYTES;
    u32 start;

    DEVICE Weights weights() const { return {start}; }
    DEVICE RecentExamples recent(int i = 0) const {  // with example i of the batch
        return {start + RECENT_EXAMPLES + i / RECENT % SETS * RecentExamples::BYTES};
    }
    DEVICE u32 loss(int i) const { return start + LOSSES + i % LOSSES_KEPT * LOSS; }
    DEVICE u32 total(int i) const { return start + TOTALS + i % 2 * DOUBLE; }
    DEVICE ProducerStorage storage(int group) const { return {start + STORAGE + group * ProducerStorage::BYTES}; }
    DEVICE TokenSums sums(int group) const { return {start + SUMS + group * TokenSums::BYTES}; }
    DEVICE InputStages inputs(int group) const { return {start + INPUTS + group * InputStages::BYTES}; }
    DEVICE Example example(int group) const { return {start + EXAMPLES + group * Example::BYTES}; }
};
static_assert(TrainMemory::BYTES <= SHARED_BYTES, "a thread block has no more shared memory");
static_assert(TrainMemory::INPUTS % 128 == 0, "rows in shared memory start at such addresses (Matrix)");

// The arguments of a launch; TrainArguments in compiled.py has the same fields in the same order.
struct TrainArguments {
    const u16* tokens;            // [steps, batch, TOKENS, FEATURES] halves, or [steps, batch, ROWS] of a Window
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
    double* losses;               // [models] mean over the epoch's examples, or their tokens
    int steps;
    int batch;
    int first_step;
    u32* workspace;                  // [models, WORKSPACE_WORDS]
    const u32* packs;             // [steps, batch] Pack, the first pack_counts of each step
    const int* pack_counts;       // [steps]

    DEVICE const u16* example(int index) const { return tokens + (long long)index * EXAMPLE_WORDS; }

    // A model's own vectors of tokens and positions, or the positions of all.
    DEVICE const float* vectors(int model) const {
        return CAUSAL ? weights + (long long)model * PARAMETERS : positions;
    }

    // The packs of a step; without PACKS each is one example.
    DEVICE int packs_of(int step) const { return PACKS ? pack_counts[step] : batch; }
    DEVICE Pack pack(int step, int k) const {
        if constexpr (PACKS) return Pack(packs[step * batch + k]);
        else return {k, 1, TOKEN_TILES};
    }
};

// Requirements of a launch: threads per thread block, bytes of shared memory and of arguments, words of workspace.
extern "C" __global__ void train_epoch_needs(int* needs) {
    needs[0] = TRAIN_THREADS;
    needs[1] = TrainMemory::BYTES;
    needs[2] = sizeof(TrainArguments);
    needs[3] = WORKSPACE_WORDS;
}

DEVICE Optimizer optimizer_of(const TrainArguments& arguments, int model) {
    const long long first_weight = (long long)model * PARAMETERS;
    Optimizer rule(arguments.rules + model * RULE_NUMBERS);
    rule.weights = arguments.weights + first_weight;
    rule.first = arguments.first_moments + first_weight;
    rule.second = arguments.second_moments + first_weight;
    rule.gradient_scale = 1.0f / (LOSS_SCALE * arguments.batch);
    return rule;
}

// Zeros for tokens that no copy writes, and for the sums of losses.
DEVICE void clear(const TrainMemory& memory) {
    for (u32 i = thread_index(); i < GROUPS * InputStages::BYTES / FLOAT; i += TRAIN_THREADS) {
        store_word(memory.inputs(0).start + i * FLOAT, 0);
    }
    if (thread_index() < 2) store_double(memory.total(thread_index()), 0.0);
}

// The loss of an example: one number, or a language model's from each warp with tokens.
DEVICE float loss_of(const TrainMemory& memory, int i) {
    float loss = load_float(memory.loss(i));
    #pragma unroll
    for (int tile = 1; CAUSAL && tile < TOKEN_TILES; tile++) {
        loss += load_float(memory.loss(i) + tile * memory.WARP_LOSS);
    }
    return loss;
}

// Adds the losses of a pack's examples. One thread does this for all, pack by pack, so that the order is the same in
// every variant.
DEVICE void add_losses(const TrainMemory& memory, const Pack& pack) {
    #pragma unroll 1
    for (int i = pack.first; i < pack.first + pack.examples; i++) {
        store_double(memory.total(i), load_double(memory.total(i)) + loss_of(memory, i));
    }
}
DEVICE double mean_loss(const TrainArguments& arguments, const TrainMemory& memory) {
    const double examples = (double)arguments.steps * arguments.batch * (CAUSAL ? TOKENS : 1);
    return (load_double(memory.total(0)) + load_double(memory.total(1))) / examples;
}

// Starts copying this warp's tile of pack k of a step.
DEVICE void prefetch_pack(
    const Thread& me, const TrainArguments& arguments, int step, int k, InputRows input
) {
    const Pack pack = arguments.pack(step, k);
    if (me.tile >= pack.all_tiles()) return;
    const int example = pack.example_of(me.tile);
    prefetch_tokens(me, arguments.example(step * arguments.batch + pack.first + example), input, example * pack.tiles);
}

#if EXAMPLES_AT_ONCE == 3
#include "warp_specialized.cuh"
#else
#include "unspecialized.cuh"
#endif
