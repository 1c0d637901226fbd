// Weight gradients that a warp keeps in registers for a whole step: those of at most two blocks of the paper's
// dimensions.
//
// A block's six matrices are eight squares of 32×32, one per warp:
//
//     warp      0        1        2        3            4, 5                  6, 7
//     dW        query    key      value    output       fc1, upper and lower  fc2, left and right half
//     from      dQᵀ·x1   dKᵀ·x1   dVᵀ·x1   daᵀ·joined   d_hiddenᵀ·x2          dyᵀ·hidden
//
// Biases are the same with x = 1: fc1's by warps 4 and 5, fc2's by warp 6. Warps 0 and 1 compute the embedding's
// (images only), and all warps the classifier's, from the rows of the last 16 examples. After the last example of a
// step the warp updates its own weights, in device memory and their halves in shared memory: no gradient is ever
// written to memory.
#pragma once
#include "backward.cuh"
#include "classifier.cuh"
#include "update.cuh"
#include "warps.cuh"

// Which two matrices a warp multiplies, dy on the left and x on the right: where columns 0-15 and 16-31 of the warp's
// 32 start, in bytes from the start of an example, and the bytes from 16 rows to the next 16.
struct FactorAddresses {
    u32 left, left_next, left_step;
    u32 right, right_next, right_step;
};

DEVICE FactorAddresses block_factors(const Thread& me, int w) {
    const bool wide_left = w == 4 || w == 5, wide_right = w >= 6;
    u32 left = w == 0 ? Example::QUERIES
             : w == 1 ? Example::KEYS
             : w == 2 ? Example::VALUES
             : w == 3 ? Example::DA
             : wide_left ? Example::D_HIDDEN
             : Example::DY;
    u32 right = w <= 2 ? BlockRows::X1
              : w == 3 ? BlockRows::JOINED
              : wide_left ? BlockRows::X2
              : BlockRows::HIDDEN_ROWS;
    u32 left_lane = wide_left ? TokenRows<HIDDEN>::across(me) ^ (w == 5 ? 64u : 0u) : TokenRows<DIM>::across(me);
    u32 right_lane = wide_right ? TokenRows<HIDDEN>::down(me) ^ (w == 7 ? 64u : 0u) : TokenRows<DIM>::down(me);
    FactorAddresses f;
    f.left = left + left_lane;
    f.left_next = left + (left_lane ^ 32u);
    f.right = right + right_lane;
    f.right_next = right + (right_lane ^ 32u);
    f.left_step = TILE * (wide_left ? PITCH<HIDDEN> : PITCH<DIM>);
    f.right_step = TILE * (wide_right ? PITCH<HIDDEN> : PITCH<DIM>);
    return f;
}

// Adds square w's part of the classifier's gradient over the last 16 examples.
DEVICE void add_to_classifier(const Thread& me, int w, RecentExamples recent, Sums& classifier1, Sums& classifier2) {
    const u32 across = Matrix<RECENT, DIM>::across(me), down = Matrix<RECENT, DIM>::down(me);
    const u32 right = w % 4 / 2 * 32;    // the pair of column tiles that holds this square's
    const bool second = w % 2;
    Factor a, b;
    ldmatrix_transposed(a, recent.dz().address() + (across ^ (32u * (w / 4))));
    ldmatrix_transposed(b, recent.pooled().address() + (down ^ right));
    mma(classifier1, a, second ? b[2] : b[0], second ? b[3] : b[1]);
    if (w == 4 || w == 5) {
        ldmatrix_transposed(a, recent.dz().address() + (across ^ (32u * (w - 4))));
        mma(classifier2, a, ONES, ONES);
    } else if (w != 7) {
        ldmatrix_transposed(a, recent.d_logit().address() + Matrix<RECENT, TILE>::across(me));
        ldmatrix_transposed(b, recent.active().address() + (down ^ right));
        if (w == 6) b[0] = b[1] = b[2] = b[3] = ONES;
        mma(classifier2, a, second ? b[2] : b[0], second ? b[3] : b[1]);
    }
}

// All that a warp accumulates in one step.
struct RegisterGradients {
    static constexpr int WORDS = 0;   // of device memory
    Sums square[BLOCKS][2][4];        // [rows 16·i][columns 8·j]
    Sums bias[BLOCKS][2];             // warps 4-6; every column holds the same sum
    Sums embedding[3];                // warps 0 and 1: 16 rows × (16 columns, bias)
    Sums classifier1, classifier2;    // 16 × 8 of the first layer; warps 0-3: 16 × 8 of the second, 4-6: biases

