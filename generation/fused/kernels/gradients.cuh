// Weight gradients: dW = Σ dyᵀ·x over the examples of a step and their tokens, each computed by one warp.
//
// For a whole step they stay in registers, of all warps (register_gradients.cuh) or of the adders (adder_gradients.cuh,
// ROLES), or they wait in device memory between rounds of examples (waiting_gradients.cuh, GRADIENTS_WAIT).
#pragma once
#if GRADIENTS_WAIT
#include "waiting_gradients.cuh"
using Gradients = WaitingGradients;
#elif EXAMPLES_AT_ONCE == 3
#include "adder_gradients.cuh"
using Gradients = AdderGradients;
#else
#include "register_gradients.cuh"
using Gradients = RegisterGradients;
#endif
