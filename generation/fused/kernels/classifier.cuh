// The end of the network for one example: mean over tokens, two linear layers, cross entropy, and back to the mean.
//
// It is one row of numbers, so each warp of the group computes all of it, in row 0 of its tiles, without waiting.
#pragma once
#include "forward.cuh"

// Gradients are carried in halves, whose smallest normal number is 6e-5. A token's share of the gradient of one example
// is about 1/TOKENS; this factor brings it back to order one. It is a power of two, so it rounds nothing.
constexpr float LOSS_SCALE = 64.0f;

// The factors of the classifier's weight gradients: rows of the last 16 examples, in shared memory.
constexpr int RECENT = 16;
struct RecentExamples {
    static constexpr u32 DZ = Matrix<RECENT, DIM>::BYTES, ACTIVE = 2 * DZ, D_LOGIT = 3 * DZ;
    static constexpr u32 BYTES = D_LOGIT + Matrix<RECENT, TILE>::BYTES;
    u32 start;

    DEVICE Matrix<RECENT, DIM> pooled() const { return {start, 0}; }        // means over tokens
    DEVICE Matrix<RECENT, DIM> dz() const { return {start, DZ}; }           // gradients before the ReLU
    DEVICE Matrix<RECENT, DIM> active() const { return {start, ACTIVE}; }   // output of the ReLU
    DEVICE Matrix<RECENT, TILE> d_logit() const { return {start, D_LOGIT}; }
};

// A group's sums over tokens in shared memory, its warps' side by side.
struct TokenSums {
    static constexpr u32 BYTES = GROUP_WARPS * DIM * FLOAT;
    u32 start;
    DEVICE u32 at(int tile, int column) const { return start + (tile * DIM + column) * FLOAT; }
};

// One number for each of the lane's four classes: pair, pair + 1, pair + 8, pair + 9.
using PerClass = float[4];

// The sum of x over the warp's 16 rows, for 32 columns, one per lane: lane i·4 + pair/2 holds column
// 8·(i/2) + pair + i%2. The eight values of each lane are folded onto the eight lanes of a column, halving their number
// at each exchange.
template <int CHUNKS> DEVICE float column_sums(const Thread& me, const Sums (&x)[CHUNKS]) {
    static_assert(CHUNKS == 4);
    float value[8];
    #pragma unroll
    for (int j = 0; j < 8; j++) value[j] = x[j / 2][j % 2] + x[j / 2][j % 2 + 2];
    #pragma unroll
    for (int width = 4; width >= 1; width /= 2) {
        bool upper = me.row & width;
        #pragma unroll
        for (int j = 0; j < width; j++) {
            float received = shuffle_xor(upper ? value[j] : value[j + width], 4 * width);
            value[j] = (upper ? value[j + width] : value[j]) + received;
        }
    }
    return value[0];
}

// Writes this warp's sums over its tokens.
DEVICE void share_sums(const Thread& me, const Rows<DIM>& x, TokenSums sums) {
    if constexpr (DIM == WARP) {
        int column = 8 * (me.row / 2) + me.pair + me.row % 2;
        store_float(sums.at(me.tile, column), column_sums(me, x));
    } else {
        #pragma unroll
        for (int i = 0; i < DIM / 4; i++) {
            float sum = x[i / 2][i % 2] + x[i / 2][i % 2 + 2];
            #pragma unroll
            for (int mask = 4; mask < WARP; mask *= 2) sum += shuffle_xor(sum, mask);
            if (me.row == 0) store_float(sums.at(me.tile, 8 * (i / 2) + me.pair + i % 2), sum);
        }
    }
}

// Row 0 of a left factor from the group's sums: the mean over the example's tokens.
template <int TILES>
DEVICE void mean_row(const Thread& me, const Tokens<TILES>& tokens, PackedRows<DIM>& pooled, TokenSums sums) {
    float scale = 1.0f / tokens.length;
    #pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        float a = 0.0f, b = 0.0f;
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            float c, d;
            load_floats(c, d, sums.at(tokens.first_tile + tile, 8 * j + me.pair));
            a += c;
            b += d;
        }
        pair(pooled, j, 0) = me.row == 0 ? pack(a * scale, b * scale) : 0;
        pair(pooled, j, 1) = 0;
    }
}

// Stores row 0 of a left factor as row `row` of a matrix.
template <int N>
DEVICE void store_row(const Thread& me, Matrix<RECENT, N> matrix, const PackedRows<N>& factor, int row) {
    if (me.row != 0) return;
    #pragma unroll
    for (int j = 0; j < N / 8; j++) {
        store_word(matrix.address() + chunk_at<N>(row, j) + me.pair * HALF, pair(factor, j, 0));
    }
}

