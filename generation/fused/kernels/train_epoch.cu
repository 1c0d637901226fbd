// Trains a population for one epoch: one thread block per model, with no exchange with the host in between.
//
//     for each step:
//         for each sample, with four warps:
//             forward through all blocks ─ classifier ─ back, the last block first         (forward.cuh, backward.cuh)
//             after the backward pass of each block, or of each of its parts:
//                 its rows are added to the weight gradients                                            (gradients.cuh)
//         the weights are updated                                                                          (update.cuh)
//
// There are two ways to share this among the warps: all go together, in rounds of one or two samples (rounds.cuh), or
// some have three samples and others the gradients (roles.cuh, ROLES).
//
// Device memory is read for the tokens, and read and written for the optimizer's numbers once per step; rows and gradients
// for which the chip has no room wait there (parking.cuh, GRADIENTS_WAIT). Weights stay in shared memory for a whole step
// if it has room for all (ALL_WEIGHTS). Nothing depends on other thread blocks, so a run's bytes do not depend on its
// population.
#include "gradients.cuh"
#include "handouts.cuh"
#include "inputs.cuh"

constexpr int TRAIN_THREADS = WARPS * WARP;
constexpr long long PARKED_WORDS = Parking::WORDS + Gradients::WORDS;  // of device memory, of each model

// Where the tokens of a group's samples come in.
struct InputBuffers {
    static constexpr int COUNT = IMAGES ? 2 : 1;  // patches are needed to the end of a sample, word vectors are not
    static constexpr u32 BYTES = COUNT * TokenRows<FEATURES>::BYTES;
    u32 start;
    DEVICE TokenRows<FEATURES> operator[](int turn) const {
        return {start + (COUNT > 1 ? turn : 0) * TokenRows<FEATURES>::BYTES, 0};
    }
};

// Shared memory:  weights │ classifier's rows of 16 samples │ losses │ sums │ tokens │ sample of group 0 │ of group 1 ...
// With ROLES there are rows and losses of 32 samples, since groups run ahead of the adders, and behind them │ handouts.
struct TrainMemory {
    static constexpr u32 RECENT_SAMPLES = Weights::BYTES;
    static constexpr int SETS = ROLES ? 2 : 1;                         // of 16 recent samples
    static constexpr u32 LOSSES = RECENT_SAMPLES + SETS * RecentSamples::BYTES;
    static constexpr u32 LOSS = 16;                                    // bytes apart
    static constexpr int LOSSES_KEPT = ROLES ? SETS * RECENT : GROUPS * GROUP_WARPS;  // else those of a round
    static constexpr u32 TOTALS = LOSSES + LOSSES_KEPT * LOSS;         // of the epoch, of even and odd samples apart
    static constexpr u32 HANDOUTS = (TOTALS + 2 * DOUBLE + 127) / 128 * 128;
    static constexpr u32 SUMS = HANDOUTS + (ROLES ? GROUPS * Handouts::BYTES : 0);
    static constexpr u32 INPUTS = SUMS + GROUPS * TokenSums::BYTES;
    static constexpr u32 LINE = larger(128u, PITCH<HIDDEN>);
    static constexpr u32 SAMPLES = (INPUTS + GROUPS * InputBuffers::BYTES + LINE - 1) / LINE * LINE;
    static constexpr u32 BYTES = SAMPLES + GROUPS * Sample::BYTES;
    u32 start;

