// The forward pass of one sample. Each of its four warps carries 16 token rows through the network in registers; only
// keys and values pass between warps, and what the backward pass needs again is kept in shared memory:
//
//     x ─ LayerNorm ─ X1 ┬ ·W_Q ─ Q ┐
//                        ├ ·W_K ─ K ┼ softmax(Q·Kᵀ/√D_k)·V ─ JOINED ─ ·W_O ─ dropout ─ LayerNorm ─ X2 ─┐
//                        └ ·W_V ─ V ┘                                                                   │
//                                  x ─ dropout ─ (·W_B + b_B) ─ HIDDEN_ROWS ─ ReLU(·W_A + b_A) ─────────┘
#pragma once
#include "dropout.cuh"
#include "norm.cuh"

// What a block's backward pass reads again.
constexpr u32 ROWS32 = ROWS * DIM * HALF, ROWS64 = ROWS * HIDDEN * HALF;
constexpr u32 X1 = 0, JOINED = X1 + ROWS32, X2 = JOINED + ROWS32, HIDDEN_ROWS = X2 + ROWS32;
constexpr u32 KEPT_BLOCK = HIDDEN_ROWS + ROWS64;

// What a lane remembers of a block for its backward pass, [0] its upper row, [1] its lower one.
struct BlockMemory {
    float r1[2], r2[2];            // reciprocal deviations of the two LayerNorms
    float log_sum[HEADS][2];       // log₂ Σ 2^(score·SCORE_TO_POWER)
    u32 kept;                      // dropout: 16 bits of attention's, 16 of the MLP's
};

// The tokens of a sample, as one warp sees them. TILES, the tiles of 16 that hold them, is known to the compiler: every
// length has code of its own, without a branch.
template <int TILES> struct Tokens {
    int length;                    // real tokens
    bool busy;                     // this warp holds one of the tiles
    bool real[2];                  // the lane's rows are real tokens
    __device__ __forceinline__ Tokens(const Thread& me, int tokens) {
        length = FULL_LENGTH ? TOKENS : tokens;
        busy = me.tile < TILES;
        real[0] = me.tile * TILE + me.row < length;
        real[1] = me.tile * TILE + me.row + 8 < length;
    }
};

// Calls `code` with the tokens of a sample of this length.
template <class Code> __device__ __forceinline__ void with_tokens(const Thread& me, int length, Code code) {
    if constexpr (FULL_LENGTH) {
        code(Tokens<GROUP_WARPS>(me, length));
    } else {
        if (length <= TILE) code(Tokens<1>(me, length));
        else if (length <= 2 * TILE) code(Tokens<2>(me, length));
        else if (length <= 3 * TILE) code(Tokens<3>(me, length));
        else code(Tokens<4>(me, length));
    }
}

template <int N> __device__ __forceinline__ void start_with_biases(const Thread& me, float (&c)[N][4], u32 bias) {
    #pragma unroll
    for (int j = 0; j < N; j++) {
        load_floats(c[j][0], c[j][1], bias + (8 * j + me.pair) * FLOAT);
        c[j][2] = c[j][0], c[j][3] = c[j][1];
    }
}

// x·W of queries, keys and values; the latter two go to shared memory.
__device__ __forceinline__ void project(
    const Thread& me, const u32 (&x)[2][4], u32 weights, u32 (&query)[2][4], Tile keys, Tile values
) {
    float c[4][4];
    u32 rows[2][4];
    multiply_rows<DIM>(me, c, x, {weights, W_QUERY});
    pack_rows(query, c);
    multiply_rows<DIM>(me, c, x, {weights, W_KEY});
    pack_rows(rows, c);
    store_rows<DIM>(me, keys, rows);
    multiply_rows<DIM>(me, c, x, {weights, W_VALUE});
    pack_rows(rows, c);
    store_rows<DIM>(me, values, rows);
}

// Pushes the scores of tokens that do not exist to −∞; only the last tile has such.
template <int TILES>
__device__ __forceinline__ void hide_padding(
    const Thread& me, const Tokens<TILES>& tokens, float (&score)[4], int column
) {
    if (column < (TILES - 1) * TILE || (FULL_LENGTH && column + 8 <= TOKENS)) return;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (column + me.pair + i % 2 >= tokens.length) score[i] = -INFINITE;
    }
}

