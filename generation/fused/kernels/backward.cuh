// The backward pass of one block for one sample, in the rows' own warps as the forward pass; gradients of keys and
// values gather from all queries, so probabilities P and score gradients DS pass through shared memory, a head at a
// time.
//
//     DY ─ ·W_B ─ ReLU' ─ DHIDDEN ─ ·W_A ─ LayerNorm' ─ dropout' ─ DA ─ ·W_O ─ DO
//     P = 2^(score − log_sum)      DS = P ∘ (DO·Vᵀ − δ),  δ = Σ DO∘JOINED
//     dQ = DS·K/√D_k               dK = DSᵀ·Q/√D_k        dV = Pᵀ·DO          (they end in the places of Q, K and V)
//     dx = LayerNorm'(dQ·W_Q + dK·W_K + dV·W_V)
#pragma once
#include "forward.cuh"

// A sample's shared memory while it trains.
constexpr u32 QUERIES = BLOCKS * KEPT_BLOCK, KEYS = QUERIES + ROWS32, VALUES = KEYS + ROWS32;
constexpr u32 DY = VALUES + ROWS32, DA = DY + ROWS32, DO = DA + ROWS32, DHIDDEN = DO + ROWS32;
constexpr u32 P = DHIDDEN + ROWS64, DS = P + ROWS64;
constexpr u32 SAMPLE_END = DS + ROWS64;

// dy[16 × 32] to d(hidden), then to the gradient of the block's attention output, before its dropout
__device__ __forceinline__ void backward_mlp(
    const Thread& me, u32 weights, u32 sample, u32 kept, float (&d)[4][4], const BlockMemory& memory
) {
    u32 rows[2][4], hidden[4][4], wide_rows[4][4];
    float wide[8][4];
    drop_backward(d, memory.kept >> 16);
    pack_rows(rows, d);
    store_rows<DIM>(me, {sample, DY}, rows);
    multiply_columns<HIDDEN>(me, wide, rows, {weights, W_FC2});
    pack_rows(wide_rows, wide);
    load_rows<HIDDEN>(me, hidden, {kept, HIDDEN_ROWS});
    #pragma unroll
    for (int k = 0; k < 4; k++) {
        // a half that is at least the smallest positive number, plus 0x7FFF, has its sign bit set; zero has not
        #pragma unroll
        for (int i = 0; i < 4; i++) wide_rows[k][i] &= spread_signs(hidden[k][i] + 0x7FFF7FFFu);
    }
    store_rows<HIDDEN>(me, {sample, DHIDDEN}, wide_rows);
    multiply_columns<DIM>(me, d, wide_rows, {weights, W_FC1});
    load_rows<DIM>(me, rows, {kept, X2});
    normalize_backward(d, rows, memory.r2);
    drop_backward(d, memory.kept);
}

// δ = Σ over a head's columns of DO∘JOINED, for both rows of the lane
__device__ __forceinline__ void weighted_sums(float (&delta)[2], const u32 (&output)[4], const u32 (&joined)[4]) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float a, b, c, d, sum = 0.0f;
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            unpack(a, b, output[2 * side + half]);
            unpack(c, d, joined[2 * side + half]);
            sum += a * c + b * d;
        }
        delta[half] = row_sum(sum);
    }
}

// One head: probabilities and score gradients of the warp's rows as queries, and with them dq.
template <int TILES> __device__ __forceinline__ void backward_scores(
    const Thread& me, const Tokens<TILES>& tokens, u32 sample, int head, const u32 (&query)[4], const u32 (&output)[4],
    const float (&log_sum)[2], const float (&delta)[2], float (&dq)[2][4]
) {
    u32 keys[4], values[4], b[4];
    load_matrices(keys, at<DIM>({sample, KEYS}, across<DIM>(me), 0, 2 * head));
    load_matrices(values, at<DIM>({sample, VALUES}, across<DIM>(me), 0, 2 * head));
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        u32 p[1][4], ds[1][4];
        float score[2][4], dp[2][4];
        mma_first(score[0], query, keys[0], keys[1]);
        mma_first(score[1], query, keys[2], keys[3]);
        mma_first(dp[0], output, values[0], values[1]);
        mma_first(dp[1], output, values[2], values[3]);
        load_matrices_transposed(b, at<DIM>({sample, KEYS}, down<DIM>(me), tile * TILE, 2 * head));
        if (tile + 1 < TILES) {  // early, so that the next products need not wait for them
            load_matrices(keys, at<DIM>({sample, KEYS}, across<DIM>(me), (tile + 1) * TILE, 2 * head));
            load_matrices(values, at<DIM>({sample, VALUES}, across<DIM>(me), (tile + 1) * TILE, 2 * head));
        }
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            if (tile * TILE + 8 * side >= TOKENS) {
                #pragma unroll
                for (int i = 0; i < 4; i++) score[side][i] = dp[side][i] = 0.0f;
                continue;
            }
            hide_padding(me, tokens, score[side], tile * TILE + 8 * side);
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                score[side][i] = power_of_two(score[side][i] * SCORE_TO_POWER - log_sum[i / 2]);
                dp[side][i] = score[side][i] * (dp[side][i] - delta[i / 2]);
            }
        }
        pack_rows(p, score);
        pack_rows(ds, dp);
        store_rows<HIDDEN>(me, {sample, P}, p, 2 * tile);
        store_rows<HIDDEN>(me, {sample, DS}, ds, 2 * tile);
        multiply(tile == 0, dq[0], dq[1], ds[0], b);
    }
}

