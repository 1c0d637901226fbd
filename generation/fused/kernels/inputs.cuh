// From device memory to shared memory: a model's weights as halves, a sample's tokens, and the embedding of both tasks.
#pragma once
#include "forward.cuh"

// What a sample is beside its tokens, in one word.
struct Facts {
    int place, label, length;  // where it stands in its batch, for its dropout; its class; its real tokens
    __device__ __forceinline__ explicit Facts(u32 word)
        : place(word & 0xFFFF), label(word >> 16 & 0xFF), length(word >> 24) {}
};

constexpr u32 TOKEN_BYTES = FEATURES * HALF;
constexpr u32 INPUT_BYTES = ROWS * TOKEN_BYTES;

template <int COLUMNS>
__device__ __forceinline__ void load_matrix(const float* flat, u32 tile, int rows, int index, int threads) {
    for (int i = index; i < rows * COLUMNS / 2; i += threads) {
        int row = 2 * i / COLUMNS, column = 2 * i % COLUMNS;
        store_word(tile + chunk_at<COLUMNS>(row, column / 8) + column % 8 * HALF, pack(flat[2 * i], flat[2 * i + 1]));
    }
}

__device__ __forceinline__ void load_biases(const float* flat, u32 biases, int count, int index, int threads) {
    for (int i = index; i < count; i += threads) store_float(biases + i * FLOAT, flat[i]);
}

// All weights of a model; the classes that do not exist get zeros.
__device__ __forceinline__ void load_weights(const float* flat, u32 start, int index, int threads) {
    for (int b = 0; b < BLOCKS; b++) {
        const float* block = flat + b * BLOCK_STRIDE;
        const u32 weights = start + b * W_BLOCK, biases = start + b * B_BLOCK;
        // query, key, value, output, fc1
        load_matrix<DIM>(block + FLAT_QUERY, weights, 4 * DIM + HIDDEN, index, threads);
        load_matrix<HIDDEN>(block + FLAT_FC2, weights + W_FC2, DIM, index, threads);
        load_biases(block + FLAT_FC1_BIAS, biases + B_FC1, HIDDEN, index, threads);
        load_biases(block + FLAT_FC2_BIAS, biases + B_FC2, DIM, index, threads);
    }
    if (IMAGES) {
        load_matrix<FEATURES>(flat + FLAT_EMBEDDING, start + W_EMBEDDING, DIM, index, threads);
        load_biases(flat + FLAT_EMBEDDING_BIAS, start + B_EMBEDDING, DIM, index, threads);
    }
    load_matrix<DIM>(flat + FLAT_CLASSIFIER1, start + W_CLASSIFIER1, DIM, index, threads);
    load_biases(flat + FLAT_CLASSIFIER1_BIAS, start + B_CLASSIFIER1, DIM, index, threads);
    load_matrix<DIM>(flat + FLAT_CLASSIFIER2, start + W_CLASSIFIER2, CLASSES, index, threads);
    for (int i = CLASSES * DIM / 2 + index; i < TILE * DIM / 2; i += threads)
        store_word(start + W_CLASSIFIER2 + i * FLOAT, 0);
    load_biases(flat + FLAT_CLASSIFIER2_BIAS, start + B_CLASSIFIER2, CLASSES, index, threads);
    for (int i = CLASSES + index; i < TILE; i += threads) store_float(start + B_CLASSIFIER2 + i * FLOAT, 0.0f);
}

// Starts to copy the rows of this warp's tile, which it alone reads until the end of the forward pass.
__device__ __forceinline__ void start_tokens(const Thread& me, const u16* sample, u32 input) {
    constexpr int chunks = FEATURES / 8;
    #pragma unroll
    for (int i = me.lane; i < TILE * chunks; i += WARP) {
        int row = me.tile * TILE + i / chunks, chunk = i % chunks;
        if (row < TOKENS) start_copy(input + chunk_at<FEATURES>(row, chunk), sample + row * FEATURES + chunk * 8);
    }
}

// The embedded tokens, in front of the first dropout. `positions` [TOKENS, DIM] is added to images; words bring theirs.
__device__ __forceinline__ void embed(
    const Thread& me, float (&x)[4][4], u32 start, u32 input, const float* positions
) {
    const int first = me.tile * TILE;
    u32 rows[FEATURES / 16][4];
    load_rows<FEATURES>(me, rows, {input, 0});
    if (IMAGES) {
        start_with_biases(me, x, start + B_EMBEDDING);
        multiply_rows<FEATURES, ADD>(me, x, rows, {start, W_EMBEDDING});
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + me.row + 8 * half;
            const int real = row < TOKENS ? row : TOKENS - 1;  // padding may hold anything
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                float a, b;
                read_floats(a, b, positions + real * DIM + 8 * j + me.pair);
                x[j][2 * half] += a, x[j][2 * half + 1] += b;
            }
        }
    } else {
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            #pragma unroll
            for (int half = 0; half < 2; half++)
                unpack(x[j][2 * half], x[j][2 * half + 1], rows[j / 2 % (FEATURES / 16)][j % 2 * 2 + half]);
        }
    }
}
