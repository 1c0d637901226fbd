// Weight gradients: dW = Σ over samples and tokens of dyᵀ·x, kept in registers for a whole step, each by one warp
// alone.
//
// A block's six matrices are eight squares of 32×32, one per warp:
//
//     warp      0        1        2        3            4, 5                  6, 7
//     dW        query    key      value    output       fc1, upper and lower  fc2, left and right half
//     from      dQᵀ·X1   dKᵀ·X1   dVᵀ·X1   DAᵀ·JOINED   DHIDDENᵀ·X2           DYᵀ·HIDDEN
//
// Biases are the same with x = 1: fc1's by warps 4 and 5, fc2's by warp 6. The embedding (images only) is made by
// warps 0 and 1, the classifier by all, from the rows of the last 16 samples. After the last sample of a step the warp
// updates its own weights, in device memory and their halves in shared memory: no gradient is ever written down.
#pragma once
#include "backward.cuh"
#include "classifier.cuh"
#include "update.cuh"

constexpr int WARPS = 8, GROUPS = WARPS / GROUP_WARPS;

// Which two matrices a warp multiplies: bytes from the start of a sample, and of their rows.
struct Factors {
    u32 left, left_next, left_step;      // dy: columns 0-15 and 16-31 of the warp's 32; bytes from 16 rows to the next
    u32 right, right_next, right_step;   // x
};

__device__ __forceinline__ Factors block_factors(const Thread& me, int block) {
    const u32 kept = block * KEPT_BLOCK;
    const int w = me.warp;
    Factors f;
    const bool wide_left = w == 4 || w == 5, wide_right = w >= 6;
    u32 left = w == 0 ? QUERIES : w == 1 ? KEYS : w == 2 ? VALUES : w == 3 ? DA : wide_left ? DHIDDEN : DY;
    u32 right = kept + (w <= 2 ? X1 : w == 3 ? JOINED : wide_left ? X2 : HIDDEN_ROWS);
    u32 left_lane = wide_left ? across<HIDDEN>(me) ^ (w == 5 ? 64u : 0u) : across<DIM>(me);
    u32 right_lane = wide_right ? down<HIDDEN>(me) ^ (w == 7 ? 64u : 0u) : down<DIM>(me);
    f.left = left + left_lane, f.left_next = left + (left_lane ^ 32u);
    f.right = right + right_lane, f.right_next = right + (right_lane ^ 32u);
    f.left_step = TILE * (wide_left ? PITCH<HIDDEN> : PITCH<DIM>);
    f.right_step = TILE * (wide_right ? PITCH<HIDDEN> : PITCH<DIM>);
    return f;
}

template <int N> __device__ __forceinline__ void clear(float (&c)[N][4]) {
    #pragma unroll
    for (int j = 0; j < N; j++) c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0.0f;
}

// All that a warp accumulates in one step.
struct Gradients {
    float square[BLOCKS][2][4][4];   // [rows 16·i][columns 8·j]
    float bias[BLOCKS][2][4];        // warps 4-6; every column holds the same sum
    float embedding[3][4];           // warps 0 and 1: 16 rows × (16 columns, bias)
    float classifier1[4], classifier2[4];  // 16 × 8 of the first layer; warps 0-3: 16 × 8 of the second, 4-6: biases

