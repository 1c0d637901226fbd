// What the two kernels that measure a population are given: evaluate.cu in half precision, measure.cu in float32.
#pragma once
#include "inputs.cuh"

// The arguments of a launch; EvaluateArguments in compiled.py has the same fields in the same order.
struct EvaluateArguments {
    const void* tokens;           // [examples, TOKENS, FEATURES] halves or floats, or [examples, ROWS] of a Window
    const u32* facts;             // [examples] Facts
    const float* positions;       // [TOKENS, DIM]
    const u8* alive;              // [models]
    const float* weights;         // [models, PARAMETERS]
    int* correct;                 // [models, parts]
    double* losses;               // [models, parts] sums
    int examples;
    int part_size;
    int parts;

    // halves, or the words of a Window
    DEVICE const u16* example(int index) const { return (const u16*)tokens + (long long)index * EXAMPLE_WORDS; }
    DEVICE const float* floats(int index) const { return (const float*)tokens + (long long)index * EXAMPLE_WORDS; }
};
