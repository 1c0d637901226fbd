// Weight gradients: dW = Σ dyᵀ·x over samples and tokens, kept in registers for a whole step, each by one warp alone.
//
// A block's six matrices are sixteen strips of 16 rows × 32 columns, two per warp, one of the MLP and one of attention:
//
//     warp           0 to 3              4, 5            6, 7             0, 1     2, 3     4, 5     6, 7
//     16 × 32 of     fc1                 fc2, left half  fc2, right half  query    key      value    output
//     from           d_hiddenᵀ·x2        dyᵀ·hidden      dyᵀ·hidden       dQᵀ·x1   dKᵀ·x1   dVᵀ·x1   daᵀ·joined
//
// Biases are the same with x = 1: fc1's by warps 0 to 3, fc2's by warps 4 and 5. The embedding (images only) is made by
// warps 0 to 5, the classifier by all, from the rows of the last 16 samples. After the last sample of a step the warp
// updates its own weights, in device memory and their halves in shared memory: no gradient is ever written down.
#pragma once
#include "backward.cuh"
#include "classifier.cuh"
#include "update.cuh"

constexpr int WARPS = 8, GROUPS = SAMPLES_AT_ONCE;
static_assert(GROUPS * GROUP_WARPS <= WARPS, "warps without a sample only make gradients");

using Strip = Sums[4];  // 16 × 32

DEVICE void clear(Strip& strip) {
    #pragma unroll
    for (int j = 0; j < 4; j++) clear(strip[j]);
}

