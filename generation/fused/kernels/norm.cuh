// LayerNorm of token rows, and its derivative.
//
//     x̂ = (x − mean(x)) · r,   r = 1/√(var(x) + ε)            dx = r · (dx̂ − mean(dx̂) − x̂·mean(dx̂·x̂))
//
// Every dropout of the zoo stands in front of a LayerNorm, so its factor s = 1/(1 − p) needs no multiplication:
// LayerNorm(s·x) is the formula above with ε/s² in place of ε. Rows of padding get r = 0: they come out as zeros,
// and so do their gradients.
#pragma once
#include "tiles.cuh"

// Normalizes in place; r[0] belongs to the lane's upper row, r[1] to its lower one.
__device__ __forceinline__ void normalize(float (&x)[4][4], float (&r)[2], float epsilon, const bool (&real)[2]) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0.0f, squares = 0.0f;
        #pragma unroll
        for (int j = 0; j < 4; j++) sum += x[j][2 * half] + x[j][2 * half + 1];
        float mean = row_sum(sum) * (1.0f / DIM);
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            float a = x[j][2 * half] -= mean, b = x[j][2 * half + 1] -= mean;
            squares += a * a + b * b;
        }
        float deviation = reciprocal_root(row_sum(squares) * (1.0f / DIM) + epsilon);  // all lanes take part in the sum
        r[half] = real[half] ? deviation : 0.0f;
        #pragma unroll
        for (int j = 0; j < 4; j++) x[j][2 * half] *= r[half], x[j][2 * half + 1] *= r[half];
    }
}

// d becomes the gradient with respect to the LayerNorm's input; x̂ comes as halves.
__device__ __forceinline__ void normalize_backward(
    float (&d)[4][4], const u32 (&normalized)[2][4], const float (&r)[2]
) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float x[4][2], sum = 0.0f, product = 0.0f;
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            unpack(x[j][0], x[j][1], normalized[j / 2][j % 2 * 2 + half]);
            sum += d[j][2 * half] + d[j][2 * half + 1];
            product += d[j][2 * half] * x[j][0] + d[j][2 * half + 1] * x[j][1];
        }
        float mean = row_sum(sum) * (1.0f / DIM), slope = row_sum(product) * (1.0f / DIM);
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            #pragma unroll
            for (int i = 0; i < 2; i++) d[j][2 * half + i] = r[half] * (d[j][2 * half + i] - mean - x[j][i] * slope);
        }
    }
}