// One head: gradients of the warp's rows as keys and values, gathered from all queries.
template <int TILES>
__device__ __forceinline__ void backward_keys(
    const Thread& me, const Tokens<TILES>&, u32 sample, int head, float (&dk)[2][4], float (&dv)[2][4]
) {
    const u32 own = across<HIDDEN>(me) ^ (32 * me.tile);  // this warp's 16 rows are 16 columns of P and DS
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        u32 a[4], b[4];
        load_matrices_transposed(a, at<HIDDEN>({sample, P}, own, tile * TILE, 0));
        load_matrices_transposed(b, at<DIM>({sample, DO}, down<DIM>(me), tile * TILE, 2 * head));
        multiply(tile == 0, dv[0], dv[1], a, b);
        load_matrices_transposed(a, at<HIDDEN>({sample, DS}, own, tile * TILE, 0));
        load_matrices_transposed(b, at<DIM>({sample, QUERIES}, down<DIM>(me), tile * TILE, 2 * head));
        multiply(tile == 0, dk[0], dk[1], a, b);
    }
}

__device__ __forceinline__ void pack_scaled(u32 (&a)[4], const float (&c)[2][4], float scale) {
    #pragma unroll
    for (int i = 0; i < 4; i++) a[i] = pack(c[i / 2][i % 2 * 2] * scale, c[i / 2][i % 2 * 2 + 1] * scale);
}

// From the gradient of a block's output to that of its input, in place; leaves all that the weight gradients need.
template <int TILES>
__device__ __forceinline__ void backward_block(
    const Thread& me, const Tokens<TILES>& tokens, u32 start, int block, u32 sample, float (&d)[4][4],
    const BlockMemory& memory
) {
    const u32 weights = start + block * W_BLOCK, kept = sample + block * KEPT_BLOCK;
    u32 rows[2][4], query[HEADS][4], output[HEADS][4], dq[HEADS][4], dk[HEADS][4], dv[HEADS][4];
    float delta[HEADS][2];
    if (tokens.busy) {
        if (block == 0) {
            // only the last block's queries, keys and values are still there
            load_rows<DIM>(me, rows, {kept, X1});
            project(me, rows, weights, query, {sample, KEYS}, {sample, VALUES});
            store_rows<DIM>(me, {sample, QUERIES}, query);
        } else {
            load_rows<DIM>(me, query, {sample, QUERIES});
        }
        backward_mlp(me, weights, sample, kept, d, memory);
        pack_rows(rows, d);
        store_rows<DIM>(me, {sample, DA}, rows);
        multiply_columns<DIM>(me, d, rows, {weights, W_OUTPUT});
        pack_rows(output, d);
        store_rows<DIM>(me, {sample, DO}, output);
        load_rows<DIM>(me, rows, {kept, JOINED});
        #pragma unroll
        for (int head = 0; head < HEADS; head++) weighted_sums(delta[head], output[head], rows[head]);
    }
    if (block == 0) group_barrier(me.group);  // the new keys and values of all rows are there
    #pragma unroll
    for (int head = 0; head < HEADS; head++) {
        float c[2][4], e[2][4];
        if (head) group_barrier(me.group);  // all have read the other head's P and DS
        if (tokens.busy) {
            backward_scores(me, tokens, sample, head, query[head], output[head], memory.log_sum[head], delta[head], c);
            pack_scaled(dq[head], c, SCORE_SCALE);
        }
        group_barrier(me.group);
        if (tokens.busy) {
            backward_keys(me, tokens, sample, head, c, e);
            pack_scaled(dk[head], c, SCORE_SCALE);
            pack_scaled(dv[head], e, 1.0f);
        }
    }
    group_barrier(me.group);  // all have read queries, keys and values
    if (!tokens.busy) return;
    store_rows<DIM>(me, {sample, QUERIES}, dq);
    store_rows<DIM>(me, {sample, KEYS}, dk);
    store_rows<DIM>(me, {sample, VALUES}, dv);
    multiply_columns<DIM>(me, d, dq, {weights, W_QUERY});
    multiply_columns<DIM, ADD>(me, d, dk, {weights, W_KEY});
    multiply_columns<DIM, ADD>(me, d, dv, {weights, W_VALUE});
    load_rows<DIM>(me, rows, {kept, X1});
    normalize_backward(d, rows, memory.r1);
}
