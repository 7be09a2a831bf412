// SPDX-License-Identifier: Apache-2.0
//
// gemmd-worker: the worker of one GPU, started by gemmd (see protocol.h).
#include <cstdlib>
#include <memory>
#include <string>

#include "server/worker/cuda/cuda_runtime.h"
#include "server/worker/worker.h"

namespace {

// The folder of the pipes of CUDA's Multi-Process Service (MPS), if any.
std::string PipesOfMps() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");  // NOLINT(concurrency-mt-unsafe)
  return folder == nullptr ? "/tmp/nvidia-mps" : folder;
}

}  // namespace

int main(int argc, char** argv) {
  const std::unique_ptr<gemmd::GpuRuntime> runtime = gemmd::MakeCudaRuntime();
  return gemmd::EnterWorker(argc, argv, *runtime, gemmd::MeasureGpuRates, {PipesOfMps()});
}
