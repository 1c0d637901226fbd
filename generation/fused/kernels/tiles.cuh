// Matrices of halves in shared memory, and what the matrix units make of them.
//
// A tile of 16, 32 or 64 columns keeps its rows without padding; the 16-byte chunks of a row change places by its row
// number, so that the eight rows a matrix load touches lie in different banks. Three kinds of product:
//
//     multiply_rows      a·tileᵀ      x·Wᵀ of a forward pass, q·kᵀ
//     multiply_columns   a·tile       dy·W of a backward pass, p·v
//     weight gradients   dyᵀ·x        both factors from tiles, summed over token rows (gradients.cuh)
#pragma once
#include "model.cuh"

template <int COLUMNS> constexpr u32 PITCH = COLUMNS * HALF;

// Byte of chunk `chunk` (eight halves) of row `row`.
template <int COLUMNS> __device__ __forceinline__ u32 chunk_at(int row, int chunk) {
    constexpr int rows_per_line = 128 / PITCH<COLUMNS>;  // rows that fill the 32 banks once
    constexpr int chunks = COLUMNS / 8;
    return row * PITCH<COLUMNS> + 16 * (chunk ^ (row / rows_per_line % chunks));
}

// Where a tile lies: `offset` bytes, known to the compiler, behind a `base` that is a multiple of 128.
struct Tile {
    u32 base, offset;
};

// The address each lane gives to a matrix load at rows 0-15, chunks 0-1 of a tile. "Down" takes the lower eight rows as
// the second matrix, "across" the right eight columns.
template <int COLUMNS> __device__ __forceinline__ u32 down(const Thread& me) {
    return chunk_at<COLUMNS>(me.lane % 16, me.lane / 16);
}
template <int COLUMNS> __device__ __forceinline__ u32 across(const Thread& me) {
    return chunk_at<COLUMNS>(me.lane % 8 + me.lane / 16 * 8, me.lane / 8 % 2);
}

// The same elsewhere in the tile: `row` a multiple of 8, `chunk` even. Written so that one register for each base, lane
// pattern and chunk serves all tiles and rows, whose places are then constants inside the instruction.
template <int COLUMNS> __device__ __forceinline__ u32 at(Tile tile, u32 pattern, int row, int chunk) {
    return ((tile.base + pattern) ^ (16 * chunk)) + (tile.offset + row * PITCH<COLUMNS>);
}

// Sums of the matrix units as halves, in the order in which the units take a left factor.
template <int N> __device__ __forceinline__ void pack_rows(u32 (&a)[N / 2][4], const float (&c)[N][4]) {
    #pragma unroll
    for (int j = 0; j < N; j++) {
        a[j / 2][j % 2 * 2] = pack(c[j][0], c[j][1]);
        a[j / 2][j % 2 * 2 + 1] = pack(c[j][2], c[j][3]);
    }
}

// Writes the 16 rows of this warp's tile, from the even chunk `chunk` on.
template <int COLUMNS, int K>
__device__ __forceinline__ void store_rows(const Thread& me, Tile tile, const u32 (&a)[K][4], int chunk = 0) {
    tile.base += me.tile * TILE * PITCH<COLUMNS>;
    #pragma unroll
    for (int k = 0; k < K; k++) store_matrices(at<COLUMNS>(tile, down<COLUMNS>(me), 0, chunk + 2 * k), a[k]);
}

// Reads them back.
template <int COLUMNS, int K> __device__ __forceinline__ void load_rows(const Thread& me, u32 (&a)[K][4], Tile tile) {
    tile.base += me.tile * TILE * PITCH<COLUMNS>;
    #pragma unroll
    for (int k = 0; k < K; k++) load_matrices(a[k], at<COLUMNS>(tile, down<COLUMNS>(me), 0, 2 * k));
}

// c (+)= a·b for one or for two neighbouring tiles of b; `first`, known to the compiler, begins the sum.
__device__ __forceinline__ void multiply(bool first, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (first) mma_first(c, a, b0, b1);
    else mma(c, a, b0, b1);
}
__device__ __forceinline__ void multiply(
    bool first, float (&left)[4], float (&right)[4], const u32 (&a)[4], const u32 (&b)[4]
) {
    multiply(first, left, a, b[0], b[1]);
    multiply(first, right, a, b[2], b[3]);
}

enum Start { FROM_ZERO, ADD };

// c[16 × 8N] (+)= a[16 × 16K] · tile[8N × 16K]ᵀ
template <int COLUMNS, Start START = FROM_ZERO, int N, int K>
__device__ __forceinline__ void multiply_rows(const Thread& me, float (&c)[N][4], const u32 (&a)[K][4], Tile tile) {
    #pragma unroll
    for (int n = 0; n < N; n += 2) {
        #pragma unroll
        for (int k = 0; k < K; k++) {
            u32 b[4];
            load_matrices(b, at<COLUMNS>(tile, across<COLUMNS>(me), 8 * n, 2 * k));
            multiply(START == FROM_ZERO && k == 0, c[n], c[n + 1], a[k], b);
        }
    }
}

// c[16 × 8N] (+)= a[16 × 16K] · tile[16K × 8N]
template <int COLUMNS, Start START = FROM_ZERO, int N, int K>
__device__ __forceinline__ void multiply_columns(const Thread& me, float (&c)[N][4], const u32 (&a)[K][4], Tile tile) {
    #pragma unroll
    for (int k = 0; k < K; k++) {
        #pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 b[4];
            load_matrices_transposed(b, at<COLUMNS>(tile, down<COLUMNS>(me), 16 * k, n));
            multiply(START == FROM_ZERO && k == 0, c[n], c[n + 1], a[k], b);
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
