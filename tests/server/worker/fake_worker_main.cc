// SPDX-License-Identifier: Apache-2.0
//
// gemmd-fake-worker: a worker without a GPU, controlled by a script (scripted_runtime.h). If the
// environment variable GEMMD_WORKER_SEED has a number, its lanes proceed in random order
// (delayed_gpu_runtime.h).
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "server/worker/worker.h"
#include "tests/server/worker/delayed_gpu_runtime.h"
#include "tests/server/worker/fake_gpu_runtime.h"
#include "tests/server/worker/scripted_runtime.h"

namespace {

absl::Status PauseWithoutEnd() {
  while (true) pause();
}

std::unique_ptr<gemmd::GpuRuntime> MakeRuntime() {
  const char* seed = getenv("GEMMD_WORKER_SEED");  // NOLINT(concurrency-mt-unsafe): no threads.
  if (seed == nullptr) return std::make_unique<gemmd::FakeGpuRuntime>();
  return std::make_unique<gemmd::DelayedGpuRuntime>(std::strtoull(seed, nullptr, 10));
}

}  // namespace

int main(int argc, char** argv) {
  const std::unique_ptr<gemmd::GpuRuntime> runtime = MakeRuntime();
  gemmd::ScriptedRuntime scripted(*runtime, PauseWithoutEnd);
  return gemmd::EnterWorker(argc, argv, scripted, gemmd::MeasureNothing,
                            {scripted.script_folder()});
}
