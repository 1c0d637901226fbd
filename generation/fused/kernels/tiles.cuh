// Matrices of halves in shared memory, and what the matrix units make of them.
//
// A tile of 16, 32 or 64 columns keeps its rows without padding; the 16-byte chunks of a row change places by its row
// number, so that the eight rows a matrix load touches lie in different banks. Three shapes of product:
//
//     multiply_rows      c += a·tileᵀ      x·Wᵀ of a forward pass, q·kᵀ
//     multiply_columns   c += a·tile       dy·W of a backward pass, p·v
//     outer              c += dyᵀ·x        a weight gradient: both factors from tiles, summed over token rows
#pragma once
#include "model.cuh"

template <int COLUMNS> constexpr u32 PITCH = COLUMNS * HALF;

// Byte of chunk `chunk` (eight halves) of row `row`.
template <int COLUMNS> __device__ __forceinline__ u32 chunk_at(int row, int chunk) {
    constexpr int rows_a_line = 128 / PITCH<COLUMNS>;  // rows that fill the 32 banks once
    constexpr int chunks = COLUMNS / 8;
    return row * PITCH<COLUMNS> + 16 * (chunk ^ (row / rows_a_line % chunks));
}

// The address each lane gives to a matrix load at rows 0-15, chunks 0-1 of a tile. «Down» takes the lower eight rows as
// the second matrix, «across» the right eight columns. Elsewhere in the tile: + row·PITCH, ^ 16·(even chunk).
template <int COLUMNS> __device__ __forceinline__ u32 down(const Thread& me) {
    return chunk_at<COLUMNS>(me.lane % 16, me.lane / 16);
}
template <int COLUMNS> __device__ __forceinline__ u32 across(const Thread& me) {
    return chunk_at<COLUMNS>(me.lane % 8 + me.lane / 16 * 8, me.lane / 8 % 2);
}

template <int N> __device__ __forceinline__ void clear(float (&c)[N][4]) {
    #pragma unroll
    for (int j = 0; j < N; j++) c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0.0f;
}

// Sums of the matrix units as halves, in the order in which the units take a left factor.
template <int N> __device__ __forceinline__ void pack_rows(u32 (&a)[N / 2][4], const float (&c)[N][4]) {
    #pragma unroll
    for (int j = 0; j < N; j++) {
        a[j / 2][j % 2 * 2] = pack(c[j][0], c[j][1]);
        a[j / 2][j % 2 * 2 + 1] = pack(c[j][2], c[j][3]);
    }
}

// Writes this warp's 16 rows, starting at row `first` and the even chunk `chunk`.
template <int COLUMNS, int K> __device__ __forceinline__ void store_rows(const Thread& me, u32 tile, const u32 (&a)[K][4], int first, int chunk = 0) {
    u32 start = tile + first * PITCH<COLUMNS>;
    #pragma unroll
    for (int k = 0; k < K; k++) store_matrices(start + (down<COLUMNS>(me) ^ (16 * chunk + 32 * k)), a[k]);
}

// Reads them back.
template <int COLUMNS, int K> __device__ __forceinline__ void load_rows(const Thread& me, u32 (&a)[K][4], u32 tile, int first) {
    u32 start = tile + first * PITCH<COLUMNS>;
    #pragma unroll
    for (int k = 0; k < K; k++) load_matrices(a[k], start + (down<COLUMNS>(me) ^ (32 * k)));
}

// c[16 × 8N] += a[16 × 16K] · tile[8N × 16K]ᵀ
template <int COLUMNS, int N, int K> __device__ __forceinline__ void multiply_rows(const Thread& me, float (&c)[N][4], const u32 (&a)[K][4], u32 tile) {
    #pragma unroll
    for (int n = 0; n < N; n += 2) {
        #pragma unroll
        for (int k = 0; k < K; k++) {
            u32 b[4];
            load_matrices(b, tile + 8 * n * PITCH<COLUMNS> + (across<COLUMNS>(me) ^ (32 * k)));
            mma(c[n], a[k], b[0], b[1]);
            mma(c[n + 1], a[k], b[2], b[3]);
        }
    }
}

// c[16 × 8N] += a[16 × 16K] · tile[16K × 8N]
template <int COLUMNS, int N, int K> __device__ __forceinline__ void multiply_columns(const Thread& me, float (&c)[N][4], const u32 (&a)[K][4], u32 tile) {
    #pragma unroll
    for (int k = 0; k < K; k++) {
        #pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 b[4];
            load_matrices_transposed(b, tile + 16 * k * PITCH<COLUMNS> + (down<COLUMNS>(me) ^ (16 * n)));
            mma(c[n], a[k], b[0], b[1]);
            mma(c[n + 1], a[k], b[2], b[3]);
        }
    }
}

constexpr u32 ONES = 0x3C003C00;  // two halves of 1

// Sums over the lanes of one row.
__device__ __forceinline__ float row_sum(float x) {
    x += exchange(x, 1);
    return x + exchange(x, 2);
}
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, exchange(x, 1));
    return fmaxf(x, exchange(x, 2));
}
