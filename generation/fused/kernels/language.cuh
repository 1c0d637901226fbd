// The end of a language model: logits of every token's successor, cross entropy, and back to the last block's output.
//
//     x̂ = LayerNorm(x)      logit = x̂·Uᵀ      loss = Σ over tokens of log Σ exp(logit) − logit[next]
//     d_logit = softmax(logit) − onehot(next)      dx = LayerNorm'(d_logit·U)
//
// A warp has the logits of its own 16 tokens, so no warp waits for another. They are computed 16 at a time, once for
// their sum and once for their gradients: registers hold one tile of them, however large the vocabulary is.
#pragma once
#include "classifier.cuh"
#include "inputs.cuh"

// The logits of 16 tokens of the vocabulary; those that do not exist are −∞.
DEVICE void logits_of(
    const Thread& me, const Weights& weights, const PackedRows<DIM>& normalized, int tile, Rows<TILE>& logit
) {
    multiply_transposed(me, logit, normalized, weights.unembedding(tile));
    if (CLASSES % TILE == 0 || tile < VOCABULARY_TILES - 1) return;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i / 4 * 8 + me.pair + i % 2 >= CLASSES % TILE) logit[i / 4][i % 4] = -INFINITE;
    }
}

// What the logits of the lane's two rows come to.
struct Prediction {
    PerRow<float> log_sum;   // log₂ Σ exp(logit)
    PerRow<float> own;       // the logit of the token that follows
    PerRow<int> answer;      // the token with the largest logit, the first of equals; none if all are NaN
};

DEVICE Prediction predict(
    const Thread& me, const Weights& weights, const PackedRows<DIM>& normalized, const PerRow<int>& next
) {
    constexpr float LEAST = -1e38f;  // finite, so that differences are numbers
    constexpr int NONE = VOCABULARY_TILES * TILE;
    PerRow<float> largest = {LEAST, LEAST}, sum = {0.0f, 0.0f}, own = {-INFINITE, -INFINITE};
    PerRow<int> answer = {NONE, NONE};
    #pragma unroll 1
    for (int tile = 0; tile < VOCABULARY_TILES; tile++) {
        Rows<TILE> logit;
        logits_of(me, weights, normalized, tile, logit);
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const float before = largest[half];
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const int token = tile * TILE + class_of(me, i);
                const float number = logit[i / 2][2 * half + i % 2];
                if (number > largest[half]) largest[half] = number, answer[half] = token;
                if (token == next[half]) own[half] = number;
            }
            const float shift = largest[half] * LOG2_E;
            sum[half] *= power_of_two(before * LOG2_E - shift);
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[half] += power_of_two(logit[i / 2][2 * half + i % 2] * LOG2_E - shift);
            }
        }
    }
    Prediction result;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const float most = row_max(largest[half]), share = power_of_two((largest[half] - most) * LOG2_E);
        const int first = largest[half] == most ? answer[half] : NONE;
        result.log_sum[half] = most * LOG2_E + log_two(row_sum(sum[half] * share));
        result.own[half] = row_max(own[half]);
        result.answer[half] = (int)-row_max(-(float)first);
    }
    return result;
}

// The tokens that follow the lane's two rows; all lanes have read them when the next copy may overwrite them.
DEVICE void read_next(const Thread& me, Window window, PerRow<int>& next) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = me.tile * TILE + me.row + 8 * half;
        next[half] = TokenPair(window, row & ~1).next(row % 2);
    }
    warp_barrier();
}

// Over the warp's 16 rows, of numbers that all lanes of a row have.
DEVICE float sum_of_rows(const PerRow<float>& x) {
    float sum = x[0] + x[1];
    #pragma unroll
    for (int mask = 4; mask < WARP; mask *= 2) sum += shuffle_xor(sum, mask);
    return sum;
}

// The sum of the losses of the warp's real tokens.
DEVICE float sum_of_losses(const Prediction& prediction, const PerRow<bool>& real) {
    PerRow<float> loss;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        loss[half] = real[half] ? prediction.log_sum[half] * LN_2 - prediction.own[half] : 0.0f;
    }
    return sum_of_rows(loss);
}

// From the last block's output to its gradient, in place, times LOSS_SCALE for the mean over tokens; leaves the rows
// that the unembedding's gradient needs. Returns the sum of the warp's losses.
template <int TILES>
DEVICE float finish_window(
    const Thread& me, const Tokens<TILES>& tokens, const Weights& weights, LogitRows rows, Window window,
    float epsilon, Rows<DIM>& x
) {
    if (!tokens.busy) return 0.0f;
    PerRow<float> r;
    PackedRows<DIM> normalized;
    PerRow<int> next;
    normalize(x, r, epsilon, tokens.real);
    pack_rows(normalized, x);
    store_rows(me, rows.normalized(), normalized);
    read_next(me, window, next);
    const Prediction prediction = predict(me, weights, normalized, next);
    constexpr float share = LOSS_SCALE / TOKENS;
    const PerRow<float> scale = {tokens.real[0] ? share : 0.0f, tokens.real[1] ? share : 0.0f};
    clear(x);
    #pragma unroll 1
    for (int tile = 0; tile < VOCABULARY_TILES; tile++) {
        Rows<TILE> error;
        PackedRows<TILE> d_logit;
        logits_of(me, weights, normalized, tile, error);
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            const int half = i / 2 % 2, token = tile * TILE + i / 4 * 8 + me.pair + i % 2;
            float& e = error[i / 4][i % 4];
            const float probability = power_of_two(e * LOG2_E - prediction.log_sum[half]);
            e = scale[half] * (probability - (token == next[half] ? 1.0f : 0.0f));
        }
        pack_rows(d_logit, error);
        store_rows(me, rows.d_logit(tile), d_logit);
        multiply<ADD>(me, x, d_logit, weights.unembedding(tile));
    }
    normalize_backward(x, normalized, r);
    return sum_of_losses(prediction, tokens.real);
}
