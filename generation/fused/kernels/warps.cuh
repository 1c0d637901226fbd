// The warps that train a model, and the numbers that they add up.
#pragma once
#include "matrices.cuh"

constexpr int GROUPS = SAMPLES_AT_ONCE, WORKERS = GROUPS * GROUP_WARPS;  // warps that have a sample
constexpr int ADDERS = 4;                                               // warps that never have one (ROLES)
constexpr int WARPS = ROLES ? WORKERS + ADDERS : 8;
static_assert(WORKERS <= WARPS, "as they can hold the samples");

// One number for the sample of each group; the second is the first where there is one group.
template <class Number> using PerGroup = Number[2];

template <int COUNT> DEVICE void clear(Sums (&sums)[COUNT]) {
    #pragma unroll
    for (int j = 0; j < COUNT; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
}
