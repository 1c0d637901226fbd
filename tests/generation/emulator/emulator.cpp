// Both kernels of the fused engine as plain functions of a shared library; the arguments are those of the kernels.
#include "machine.cuh"

#include "evaluate.cu"
#include "train_epoch.cu"

extern "C" void emulate_train_epoch(
    int models, int, uint64_t schedule, const u16* inputs, const u32* facts, const float* positions, const float* corrections,
    const float* rules, const float* epsilons, const u32* thresholds, const u32* seeds, const u8* alive,
    float* weights, float* first, float* second, double* losses, int steps, int batch, u32 first_step
) {
    launch(models, 1, WARPS * WARP, schedule, [=] {
        train_epoch(inputs, facts, positions, corrections, rules, epsilons, thresholds, seeds, alive,
                    weights, first, second, losses, steps, batch, first_step);
    });
}

extern "C" void emulate_evaluate(
    int models, int parts, uint64_t schedule, const u16* inputs, const u32* facts, const float* positions, const u8* alive,
    const float* weights, int* correct, double* losses, int examples, int part_size, int all_parts
) {
    launch(models, parts, EVALUATION_THREADS, schedule, [=] {
        evaluate(inputs, facts, positions, alive, weights, correct, losses, examples, part_size, all_parts);
    });
}
