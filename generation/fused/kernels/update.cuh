// One update rule for all four optimizers, the same as UpdateRule in generation.population.engine:
//
//     g = gradient + weight_decay·w      m ← β·m + γ·g      v ← α·v + (1 − α)·g²
//     w ← w − (rate/c₁)·m / (√v/√c₂ + ε)      (SGD and momentum: w ← w − rate·m)
#pragma once
#include "weights.cuh"

constexpr int RULE_NUMBERS = 8;

// A model's weights and moments in device memory, and its rule at this step.
struct Optimizer {
    float *weights, *first, *second;
    float rate, beta, gamma, alpha, one_minus_alpha, weight_decay, gradient_scale, root_correction;
    bool adaptive, corrected;

    DEVICE Optimizer(const float* rule) {
        rate = rule[0];
        beta = rule[1];
        gamma = rule[2];
        alpha = rule[3];
        one_minus_alpha = rule[4];
        weight_decay = rule[5];
        adaptive = rule[6] != 0.0f;
        corrected = rule[7] != 0.0f;
    }

    // This step's rule: c₁ and √c₂ apply to Adam only.
    DEVICE Optimizer at_step(const float* corrections) const {
        Optimizer now = *this;
        now.rate = corrected ? divide(rate, corrections[0]) : rate;
        now.root_correction = corrected ? corrections[1] : 1.0f;
        return now;
    }

    DEVICE void step(float& w, float& m, float& v, float gradient) const {
        float g = gradient * gradient_scale + weight_decay * w;
        m = beta * m + gamma * g;
        v = alpha * v + one_minus_alpha * g * g;
        float divisor = adaptive ? divide(square_root(v), root_correction) + UPDATE_EPSILON : 1.0f;
        w -= divide(rate * m, divisor);
    }

    // Updates the weight at `index` of the flat vector and returns its new value.
    DEVICE float step(int index, float gradient) const {
        float w = weights[index], m = first[index], v = second[index];
        step(w, m, v, gradient);
        weights[index] = w;
        first[index] = m;
        second[index] = v;
        return w;
    }
};

// Updates weights, in device memory and their halves in shared memory, from gradients in registers. `flat` is where the
// matrix or the biases start in the flat vector.
struct Updater {
    const Thread& me;
    const Optimizer& optimizer;

    // 16 rows × 8 columns of a matrix, from `row` and `chunk` on; only the first `rows` rows.
    template <int M, int N>
    DEVICE void tile(const Sums& gradient, int flat, Matrix<M, N> matrix, int row, int chunk, int rows = TILE) const {
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + me.row + 8 * half;
            if (r >= rows + row) continue;
            int index = flat + r * N + 8 * chunk + me.pair;
            float a = optimizer.step(index, left(gradient, half));
            float b = optimizer.step(index + 1, right(gradient, half));
            store_word(matrix.address() + chunk_at<N>(r, chunk) + me.pair * HALF, pack(a, b));
        }
    }

    // 16 biases, whose gradients are in every column; only the first `count` of them.
    DEVICE void biases(const Sums& gradient, int flat, Biases<TILE> biases, int count = TILE) const {
        if (me.pair != 0) return;
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = me.row + 8 * half;
            if (i < count) store_float(biases.address + i * FLOAT, optimizer.step(flat + i, left(gradient, half)));
        }
    }
};