    __device__ __forceinline__ void reset() {
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

    // Adds one sample's share of a block.
    template <int BLOCK, int TILES>
    __device__ __forceinline__ void add_block(const Thread& me, const Tokens<TILES>&, u32 sample) {
        const Factors f = block_factors(me, BLOCK);
        const bool biased = me.warp >= 4 && me.warp <= 6;
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            u32 a[2][4], b[2][4];
            load_matrices_transposed(a[0], sample + f.left + tile * f.left_step);
            load_matrices_transposed(a[1], sample + f.left_next + tile * f.left_step);
            load_matrices_transposed(b[0], sample + f.right + tile * f.right_step);
            load_matrices_transposed(b[1], sample + f.right_next + tile * f.right_step);
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                #pragma unroll
                for (int j = 0; j < 4; j++)
                    mma(square[BLOCK][i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
                if (biased) mma(bias[BLOCK][i], a[i], ONES, ONES);
            }
        }
    }

    // Adds one sample's share of the embedding: DO holds the gradients of its output, `patches` its input.
    __device__ __forceinline__ void add_embedding(const Thread& me, u32 sample, u32 patches) {
        if (me.warp >= 2) return;
        #pragma unroll
        for (int tile = 0; tile < GROUP_WARPS; tile++) {
            u32 a[4], b[4];
            load_matrices_transposed(a, at<DIM>({sample, DO}, across<DIM>(me), tile * TILE, 2 * me.warp));
            load_matrices_transposed(b, patches + tile * TILE * PITCH<FEATURES> + down<FEATURES>(me));
            mma(embedding[0], a, b[0], b[1]);
            mma(embedding[1], a, b[2], b[3]);
            mma(embedding[2], a, ONES, ONES);
        }
    }

    // Adds the share of the last 16 samples to the classifier.
    __device__ __forceinline__ void add_classifier(const Thread& me, u32 recent) {
        u32 a[4], b[4];
        const u32 right = me.warp % 4 / 2 * 32;    // the pair of column tiles that holds this warp's
        const bool second = me.warp % 2;
        load_matrices_transposed(a, recent + DZ_ROWS + (across<DIM>(me) ^ (32u * (me.warp / 4))));
        load_matrices_transposed(b, recent + POOLED_ROWS + (down<DIM>(me) ^ right));
        mma(classifier1, a, second ? b[2] : b[0], second ? b[3] : b[1]);
        if (me.warp == 4 || me.warp == 5) {
            load_matrices_transposed(a, recent + DZ_ROWS + (across<DIM>(me) ^ (32u * (me.warp - 4))));
            mma(classifier2, a, ONES, ONES);
        } else if (me.warp != 7) {
            load_matrices_transposed(a, recent + DLOGIT_ROWS + across<TILE>(me));
            load_matrices_transposed(b, recent + ACTIVE_ROWS + (down<DIM>(me) ^ right));
            if (me.warp == 6) b[0] = b[1] = b[2] = b[3] = ONES;
            mma(classifier2, a, second ? b[2] : b[0], second ? b[3] : b[1]);
        }
    }

    // Updates every weight this warp has a gradient of.
    __device__ __forceinline__ void apply(const Thread& me, const Optimizer& optimizer, u32 start);
};

// Updates 16 rows × 8 columns of a matrix of COLUMNS: `flat` is its place in the flat vector, `tile` in shared memory.
template <int COLUMNS>
__device__ __forceinline__ void update_tile(
    const Thread& me, const Optimizer& optimizer, const float (&gradient)[4], int flat, u32 tile, int row, int chunk,
    int rows = TILE
) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = row + me.row + 8 * half;
        if (r >= rows + row) continue;
        int index = flat + r * COLUMNS + 8 * chunk + me.pair;
        float a = optimizer.step(index, gradient[2 * half]), b = optimizer.step(index + 1, gradient[2 * half + 1]);
        store_word(tile + chunk_at<COLUMNS>(r, chunk) + me.pair * HALF, pack(a, b));
    }
}

// Updates 16 biases whose gradients stand in every column.
__device__ __forceinline__ void update_biases(
    const Thread& me, const Optimizer& optimizer, const float (&gradient)[4], int flat, u32 biases, int count = TILE
) {
    if (me.pair != 0) return;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        int i = me.row + 8 * half;
        if (i < count) store_float(biases + i * FLOAT, optimizer.step(flat + i, gradient[2 * half]));
    }
}

__device__ __forceinline__ void Gradients::apply(const Thread& me, const Optimizer& optimizer, u32 start) {
    const int w = me.warp;
    #pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const int flat = b * BLOCK_STRIDE;
        const u32 weights = start + b * W_BLOCK, biases = start + b * B_BLOCK;
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                if (w < 6) {  // six squares, one below the other
                    update_tile<DIM>(me, optimizer, square[b][i][j], flat + FLAT_QUERY, weights, DIM * w + TILE * i, j);
                } else {
                    update_tile<HIDDEN>(
                        me, optimizer, square[b][i][j], flat + FLAT_FC2, weights + W_FC2, TILE * i, 4 * (w - 6) + j
                    );
                }
            }
            const int first = TILE * i;
            if (w == 4 || w == 5) {
                const int row = DIM * (w - 4) + first;
                update_biases(me, optimizer, bias[b][i], flat + FLAT_FC1_BIAS + row, biases + B_FC1 + row * FLOAT);
            } else if (w == 6) {
                update_biases(me, optimizer, bias[b][i], flat + FLAT_FC2_BIAS + first, biases + B_FC2 + first * FLOAT);
            }
        }
    }
    if (IMAGES && w < 2) {
        update_tile<FEATURES>(me, optimizer, embedding[0], FLAT_EMBEDDING, start + W_EMBEDDING, TILE * w, 0);
        update_tile<FEATURES>(me, optimizer, embedding[1], FLAT_EMBEDDING, start + W_EMBEDDING, TILE * w, 1);
        update_biases(
            me, optimizer, embedding[2], FLAT_EMBEDDING_BIAS + TILE * w, start + B_EMBEDDING + TILE * w * FLOAT
        );
    }
    update_tile<DIM>(me, optimizer, classifier1, FLAT_CLASSIFIER1, start + W_CLASSIFIER1, TILE * (w / 4), w % 4);
    if (w < 4) {
        update_tile<DIM>(me, optimizer, classifier2, FLAT_CLASSIFIER2, start + W_CLASSIFIER2, 0, w, CLASSES);
    } else if (w < 6) {
        const int row = TILE * (w - 4);
        update_biases(me, optimizer, classifier2, FLAT_CLASSIFIER1_BIAS + row, start + B_CLASSIFIER1 + row * FLOAT);
    } else if (w == 6) {
        update_biases(me, optimizer, classifier2, FLAT_CLASSIFIER2_BIAS, start + B_CLASSIFIER2, CLASSES);
    }
}
