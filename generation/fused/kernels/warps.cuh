// The warps that train a model, and the sums they accumulate.
#pragma once
#include "matrices.cuh"

constexpr int GROUPS = EXAMPLES_AT_ONCE, PRODUCER_WARPS = GROUPS * GROUP_WARPS;  // they process examples
constexpr int CONSUMER_WARPS = 4;                                                // they never do (WARP_SPECIALIZED)
constexpr int WARPS = WARP_SPECIALIZED ? PRODUCER_WARPS + CONSUMER_WARPS : 8;
static_assert(PRODUCER_WARPS <= WARPS, "each example has four warps");

// One number for the example of each group; both are the same where there is one group.
template <class Number> using PerGroup = Number[2];