// strip += leftᵀ·right and bias += leftᵀ·1 for TILES tiles of tokens: 16 columns of `left` from the chunk `left_chunk`
// on, 32 of `right`. Both chunks may depend on the warp.
template <int TILES, int M, int N>
DEVICE void add_strip(
    const Thread& me, Strip& strip, TokenRows<M> left, int left_chunk, TokenRows<N> right, int right_chunk,
    bool biased, Sums& bias
) {
    const u32 left_lane = left.across(me) ^ (16u * left_chunk), right_lane = right.down(me) ^ (16u * right_chunk);
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        Factor a, b[2];
        load_matrices_transposed(a, left.at(left_lane, tile * TILE, 0));
        load_matrices_transposed(b[0], right.at(right_lane, tile * TILE, 0));
        load_matrices_transposed(b[1], right.at(right_lane, tile * TILE, 2));
        #pragma unroll
        for (int j = 0; j < 4; j++) mma(strip[j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        if (biased) mma(bias, a, ONES, ONES);
    }
}

// Those of the classifier are added to once in 16 samples, and lie in shared memory meanwhile: 16 × 8 of the first layer
// for each warp; 16 × 8 of the second for warps 0 to 3, biases for 4 to 6.
struct ClassifierGradients {
    static constexpr u32 LANE = 4 * FLOAT, LAYER = WARPS * WARP * LANE, BYTES = 2 * LAYER;
    u32 start;

    DEVICE u32 place(const Thread& me) const { return start + (me.warp * WARP + me.lane) * LANE; }
    DEVICE void reset(const Thread& me) const {
        store_zeros(place(me));
        store_zeros(place(me) + LAYER);
    }
    DEVICE void load(const Thread& me, Sums& first, Sums& second) const {
        load_four_floats(first, place(me));
        load_four_floats(second, place(me) + LAYER);
    }

    // Adds the share of the last 16 samples.
    DEVICE void add(const Thread& me, RecentSamples recent) const {
        const u32 across = Matrix<RECENT, DIM>::across(me), down = Matrix<RECENT, DIM>::down(me);
        const u32 right = me.warp % 4 / 2 * 32;    // the pair of column tiles that holds this warp's
        const bool odd = me.warp % 2;
        Factor a, b;
        Sums first, second;
        load(me, first, second);
        load_matrices_transposed(a, recent.dz().address() + (across ^ (32u * (me.warp / 4))));
        load_matrices_transposed(b, recent.pooled().address() + (down ^ right));
        mma(first, a, odd ? b[2] : b[0], odd ? b[3] : b[1]);
        if (me.warp == 4 || me.warp == 5) {
            load_matrices_transposed(a, recent.dz().address() + (across ^ (32u * (me.warp - 4))));
            mma(second, a, ONES, ONES);
        } else if (me.warp != 7) {
            load_matrices_transposed(a, recent.d_logit().address() + Matrix<RECENT, TILE>::across(me));
            load_matrices_transposed(b, recent.active().address() + (down ^ right));
            if (me.warp == 6) b[0] = b[1] = b[2] = b[3] = ONES;
            mma(second, a, odd ? b[2] : b[0], odd ? b[3] : b[1]);
        }
        store_four_floats(place(me), first);
        store_four_floats(place(me) + LAYER, second);
    }
};

// All else that a warp accumulates in one step.
struct Gradients {
    Strip mlp[BLOCKS], attention[BLOCKS];
    Sums bias[BLOCKS];                // warps 0-5; every column holds the same sum
    Sums embedding;                   // warps 0-3: 16 rows × 8 columns, 4-5: biases

    DEVICE void reset() {
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            clear(mlp[b]);
            clear(attention[b]);
            clear(bias[b]);
        }
        clear(embedding);
    }

    // Each of these adds the share of every sample; `each` calls its argument with the tokens and the rows of each.
    enum Half { MLP = 1, ATTENTION = 2 };
    template <int BLOCK, int HALVES, class Each> DEVICE void add_block(const Thread& me, Each each) {
        const int w = me.warp, matrix = w / 2;
        const bool output = matrix == 3;
        const u32 left = output ? Sample::DA : Sample::QUERIES + matrix * Sample::PLACE;
        const u32 right = BLOCK * Sample::BLOCK_BYTES + (output ? Sample::JOINED : Sample::X1);
        const auto add_attention = [&](const auto& tokens, Sample sample) {
            constexpr int TILES = Count<decltype(tokens)>::TILES;
            const TokenRows<DIM> left_rows = {sample.start + left, 0}, right_rows = {sample.start + right, 0};
            add_strip<TILES>(me, attention[BLOCK], left_rows, 2 * (w % 2), right_rows, 0, false, bias[BLOCK]);
        };
        if (!(HALVES & MLP)) {
            each(add_attention);
        } else if (w < 4) {
            each([&](const auto& tokens, Sample sample) {
                constexpr int TILES = Count<decltype(tokens)>::TILES;
                add_strip<TILES>(me, mlp[BLOCK], sample.d_hidden(), 2 * w, sample.x2(BLOCK), 0, true, bias[BLOCK]);
                if (HALVES & ATTENTION) add_attention(tokens, sample);
            });
        } else {
            each([&](const auto& tokens, Sample sample) {
                constexpr int TILES = Count<decltype(tokens)>::TILES;
                const TokenRows<HIDDEN> hidden = sample.hidden(BLOCK);
                add_strip<TILES>(me, mlp[BLOCK], sample.dy(), 2 * (w % 2), hidden, 4 * (w / 6), w < 6, bias[BLOCK]);
                if (HALVES & ATTENTION) add_attention(tokens, sample);
            });
        }
    }
    // The embedding: d_joined holds the gradients of its output, same_tokens its input.
    template <class Each> DEVICE void add_embedding(const Thread& me, Each each) {
        if (me.warp >= 6) return;
        each([&](const auto&, Sample sample) {
            const TokenRows<DIM> left = sample.d_joined();
            const TokenRows<FEATURES> right = sample.same_tokens();
            const u32 left_lane = left.across(me) ^ (32u * (me.warp % 2));
            #pragma unroll
            for (int tile = 0; tile < SAMPLE_TILES; tile++) {
                Factor a, b;
                load_matrices_transposed(a, left.at(left_lane, tile * TILE, 0));
                right.load_right(me, b, tile * TILE, 0);
                if (me.warp >= 4) b[0] = b[1] = ONES;
                mma(embedding, a, me.warp / 2 == 1 ? b[2] : b[0], me.warp / 2 == 1 ? b[3] : b[1]);
            }
        });
    }

    // Updates every weight whose gradient this warp holds.
    DEVICE void apply(
        const Thread& me, const Optimizer& optimizer, const Weights& weights, ClassifierGradients classifier
    ) {
        const Updater update = {me, optimizer};
        const int w = me.warp;
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            const int flat = b * BLOCK_STRIDE;
            const BlockWeights block = weights.block(b);
            const float scale = w < 2 ? QUERY_SCALE : 1.0f;
            update.strip(attention[b], flat + FLAT_QUERY, block.query_to_output(), TILE * w, 0, scale);
            if (w < 4) {
                const int row = TILE * w;
                update.strip(mlp[b], flat + FLAT_FC1, block.fc1(), row, 0);
                update.biases(bias[b], flat + FLAT_FC1_BIAS + row, block.fc1_bias().tile(row));
            } else {
                const int row = TILE * (w % 2);
                update.strip(mlp[b], flat + FLAT_FC2, block.fc2(), row, 4 * (w / 6));
                if (w < 6) update.biases(bias[b], flat + FLAT_FC2_BIAS + row, block.fc2_bias().tile(row));
            }
        }
        if (IMAGES && w < 6) {
            const int row = TILE * (w % 2);
            if (w < 4) update.tile(embedding, FLAT_EMBEDDING, weights.embedding(), row, w / 2);
            else update.biases(embedding, FLAT_EMBEDDING_BIAS + row, weights.embedding_bias().tile(row));
        }
        Sums classifier1, classifier2;
        classifier.load(me, classifier1, classifier2);
        classifier.reset(me);
        update.tile(classifier1, FLAT_CLASSIFIER1, weights.classifier1(), TILE * (w / 4), w % 4);
        if (w < 4) {
            update.tile(classifier2, FLAT_CLASSIFIER2, weights.classifier2(), 0, w, CLASSES);
        } else if (w < 6) {
            const int row = TILE * (w - 4);
            update.biases(classifier2, FLAT_CLASSIFIER1_BIAS + row, weights.classifier1_bias().tile(row));
        } else if (w == 6) {
            update.biases(classifier2, FLAT_CLASSIFIER2_BIAS, weights.classifier2_bias(), CLASSES);
        }
    }
};
