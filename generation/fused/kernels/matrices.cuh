// Matrices: token rows in registers, matrices of halves in shared memory, and their products.
//
//     multiply              c = a·m       dy·W of a backward pass
//     multiply_transposed   c = a·mᵀ      x·Wᵀ of a forward pass
//     weight gradients      c += dyᵀ·x    both factors from shared memory, summed over token rows (gradients.cuh)
#pragma once
#include "model.cuh"

// ---- in registers ---------------------------------------------------------------------------------------------------
//
// These are names for arrays, not structs: with structs the compiler (NVRTC 13) generates code that spills registers.

// 16 × 8 sums of a warp. A lane holds two neighboring columns of an upper row (half 0) and of a lower row (half 1).
using Sums = float[4];

// 16 × 16 halves of a warp, in the layout of a left factor; or two neighboring right factors of 16 × 8.
using Factor = u32[4];

// The 16 token rows of a warp: as sums, in chunks of eight columns; and as halves, in tiles of 16.
template <int COLUMNS> using Rows = Sums[COLUMNS / 8];
template <int COLUMNS> using PackedRows = Factor[COLUMNS / 16];

// One number for each of the lane's two rows.
template <class Number> using PerRow = Number[2];

// The left and the right of the lane's two columns, in its upper or lower row.
DEVICE float& left(Sums& sums, int half) { return sums[2 * half]; }
DEVICE float& right(Sums& sums, int half) { return sums[2 * half + 1]; }
DEVICE float left(const Sums& sums, int half) { return sums[2 * half]; }
DEVICE float right(const Sums& sums, int half) { return sums[2 * half + 1]; }

// Both of them as halves, in chunk j of packed rows.
template <int TILES> DEVICE u32& pair(Factor (&rows)[TILES], int j, int half) {
    return rows[j / 2][j % 2 * 2 + half];
}
template <int TILES> DEVICE u32 pair(const Factor (&rows)[TILES], int j, int half) {
    return rows[j / 2][j % 2 * 2 + half];
}

// Rows as halves, in the layout of a left factor.
template <int CHUNKS> DEVICE void pack_rows(PackedRows<8 * CHUNKS>& halves, const Sums (&rows)[CHUNKS]) {
    #pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        #pragma unroll
        for (int half = 0; half < 2; half++) pair(halves, j, half) = pack(left(rows[j], half), right(rows[j], half));
    }
}

// The same with negative numbers set to zero.
template <int CHUNKS> DEVICE void pack_rows_relu(PackedRows<8 * CHUNKS>& halves, const Sums (&rows)[CHUNKS]) {
    #pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            pair(halves, j, half) = pack_relu(left(rows[j], half), right(rows[j], half));
        }
    }
}

template <int COUNT> DEVICE void clear(Sums (&sums)[COUNT]) {
    #pragma unroll
    for (int j = 0; j < COUNT; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
}
template <int CHUNKS> DEVICE void copy_rows(Sums (&to)[CHUNKS], const Sums (&from)[CHUNKS]) {
    #pragma unroll
    for (int i = 0; i < 4 * CHUNKS; i++) to[i / 4][i % 4] = from[i / 4][i % 4];
}
template <int CHUNKS> DEVICE void add_rows(Sums (&to)[CHUNKS], const Sums (&rows)[CHUNKS]) {
    #pragma unroll
    for (int i = 0; i < 4 * CHUNKS; i++) to[i / 4][i % 4] += rows[i / 4][i % 4];
}

// Over the lanes of one row.
DEVICE float row_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
DEVICE float row_max(float x) {
    x = fmaxf(x, shuffle_xor(x, 1));
    return fmaxf(x, shuffle_xor(x, 2));
}

// ---- in shared memory -----------------------------------------------------------------------------------------------

// Bytes per row: those of the columns, rounded up to a power of two.
template <int COLUMNS> constexpr u32 PITCH = HALF * (COLUMNS <= 16 ? 16 : COLUMNS <= 32 ? 32 : COLUMNS <= 64 ? 64 : 128);

// Byte of chunk `chunk` (eight halves) of row `row`. The 16-byte chunks of a row are permuted by its row number, so
// that the eight rows of a matrix load lie in different banks. Rows 8 apart have the same order.
template <int COLUMNS> DEVICE u32 chunk_at(int row, int chunk) {
    constexpr int rows_per_line = PITCH<COLUMNS> < 128 ? 128 / PITCH<COLUMNS> : 1;  // rows that fill the 32 banks once
    constexpr int chunks = 8 / rows_per_line;
    return row * PITCH<COLUMNS> + 16 * (chunk ^ (row / rows_per_line % chunks));
}

// A matrix of halves, `offset` bytes (a compile-time constant) behind `base`, a multiple of 128 and of the pitch.
template <int M, int N> struct Matrix {
    static constexpr u32 BYTES = M * PITCH<N>;
    u32 base, offset;

    DEVICE u32 address() const { return base + offset; }

    // The address each lane gives to a matrix load at rows 0-15, chunks 0-1. "Down" takes the lower eight rows as the
    // second matrix, "across" the right eight columns.
    DEVICE static u32 down(const Thread& me) { return chunk_at<N>(me.lane % 16, me.lane / 16); }
    DEVICE static u32 across(const Thread& me) {
        return chunk_at<N>(me.lane % 8 + me.lane / 16 * 8, me.lane / 8 % 2);
    }

    // The address of the lane's own two columns of chunk 0.
    DEVICE static u32 own(const Thread& me) { return chunk_at<N>(me.row, 0) + me.pair * HALF; }

    // The same elsewhere in the matrix: `row` a multiple of 8, `chunk` even unless it is the lane's own. Written so
    // that one register for each base, lane pattern and chunk serves all matrices and rows, whose offsets are then
    // immediates.
    DEVICE u32 at(u32 pattern, int row, int chunk) const {
        return ((base + pattern) ^ (16 * chunk)) + (offset + row * PITCH<N>);
    }

    // The 16 × 16 numbers at that address, or their transpose, as a factor of a product.
    DEVICE void load_left(const Thread& me, Factor& a, int row, int chunk) const {
        ldmatrix(a, at(down(me), row, chunk));
    }
    DEVICE void load_left_transposed(const Thread& me, Factor& a, int row, int chunk) const {
        ldmatrix_transposed(a, at(across(me), row, chunk));
    }
    DEVICE void load_right(const Thread& me, Factor& b, int row, int chunk) const {
        ldmatrix_transposed(b, at(down(me), row, chunk));
    }
    DEVICE void load_right_transposed(const Thread& me, Factor& b, int row, int chunk) const {
        ldmatrix(b, at(across(me), row, chunk));
    }
};

// The rows of all tokens of an example; each of its four warps writes and reads 16 of them.
template <int N> using TokenRows = Matrix<ROWS, N>;

// Writes the 16 rows of this warp, from the even chunk `chunk` on.
template <int N, int TILES>
DEVICE void store_rows(const Thread& me, TokenRows<N> matrix, const Factor (&rows)[TILES], int chunk = 0) {
    matrix.base += me.tile * TILE * PITCH<N>;
    #pragma unroll
    for (int k = 0; k < TILES; k++) {
        if constexpr (HAS_STMATRIX) {
            stmatrix(matrix.at(matrix.down(me), 0, chunk + 2 * k), rows[k]);
        } else {
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                store_word(matrix.at(matrix.own(me), i % 2 * 8, chunk + 2 * k + i / 2), rows[k][i]);
            }
        }
    }
}

