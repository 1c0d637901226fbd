// The warps that train a model, and the sums they accumulate.
#pragma once
#include "matrices.cuh"

constexpr int GROUPS = EXAMPLES_AT_ONCE, WORKERS = GROUPS * GROUP_WARPS;  // warps that process examples
constexpr int ADDERS = 4;                                                 // warps that never do (ROLES)
constexpr int WARPS = ROLES ? WORKERS + ADDERS : 8;
static_assert(WORKERS <= WARPS, "each example has four warps");

// One number for the example of each group; both are the same where there is one group.
template <class Number> using PerGroup = Number[2];
