// SPDX-License-Identifier: Apache-2.0
//
// gemmd-scripted-worker: the worker of a real GPU, controlled by a script (hooked_runtime.h).
// Given to the daemon in place of gemmd-worker (--worker-binary); not shipped.
#include <memory>

#include "server/worker/cuda/cuda_runtime.h"
#include "server/worker/worker.h"
#include "tests/server/worker/cuda/endless_loop.h"
#include "tests/server/worker/hooked_runtime.h"

int main(int argc, char** argv) {
  const std::unique_ptr<gemmd::GpuRuntime> runtime = gemmd::MakeCudaRuntime();
  gemmd::HookedRuntime scripted(*runtime, gemmd::AsTheScriptSays(*runtime, gemmd::RunEndlessLoop));
  return gemmd::EnterWorker(argc, argv, scripted, gemmd::MeasureGpuRates, {gemmd::ScriptFolder()});
}
