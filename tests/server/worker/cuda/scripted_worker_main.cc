// SPDX-License-Identifier: Apache-2.0
//
// gemmd-scripted-worker: the worker of a real GPU, controlled by a script (scripted_runtime.h).
// Given to the daemon in place of gemmd-worker (--worker-binary); not shipped.
#include <memory>

#include "server/worker/cuda/cuda_runtime.h"
#include "server/worker/worker.h"
#include "tests/server/worker/cuda/endless_loop.h"
#include "tests/server/worker/scripted_runtime.h"

int main(int argc, char** argv) {
  const std::unique_ptr<gemmd::GpuRuntime> runtime = gemmd::MakeCudaRuntime();
  gemmd::ScriptedRuntime scripted(*runtime, gemmd::RunEndlessLoop);
  return gemmd::EnterWorker(argc, argv, scripted, gemmd::MeasureGpuRates,
                            {scripted.script_folder()});
}