// joined[head] = softmax(q·kᵀ/√D_k)·v for the warp's 16 rows
template <int TILES>
__device__ __forceinline__ void attend(
    const Thread& me, const Tokens<TILES>& tokens, const u32 (&query)[4], Tile keys, Tile values, int head,
    u32 (&joined)[4], float (&log_sum)[2]
) {
    float score[2 * TILES][4], largest[2] = {-INFINITE, -INFINITE};
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        u32 b[4];
        load_matrices(b, at<DIM>(keys, across<DIM>(me), tile * TILE, 2 * head));
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            float (&s)[4] = score[2 * tile + side];
            if (tile * TILE + 8 * side >= TOKENS) continue;
            mma_first(s, query, b[2 * side], b[2 * side + 1]);
            hide_padding(me, tokens, s, tile * TILE + 8 * side);
            largest[0] = fmaxf(largest[0], fmaxf(s[0], s[1]));
            largest[1] = fmaxf(largest[1], fmaxf(s[2], s[3]));
        }
    }
    float shift[2] = {row_max(largest[0]) * SCORE_TO_POWER, row_max(largest[1]) * SCORE_TO_POWER};
    float out[2][4], sum[4];
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        u32 p[4], b[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float (&s)[4] = score[2 * tile + i / 2];
            const int half = i % 2;
            p[i] = 0;
            if (tile * TILE + 8 * (i / 2) >= TOKENS) continue;
            p[i] = pack(power_of_two(s[2 * half] * SCORE_TO_POWER - shift[half]),
                        power_of_two(s[2 * half + 1] * SCORE_TO_POWER - shift[half]));
        }
        load_matrices_transposed(b, at<DIM>(values, down<DIM>(me), tile * TILE, 2 * head));
        multiply(tile == 0, out[0], out[1], p, b);
        multiply(tile == 0, sum, p, ONES, ONES);
    }
    float scale[2] = {reciprocal(sum[0]), reciprocal(sum[2])};
    log_sum[0] = shift[0] + log_two(sum[0]);
    log_sum[1] = shift[1] + log_two(sum[2]);
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        int half = i % 2;
        joined[i] = pack(out[i / 2][2 * half] * scale[half], out[i / 2][2 * half + 1] * scale[half]);
    }
}

// One block, in place. `kept` is where the rows for the backward pass go; none are kept when not training.
template <bool TRAINING, int TILES>
__device__ __forceinline__ void forward_block(
    const Thread& me, const Tokens<TILES>& tokens, float (&x)[4][4], int block, u32 start, u32 kept, Tile queries,
    Tile keys, Tile values, const Dropout& dropout, float epsilon, BlockMemory& memory
) {
    const u32 weights = start + block * W_BLOCK, bias = start + block * B_BLOCK;
    u32 query[HEADS][4], rows[2][4];
    if (tokens.busy) {
        normalize(x, memory.r1, epsilon, tokens.real);
        pack_rows(rows, x);
        if (TRAINING) store_rows<DIM>(me, {kept, X1}, rows);
        project(me, rows, weights, query, keys, values);
        if (TRAINING) store_rows<DIM>(me, queries, query);
    }
    group_barrier(me.group);
    if (!tokens.busy) return;
    #pragma unroll
    for (int head = 0; head < HEADS; head++) {
        attend(me, tokens, query[head], keys, values, head, rows[head], memory.log_sum[head]);
    }
    if (TRAINING) store_rows<DIM>(me, {kept, JOINED}, rows);
    multiply_rows<DIM>(me, x, rows, {weights, W_OUTPUT});
    if (TRAINING) memory.kept = drop(me, x, dropout, 1 + 2 * block);
    normalize(x, memory.r2, epsilon, tokens.real);
    pack_rows(rows, x);
    if (TRAINING) store_rows<DIM>(me, {kept, X2}, rows);
    float wide[8][4];
    u32 hidden[4][4];
    start_with_biases(me, wide, bias + B_FC1);
    multiply_rows<DIM, ADD>(me, wide, rows, {weights, W_FC1});
    #pragma unroll
    for (int j = 0; j < 8; j++) {
        hidden[j / 2][j % 2 * 2] = pack_relu(wide[j][0], wide[j][1]);
        hidden[j / 2][j % 2 * 2 + 1] = pack_relu(wide[j][2], wide[j][3]);
    }
    if (TRAINING) store_rows<HIDDEN>(me, {kept, HIDDEN_ROWS}, hidden);
    start_with_biases(me, x, bias + B_FC2);
    multiply_rows<HIDDEN, ADD>(me, x, hidden, {weights, W_FC2});
    if (TRAINING) memory.kept |= drop(me, x, dropout, 2 + 2 * block) << 16;
}

// The sum of x over the warp's 16 rows, one column per lane: lane i·4 + pair/2 holds column 8·(i/2) + pair + i%2,
// where the eight values of each lane were folded onto the eight lanes of a column, halving their number at each
// exchange.
__device__ __forceinline__ float column_sums(const Thread& me, const float (&x)[4][4]) {
    float value[8];
    #pragma unroll
    for (int j = 0; j < 8; j++) value[j] = x[j / 2][j % 2] + x[j / 2][j % 2 + 2];
    #pragma unroll
    for (int width = 4; width >= 1; width /= 2) {
        bool upper = me.row & width;
        #pragma unroll
        for (int j = 0; j < width; j++) {
            float other = exchange(upper ? value[j] : value[j + width], 4 * width);
            value[j] = (upper ? value[j + width] : value[j]) + other;
        }
    }
    return value[0];
}