    DEVICE Weights weights() const { return {start}; }
    DEVICE RecentSamples recent(int i = 0) const {  // that hold sample i of the batch
        return {start + RECENT_SAMPLES + i / RECENT % SETS * RecentSamples::BYTES};
    }
    DEVICE u32 loss(int i) const { return start + LOSSES + i % LOSSES_KEPT * LOSS; }
    DEVICE u32 total(int i) const { return start + TOTALS + i % 2 * DOUBLE; }
    DEVICE Handouts handouts(int group) const { return {start + HANDOUTS + group * Handouts::BYTES}; }
    DEVICE TokenSums sums(int group) const { return {start + SUMS + group * TokenSums::BYTES}; }
    DEVICE InputBuffers inputs(int group) const { return {start + INPUTS + group * InputBuffers::BYTES}; }
    DEVICE Sample sample(int group) const { return {start + SAMPLES + group * Sample::BYTES}; }
};
static_assert(TrainMemory::BYTES <= SHARED_BYTES, "a block has no more shared memory");
static_assert(TrainMemory::INPUTS % 128 == 0, "as rows in shared memory start (Matrix)");

// The arguments of a launch, field by field as TrainArguments of compiled.py has them.
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
    const u32* packs;             // [steps, batch] Pack, as many as each step has
    const int* pack_counts;       // [steps]

    DEVICE const u16* sample(int index) const { return tokens + (long long)index * TOKENS * FEATURES; }

    // The packs of a step; without PACKS each is one sample.
    DEVICE int packs_of(int step) const { return PACKS ? pack_counts[step] : batch; }
    DEVICE Pack pack(int step, int k) const {
        if constexpr (PACKS) return Pack(packs[step * batch + k]);
        else return {k, 1, TOKEN_TILES};
    }
};

// Requirements of a launch: threads per block, bytes of shared memory, bytes of arguments, and a model's parked words.
extern "C" __global__ void train_epoch_needs(int* needs) {
    needs[0] = TRAIN_THREADS;
    needs[1] = TrainMemory::BYTES;
    needs[2] = sizeof(TrainArguments);
    needs[3] = PARKED_WORDS;
}

// Where a model's optimizer finds its numbers.
DEVICE Optimizer optimizer_of(const TrainArguments& arguments, int model) {
    const long long first_weight = (long long)model * PARAMETERS;
    Optimizer rule(arguments.rules + model * RULE_NUMBERS);
    rule.weights = arguments.weights + first_weight;
    rule.first = arguments.first_moments + first_weight;
    rule.second = arguments.second_moments + first_weight;
    rule.gradient_scale = 1.0f / (LOSS_SCALE * arguments.batch);
    return rule;
}

// Tokens that no copy writes stay zeros, and losses are added to them.
DEVICE void clear(const TrainMemory& memory) {
    for (u32 i = thread_index(); i < GROUPS * InputBuffers::BYTES / FLOAT; i += TRAIN_THREADS) {
        store_word(memory.inputs(0).start + i * FLOAT, 0);
    }
    if (thread_index() < 2) store_double(memory.total(thread_index()), 0.0);
}

// Adds the losses of a pack's samples. One thread does it for all, pack by pack, so that their order is the same in every
// variant; at the end it says the mean.
DEVICE void add_losses(const TrainMemory& memory, const Pack& pack) {
    #pragma unroll 1
    for (int i = pack.first; i < pack.first + pack.samples; i++) {
        store_double(memory.total(i), load_double(memory.total(i)) + load_float(memory.loss(i)));
    }
}
DEVICE double mean_loss(const TrainArguments& arguments, const TrainMemory& memory) {
    const double samples = (double)arguments.steps * arguments.batch;
    return (load_double(memory.total(0)) + load_double(memory.total(1))) / samples;
}

// Starts to copy this warp's tile of pack k of a step.
DEVICE void start_pack(
    const Thread& me, const TrainArguments& arguments, int step, int k, TokenRows<FEATURES> input
) {
    const Pack pack = arguments.pack(step, k);
    if (me.tile >= pack.all_tiles()) return;
    const int sample = pack.sample_of(me.tile);
    start_tokens(me, arguments.sample(step * arguments.batch + pack.first + sample), input, sample * pack.tiles);
}

#if SAMPLES_AT_ONCE == 3
#include "roles.cuh"
#else
#include "rounds.cuh"
#endif
