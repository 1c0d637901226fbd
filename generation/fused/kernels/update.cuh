// One update rule for all four optimizers, as generation.population.update has it:
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
    bool adaptive;

    // `corrections` are c₁ and √c₂ of this step; they hold for Adam alone.
    DEVICE Optimizer(const float* rule, const float* corrections) {
        const bool corrected = rule[7] != 0.0f;
        rate = corrected ? divide(rule[0], corrections[0]) : rule[0];
        root_correction = corrected ? corrections[1] : 1.0f;
        beta = rule[1];
        gamma = rule[2];
        alpha = rule[3];
        one_minus_alpha = rule[4];
        weight_decay = rule[5];
        adaptive = rule[6] != 0.0f;
    }

    // One step of one weight and its moments.
    DEVICE void step(float gradient, float& w, float& m, float& v) const {
        float g = gradient * gradient_scale + weight_decay * w;
        m = beta * m + gamma * g;
        v = alpha * v + one_minus_alpha * g * g;
        float divisor = adaptive ? divide(square_root(v), root_correction) + UPDATE_EPSILON : 1.0f;
        w -= divide(rate * m, divisor);
    }
};

// Two neighboring weights and their moments, between device memory and registers.
struct WeightPair {
    float w[2], m[2], v[2];

    DEVICE void load(const Optimizer& optimizer, int index) {
        read_pair(w[0], w[1], optimizer.weights + index);
        read_pair(m[0], m[1], optimizer.first + index);
        read_pair(v[0], v[1], optimizer.second + index);
    }
    DEVICE void step(const Optimizer& optimizer, float left_gradient, float right_gradient) {
        optimizer.step(left_gradient, w[0], m[0], v[0]);
        optimizer.step(right_gradient, w[1], m[1], v[1]);
    }
    DEVICE void store(const Optimizer& optimizer, int index) const {
        write_pair(optimizer.weights + index, w[0], w[1]);
        write_pair(optimizer.first + index, m[0], m[1]);
        write_pair(optimizer.second + index, v[0], v[1]);
    }
};

// Updates weights, in device memory and their halves in shared memory, from gradients in registers. `flat` is where the
// matrix or the biases start in the flat vector.
struct Updater {
    const Thread& me;
    const Optimizer& optimizer;

    // 16 rows × 8·COUNT columns of a matrix, from `row` and `chunk` on; of the rows only the first `rows`. Shared memory
    // gets them times `scale`, and the gradient is one of what it holds. All numbers are asked for before the first is
    // needed.
    template <int COUNT, int M, int N>
    DEVICE void tiles(
        const Sums* gradient, int flat, Matrix<M, N> matrix, int row, int chunk, int rows = TILE, float scale = 1.0f
    ) const {
        WeightPair pairs[COUNT][2];
        const int first = flat + (row + me.row) * N + 8 * chunk + me.pair;
        #pragma unroll
        for (int j = 0; j < COUNT; j++) {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                if (me.row + 8 * half < rows) pairs[j][half].load(optimizer, first + 8 * half * N + 8 * j);
            }
        }
        #pragma unroll
        for (int j = 0; j < COUNT; j++) {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                if (me.row + 8 * half >= rows) continue;
                WeightPair& now = pairs[j][half];
                now.step(optimizer, left(gradient[j], half) * scale, right(gradient[j], half) * scale);
                now.store(optimizer, first + 8 * half * N + 8 * j);
                const u32 place = chunk_at<N>(row + me.row + 8 * half, chunk + j) + me.pair * HALF;
                store_word(matrix.address() + place, pack(now.w[0] * scale, now.w[1] * scale));
            }
        }
    }
    template <int M, int N>
    DEVICE void tile(const Sums& gradient, int flat, Matrix<M, N> matrix, int row, int chunk, int rows = TILE) const {
        tiles<1>(&gradient, flat, matrix, row, chunk, rows);
    }
    template <int COUNT, int M, int N>
    DEVICE void strip(
        const Sums (&gradient)[COUNT], int flat, Matrix<M, N> matrix, int row, int chunk, float scale = 1.0f
    ) const {
        tiles<COUNT>(gradient, flat, matrix, row, chunk, TILE, scale);
    }

    // 16 biases, whose gradients stand in every column; of these only the first `count`.
    DEVICE void biases(const Sums& gradient, int flat, Biases<TILE> biases, int count = TILE) const {
        if (me.pair != 0) return;
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = me.row + 8 * half;
            if (i >= count) continue;
            float &w = optimizer.weights[flat + i], &m = optimizer.first[flat + i], &v = optimizer.second[flat + i];
            optimizer.step(left(gradient, half), w, m, v);
            store_float(biases.address + i * FLOAT, w);
        }
    }
};
