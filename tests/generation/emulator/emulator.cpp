// The kernels of the fused engine as plain functions of a shared library; the arguments are those of the kernels.
#include "ptx.cuh"

#include "evaluate.cu"
#include "measure.cu"
#include "train_epoch.cu"

extern "C" void emulate_train_epoch(int models, int parts, uint64_t schedule, const TrainArguments* arguments) {
    launch(models, parts, TRAIN_THREADS, schedule, [=] { train_epoch(*arguments); });
}

extern "C" void emulate_evaluate(int models, int parts, uint64_t schedule, const EvaluateArguments* arguments) {
    launch(models, parts, EVALUATE_THREADS, schedule, [=] { evaluate(*arguments); });
}

extern "C" void emulate_measure(int models, int parts, uint64_t schedule, const EvaluateArguments* arguments) {
    launch(models, parts, in_floats::THREADS, schedule, [=] { measure(*arguments); });
}