    DEVICE explicit RegisterGradients(u32*) {}

    DEVICE void reset() {
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            clear(square[b][0]);
            clear(square[b][1]);
            clear(bias[b]);
        }
        clear(embedding);
        #pragma unroll
        for (int i = 0; i < 4; i++) classifier1[i] = classifier2[i] = 0.0f;
    }

    // Adds one example to the gradient of a block.
    template <int BLOCK, int TILES> DEVICE void add_block(const Thread& me, Example example) {
        const FactorAddresses f = block_factors(me, me.warp);
        const bool biased = me.warp >= 4 && me.warp <= 6;
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            Factor a[2], b[2];
            ldmatrix_transposed(a[0], example.start + f.left + tile * f.left_step);
            ldmatrix_transposed(a[1], example.start + f.left_next + tile * f.left_step);
            ldmatrix_transposed(b[0], example.start + f.right + tile * f.right_step);
            ldmatrix_transposed(b[1], example.start + f.right_next + tile * f.right_step);
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                #pragma unroll
                for (int j = 0; j < 4; j++) {
                    mma(square[BLOCK][i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
                }
                if (biased) mma(bias[BLOCK][i], a[i], ONES, ONES);
            }
        }
    }

    // Adds one example to the gradient of the embedding; `patches` are its input.
    DEVICE void add_embedding(const Thread& me, Example example, TokenRows<FEATURES> patches) {
        if (me.warp >= 2) return;
        #pragma unroll
        for (int tile = 0; tile < TOKEN_TILES; tile++) {
            Factor a, b;
            example.d_embedded().load_left_transposed(me, a, tile * TILE, 2 * me.warp);
            ldmatrix_transposed(b, patches.base + tile * TILE * PITCH<FEATURES> + patches.down(me));
            mma(embedding[0], a, b[0], b[1]);
            mma(embedding[1], a, b[2], b[3]);
            mma(embedding[2], a, ONES, ONES);
        }
    }

    // Adds the examples of a round to a block's gradients, and to the embedding's when that block is the first.
    template <Part, class Memory>
    DEVICE void add_examples(
        const Thread& me, const Memory& memory, int block, int, const PerGroup<int>& tiles, int stage
    ) {
        #pragma unroll 1
        for (int group = 0; group < GROUPS; group++) {
            const Example example = memory.example(group);
            with_all_tiles(group ? tiles[1] : tiles[0], [&](auto count) {
                if (block) add_block<BLOCKS - 1, count.value>(me, example);
                else add_block<0, count.value>(me, example);
            });
            if constexpr (IMAGES) {
                if (block == 0) add_embedding(me, example, memory.inputs(group)[stage]);
            }
        }
    }

    // Adds the last 16 examples to the gradient of the classifier.
    DEVICE void add_classifier(const Thread& me, RecentExamples recent, bool) {
        add_to_classifier(me, me.warp, recent, classifier1, classifier2);
    }

    // Updates every weight whose gradient this warp holds.
    DEVICE void apply(const Thread& me, const Optimizer& optimizer, const Weights& weights) {
        const Updater update = {me, optimizer};
        const int w = me.warp;
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            const int flat = b * BLOCK_STRIDE;
            const BlockWeights block = weights.block(b);
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                const int first = TILE * i;
                #pragma unroll
                for (int j = 0; j < 4; j++) {
                    const Sums& gradient = square[b][i][j];
                    if (w < 6) {
                        update.tile(gradient, flat + FLAT_QUERY, block.query_to_fc1(), DIM * w + first, j);
                    } else {
                        update.tile(gradient, flat + FLAT_FC2, block.fc2(), first, 4 * (w - 6) + j);
                    }
                }
                if (w == 4 || w == 5) {
                    const int row = DIM * (w - 4) + first;
                    update.biases(bias[b][i], flat + FLAT_FC1_BIAS + row, block.fc1_bias().tile(row));
                } else if (w == 6) {
                    update.biases(bias[b][i], flat + FLAT_FC2_BIAS + first, block.fc2_bias().tile(first));
                }
            }
        }
        if (IMAGES && w < 2) {
            const int row = TILE * w;
            update.tile(embedding[0], FLAT_EMBEDDING, weights.embedding(), row, 0);
            update.tile(embedding[1], FLAT_EMBEDDING, weights.embedding(), row, 1);
            update.biases(embedding[2], FLAT_EMBEDDING_BIAS + row, weights.embedding_bias().tile(row));
        }
        if (CAUSAL) return;
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
