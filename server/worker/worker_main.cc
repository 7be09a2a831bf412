// SPDX-License-Identifier: Apache-2.0
//
// gemmd-worker: one GPU's worker. gemmd starts it and speaks with it (protocol.h).
// For tests, the environment variable GEMMD_WORKER_SCRIPT names a file that makes calls of CUDA
// fail and kernels go wrong (scripted_runtime.h).
#include <cstdlib>
#include <memory>

#include "server/worker/cuda_runtime.h"
#include "server/worker/measure_gpu.h"
#include "server/worker/worker_entry.h"

int main(int argc, char** argv) {
  const char* script = getenv("GEMMD_WORKER_SCRIPT");  // NOLINT(concurrency-mt-unsafe): no threads.
  const std::unique_ptr<gemmd::GpuRuntime> runtime = gemmd::MakeCudaRuntime();
  return gemmd::EnterWorker(argc, argv, *runtime, script == nullptr ? "" : script,
                            gemmd::MeasureGpuRates);
}
