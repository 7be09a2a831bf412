// SPDX-License-Identifier: Apache-2.0
//
// gemmd-worker: one GPU's worker. gemmd starts it and speaks with it (protocol.h).
#include <memory>

#include "server/worker/cuda/cuda_runtime.h"
#include "server/worker/measure_gpu.h"
#include "server/worker/worker_entry.h"

int main(int argc, char** argv) {
  const std::unique_ptr<gemmd::GpuRuntime> runtime = gemmd::MakeCudaRuntime();
  return gemmd::EnterWorker(argc, argv, *runtime, gemmd::MeasureGpuRates);
}
