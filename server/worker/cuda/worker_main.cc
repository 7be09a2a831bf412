// SPDX-License-Identifier: Apache-2.0
//
// gemmd-worker: one GPU's worker. gemmd starts it and speaks with it (protocol.h).
#include <cstdlib>
#include <memory>
#include <string>

#include "server/worker/cuda/cuda_runtime.h"
#include "server/worker/worker.h"

namespace {

// Where the server of CUDA's Multi-Process Service (MPS) has its pipes, if there is one.
std::string PipesOfMps() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");  // NOLINT(concurrency-mt-unsafe)
  return folder == nullptr ? "/tmp/nvidia-mps" : folder;
}

}  // namespace

int main(int argc, char** argv) {
  const std::unique_ptr<gemmd::GpuRuntime> runtime = gemmd::MakeCudaRuntime();
  return gemmd::EnterWorker(argc, argv, *runtime, gemmd::MeasureGpuRates, {PipesOfMps()});
}
