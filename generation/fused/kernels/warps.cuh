// The eight warps that train a model, and the numbers that they add up.
#pragma once
#include "matrices.cuh"

constexpr int WARPS = 8, GROUPS = SAMPLES_AT_ONCE;  // warps without a sample only add up gradients
static_assert(GROUPS == 1 || GROUPS == 2, "as eight warps can hold them");

// One number for the sample of each group; the second is the first where there is one group.
template <class Number> using PerGroup = Number[2];

template <int COUNT> DEVICE void clear(Sums (&sums)[COUNT]) {
    #pragma unroll
    for (int j = 0; j < COUNT; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
}