// Reads them back.
template <int N> DEVICE void load_rows(const Thread& me, PackedRows<N>& rows, TokenRows<N> matrix) {
    matrix.base += me.tile * TILE * PITCH<N>;
    #pragma unroll
    for (int k = 0; k < N / 16; k++) matrix.load_left(me, rows[k], 0, 2 * k);
}

// Floats in shared memory, one per column.
template <int N> struct Biases {
    u32 address;
    DEVICE Biases<TILE> tile(int first) const { return {address + first * FLOAT}; }  // 16 of them
};

// ---- products -------------------------------------------------------------------------------------------------------

constexpr u32 ONES = 0x3C003C00;  // two halves of 1

// c (+)= a·b for one or for two neighboring right factors; `first`, a compile-time constant, begins the sum.
DEVICE void accumulate(bool first, Sums& c, const Factor& a, u32 b0, u32 b1) {
    if (first) mma_first(c, a, b0, b1);
    else mma(c, a, b0, b1);
}
DEVICE void accumulate(bool first, Sums& left, Sums& right, const Factor& a, const Factor& b) {
    accumulate(first, left, a, b[0], b[1]);
    accumulate(first, right, a, b[2], b[3]);
}

enum Start { FROM_ZERO, ADD };

// c (+)= a·m
template <Start START = FROM_ZERO, int M, int N>
DEVICE void multiply(const Thread& me, Rows<N>& c, const PackedRows<M>& a, Matrix<M, N> m) {
    #pragma unroll
    for (int k = 0; k < M / 16; k++) {
        #pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            Factor b;
            m.load_right(me, b, 16 * k, j);
            accumulate(START == FROM_ZERO && k == 0, c[j], c[j + 1], a[k], b);
        }
    }
}

// c (+)= a·mᵀ
template <Start START = FROM_ZERO, int M, int N>
DEVICE void multiply_transposed(const Thread& me, Rows<M>& c, const PackedRows<N>& a, Matrix<M, N> m) {
    #pragma unroll
    for (int j = 0; j < M / 8; j += 2) {
        #pragma unroll
        for (int k = 0; k < N / 16; k++) {
            Factor b;
            m.load_right_transposed(me, b, 8 * j, 2 * k);
            accumulate(START == FROM_ZERO && k == 0, c[j], c[j + 1], a[k], b);
        }
    }
}

// c = x·Wᵀ + b
template <int M, int N>
DEVICE void linear(const Thread& me, Rows<M>& c, const PackedRows<N>& x, Matrix<M, N> weights, Biases<M> biases) {
    #pragma unroll
    for (int j = 0; j < M / 8; j++) {
        load_floats(c[j][0], c[j][1], biases.address + (8 * j + me.pair) * FLOAT);
        c[j][2] = c[j][0];
        c[j][3] = c[j][1];
    }
    multiply_transposed<ADD>(me, c, x, weights);
}
