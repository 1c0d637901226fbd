// Weight gradients: dW = Σ dyᵀ·x over the samples of a step and their tokens, each by one warp alone.
//
// They stay in registers for the whole step, of all warps (register_gradients.cuh) or of the adders alone
// (adder_gradients.cuh, ROLES), or wait in device memory between two rounds of samples (waiting_gradients.cuh,
// GRADIENTS_WAIT).
#pragma once
#if GRADIENTS_WAIT
#include "waiting_gradients.cuh"
using Gradients = WaitingGradients;
#elif SAMPLES_AT_ONCE == 3
#include "adder_gradients.cuh"
using Gradients = AdderGradients;
#else
#include "register_gradients.cuh"
using Gradients = RegisterGradients;
#endif
