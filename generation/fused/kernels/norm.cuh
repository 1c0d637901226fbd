// LayerNorm of token rows, and its derivative.
//
//     x̂ = (x − mean(x)) · r,   r = 1/√(var(x) + ε)            dx = r · (dx̂ − mean(dx̂) − x̂·mean(dx̂·x̂))
//
// Every dropout of the zoo is followed by a LayerNorm, so its factor s = 1/(1 − p) needs no multiplication:
// LayerNorm(s·x) is the formula above with ε/s² instead of ε. Rows of padding get r = 0: they and their gradients
// become zeros.
#pragma once
#include "matrices.cuh"

// Normalizes in place; the derivative needs r.
DEVICE void normalize(Rows<DIM>& x, PerRow<float>& r, float epsilon, const PerRow<bool>& real) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0.0f, squares = 0.0f;
        #pragma unroll
        for (int j = 0; j < DIM / 8; j++) sum += left(x[j], half) + right(x[j], half);
        float mean = row_sum(sum) * (1.0f / DIM);
        #pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            float a = left(x[j], half) -= mean;
            float b = right(x[j], half) -= mean;
            squares += a * a + b * b;
        }
        float deviation = reciprocal_root(row_sum(squares) * (1.0f / DIM) + epsilon);  // all lanes take part in the sum
        r[half] = real[half] ? deviation : 0.0f;
        #pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            left(x[j], half) *= r[half];
            right(x[j], half) *= r[half];
        }
    }
}

// d becomes the gradient with respect to the LayerNorm's input; x̂ is given as halves.
DEVICE void normalize_backward(Rows<DIM>& d, const PackedRows<DIM>& normalized, const PerRow<float>& r) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float x[DIM / 8][2], sum = 0.0f, product = 0.0f;
        #pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            unpack(x[j][0], x[j][1], pair(normalized, j, half));
            sum += left(d[j], half) + right(d[j], half);
            product += left(d[j], half) * x[j][0] + right(d[j], half) * x[j][1];
        }
        float mean = row_sum(sum) * (1.0f / DIM), slope = row_sum(product) * (1.0f / DIM);
        #pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            left(d[j], half) = r[half] * (left(d[j], half) - mean - x[j][0] * slope);
            right(d[j], half) = r[half] * (right(d[j], half) - mean - x[j][1] * slope);
        }
    }
}
