// The end of the network for one sample: mean over tokens, two linear layers, cross entropy, and back to the mean.
//
// It is one row of numbers, so each warp of the group computes all of it, in row 0 of its tiles, and none has to wait.
#pragma once
#include "forward.cuh"

// Gradients are carried in halves, whose smallest normal number is 6e-5. A token's share of the gradient of one sample
// is about 1/TOKENS; this factor brings it back to order one. It is a power of two, so it rounds nothing.
constexpr float LOSS_SCALE = 64.0f;

// What the weight gradients of the classifier are made of, rows of the last 16 samples, in halves.
constexpr int RECENT = 16;
constexpr u32 POOLED_ROWS = 0, DZ_ROWS = RECENT * DIM * HALF, ACTIVE_ROWS = 2 * DZ_ROWS, DLOGIT_ROWS = 3 * DZ_ROWS;
constexpr u32 RECENT_END = DLOGIT_ROWS + RECENT * TILE * HALF;

// Writes this warp's share of the sum over tokens; the group's shares lie side by side.
constexpr u32 SHARES_BYTES = GROUP_WARPS * DIM * FLOAT;
__device__ __forceinline__ void share_sums(const Thread& me, const float (&x)[4][4], u32 shares) {
    int column = 8 * (me.row / 2) + me.pair + me.row % 2;
    store_float(shares + (me.tile * DIM + column) * FLOAT, column_sums(me, x));
}

// Row 0 of a left factor from the group's shares: the mean over the sample's tokens.
template <int TILES>
__device__ __forceinline__ void mean_row(
    const Thread& me, const Tokens<TILES>& tokens, u32 (&pooled)[2][4], u32 shares
) {
    float scale = 1.0f / tokens.length;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        float a = 0.0f, b = 0.0f;
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            float c, d;
            load_floats(c, d, shares + (tile * DIM + 8 * j + me.pair) * FLOAT);
            a += c, b += d;
        }
        pooled[j / 2][j % 2 * 2] = me.row == 0 ? pack(a * scale, b * scale) : 0;
        pooled[j / 2][j % 2 * 2 + 1] = 0;
    }
}

// Stores row 0 of a left factor as row `row` of a tile.
template <int COLUMNS, int K>
__device__ __forceinline__ void store_row(const Thread& me, u32 tile, const u32 (&a)[K][4], int row) {
    if (me.row != 0) return;
    #pragma unroll
    for (int j = 0; j < 2 * K; j++) store_word(tile + chunk_at<COLUMNS>(row, j) + me.pair * HALF, a[j / 2][j % 2 * 2]);
}

// logits in row 0: the lane's four are classes pair, pair+1, pair+8, pair+9; lanes of other rows hold nothing of use.
__device__ __forceinline__ void classify(
    const Thread& me, u32 start, const u32 (&pooled)[2][4], float (&z)[4][4], u32 (&active)[2][4], float (&logit)[2][4]
) {
    start_with_biases(me, z, start + B_CLASSIFIER1);
    multiply_rows<DIM, ADD>(me, z, pooled, {start, W_CLASSIFIER1});
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        active[j / 2][j % 2 * 2] = pack_relu(z[j][0], z[j][1]);
        active[j / 2][j % 2 * 2 + 1] = 0;
    }
    start_with_biases(me, logit, start + B_CLASSIFIER2);
    multiply_rows<DIM, ADD>(me, logit, active, {start, W_CLASSIFIER2});
}

__device__ __forceinline__ int class_of(const Thread& me, int i) { return me.pair + i % 2 + i / 2 * 8; }

__device__ __forceinline__ float logit_of(const Thread& me, const float (&logit)[2][4], int i) {
    return class_of(me, i) < CLASSES ? logit[i / 2][i % 2] : -INFINITE;
}

// The class with the largest logit of row 0, the first of equals, as argmax has it; none where none is a number.
__device__ __forceinline__ int answer(const Thread& me, const float (&logit)[2][4]) {
    float largest = -INFINITE;
    #pragma unroll
    for (int i = 0; i < 4; i++) largest = fmaxf(largest, logit_of(me, logit, i));
    largest = row_max(largest);
    int first = TILE;
    #pragma unroll
    for (int i = 3; i >= 0; i--) {
        if (logit_of(me, logit, i) == largest) first = class_of(me, i);
    }
    return (int)-row_max(-(float)first);
}

// Cross entropy of row 0; `share` becomes the probabilities of the lane's classes.
__device__ __forceinline__ float cross_entropy(
    const Thread& me, const float (&logit)[2][4], int label, float (&share)[4]
) {
    float largest = -INFINITE, own = -INFINITE, sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        share[i] = logit_of(me, logit, i);
        largest = fmaxf(largest, share[i]);
        if (class_of(me, i) == label) own = share[i];
    }
    largest = row_max(largest);
    own = row_max(own);
    #pragma unroll
    for (int i = 3; i >= 0; i--) {
        share[i] = power_of_two((share[i] - largest) * LOG2_E);
        sum += share[i];
    }
    sum = row_sum(sum);
    #pragma unroll
    for (int i = 0; i < 4; i++) share[i] *= reciprocal(sum);
    // not a number stays not a number: a maximum passes over it, a sum does not
    return largest - own + log_two(sum) * LN_2;
}

// From the tokens' shares to the gradient of the mean, in every row: `d` is LOSS_SCALE times that of x̂. Returns the
// loss.
template <int TILES>
__device__ __forceinline__ float classify_and_return(
    const Thread& me, const Tokens<TILES>& tokens, u32 start, u32 shares, u32 recent, int row, int label,
    float (&d)[4][4]
) {
    u32 pooled[2][4], active[2][4], dlogit[1][4], dz[2][4];
    float z[4][4], logit[2][4], share[4], c[4][4];
    mean_row(me, tokens, pooled, shares);
    classify(me, start, pooled, z, active, logit);
    const float loss = cross_entropy(me, logit, label, share);
    float scale = me.row == 0 ? LOSS_SCALE : 0.0f;
    #pragma unroll
    for (int i = 0; i < 4; i++) share[i] = scale * (share[i] - (class_of(me, i) == label ? 1.0f : 0.0f));
    dlogit[0][0] = pack(share[0], share[1]);
    dlogit[0][2] = pack(share[2], share[3]);
    dlogit[0][1] = dlogit[0][3] = 0;
    multiply_columns<DIM>(me, c, dlogit, {start, W_CLASSIFIER2});
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        dz[j / 2][j % 2 * 2] = pack(z[j][0] > 0.0f ? c[j][0] : 0.0f, z[j][1] > 0.0f ? c[j][1] : 0.0f);
        dz[j / 2][j % 2 * 2 + 1] = 0;
    }
    multiply_columns<DIM>(me, c, dz, {start, W_CLASSIFIER1});
    float mean = 1.0f / tokens.length;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        d[j][0] = d[j][2] = from_lane(c[j][0], me.lane % 4) * mean;
        d[j][1] = d[j][3] = from_lane(c[j][1], me.lane % 4) * mean;
    }
    if (me.tile == 0) {
        store_row<DIM>(me, recent + POOLED_ROWS, pooled, row);
        store_row<DIM>(me, recent + DZ_ROWS, dz, row);
        store_row<DIM>(me, recent + ACTIVE_ROWS, active, row);
        store_row<TILE>(me, recent + DLOGIT_ROWS, dlogit, row);
    }
    return loss;
}
