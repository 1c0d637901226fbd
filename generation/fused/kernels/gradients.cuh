// Weight gradients: dW = Σ dyᵀ·x over the examples of a step and their tokens, each computed by one warp.
//
// For a whole step they stay in registers, of all warps (register_gradients.cuh) or of the consumers
// (consumer_gradients.cuh), or they are spilled to device memory between rounds of examples (spilled_gradients.cuh).
#pragma once
#if SPILL_GRADIENTS
#include "spilled_gradients.cuh"
using Gradients = SpilledGradients;
#elif EXAMPLES_AT_ONCE == 3
#include "consumer_gradients.cuh"
using Gradients = ConsumerGradients;
#else
#include "register_gradients.cuh"
using Gradients = RegisterGradients;
#endif