// z = W_1·pooled + b_1, active = ReLU(z), logit = W_2·active + b_2, all in row 0; the other rows are meaningless.
DEVICE void classify(
    const Thread& me, const Weights& weights, const PackedRows<DIM>& pooled, Rows<DIM>& z, PackedRows<DIM>& active,
    Rows<TILE>& logit
) {
    linear(me, z, pooled, weights.classifier1(), weights.classifier1_bias());
    #pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        pair(active, j, 0) = pack_relu(z[j][0], z[j][1]);
        pair(active, j, 1) = 0;
    }
    linear(me, logit, active, weights.classifier2(), weights.classifier2_bias());
}

DEVICE int class_of(const Thread& me, int i) { return me.pair + i % 2 + i / 2 * 8; }

DEVICE float logit_of(const Thread& me, const Rows<TILE>& logit, int i) {
    return class_of(me, i) < CLASSES ? logit[i / 2][i % 2] : -INFINITE;
}

// The class with the largest logit of row 0, the first of equals, like argmax; TILE if all logits are NaN.
DEVICE int answer(const Thread& me, const Rows<TILE>& logit) {
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

// Cross entropy of row 0; sets `probability` for the lane's classes.
DEVICE float cross_entropy(const Thread& me, const Rows<TILE>& logit, int label, PerClass& probability) {
    float largest = -INFINITE, own = -INFINITE, sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        probability[i] = logit_of(me, logit, i);
        largest = fmaxf(largest, probability[i]);
        if (class_of(me, i) == label) own = probability[i];
    }
    largest = row_max(largest);
    own = row_max(own);
    #pragma unroll
    for (int i = 3; i >= 0; i--) {
        probability[i] = power_of_two((probability[i] - largest) * LOG2_E);
        sum += probability[i];
    }
    sum = row_sum(sum);
    #pragma unroll
    for (int i = 0; i < 4; i++) probability[i] *= reciprocal(sum);
    // a NaN stays a NaN: a maximum ignores it, a sum does not
    return largest - own + log_two(sum) * LN_2;
}

// From the group's sums over tokens to the gradient of their mean, in every row: `d` is LOSS_SCALE times that of x̂.
// Returns the loss; row `row` of `recent` gets the factors of the weight gradients.
template <int TILES>
DEVICE float classify_and_return(
    const Thread& me, const Tokens<TILES>& tokens, const Weights& weights, TokenSums sums, RecentExamples recent,
    int row, int label, Rows<DIM>& d
) {
    PackedRows<DIM> pooled, active, dz;
    PackedRows<TILE> d_logit;
    Rows<DIM> z, c;
    Rows<TILE> logit;
    PerClass error;
    mean_row(me, tokens, pooled, sums);
    classify(me, weights, pooled, z, active, logit);
    const float loss = cross_entropy(me, logit, label, error);
    float scale = me.row == 0 ? LOSS_SCALE : 0.0f;
    #pragma unroll
    for (int i = 0; i < 4; i++) error[i] = scale * (error[i] - (class_of(me, i) == label ? 1.0f : 0.0f));
    pair(d_logit, 0, 0) = pack(error[0], error[1]);
    pair(d_logit, 1, 0) = pack(error[2], error[3]);
    pair(d_logit, 0, 1) = pair(d_logit, 1, 1) = 0;
    multiply(me, c, d_logit, weights.classifier2());
    #pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        pair(dz, j, 0) = pack(z[j][0] > 0.0f ? c[j][0] : 0.0f, z[j][1] > 0.0f ? c[j][1] : 0.0f);
        pair(dz, j, 1) = 0;
    }
    multiply(me, c, dz, weights.classifier1());
    float mean = 1.0f / tokens.length;
    #pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        d[j][0] = d[j][2] = shuffle(c[j][0], me.lane % 4) * mean;
        d[j][1] = d[j][3] = shuffle(c[j][1], me.lane % 4) * mean;
    }
    if (me.tile == tokens.first_tile) {
        store_row(me, recent.pooled(), pooled, row);
        store_row(me, recent.dz(), dz, row);
        store_row(me, recent.active(), active, row);
        store_row(me, recent.d_logit(), d_logit, row);
    }
    return loss;
}

// From the last block's output through its LayerNorm and the classifier, and back: x becomes the gradient of that
// output, times LOSS_SCALE. Returns the loss.
template <int TILES>
DEVICE float finish(
    const Thread& me, const Tokens<TILES>& tokens, const Weights& weights, TokenSums sums, RecentExamples recent,
    int row, int label, float epsilon, Rows<DIM>& x
) {
    PerRow<float> r;
    PackedRows<DIM> normalized;
    if (!tokens.busy) {
        group_barrier(me.group);
        return 0.0f;
    }
    normalize(x, r, epsilon, tokens.real);
    pack_rows(normalized, x);
    share_sums(me, x, sums);
    group_barrier(me.group);
    const float loss = classify_and_return(me, tokens, weights, sums, recent, row, label, x);
    normalize_backward(x, normalized, r);
    return loss;
}
