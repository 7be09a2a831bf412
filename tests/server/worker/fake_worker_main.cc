// SPDX-License-Identifier: Apache-2.0
//
// gemmd-fake-worker: a worker without a GPU, controlled by a script (hooked_runtime.h). If the
// environment variable GEMMD_WORKER_SEED has a number, its lanes proceed in random order.
#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "server/worker/worker.h"
#include "tests/server/worker/fake_gpu_runtime.h"
#include "tests/server/worker/hooked_runtime.h"

namespace {

absl::Status PauseWithoutEnd() {
  while (true) pause();
}

}  // namespace

int main(int argc, char** argv) {
  gemmd::FakeGpuRuntime fake;
  std::optional<gemmd::HookedRuntime> delayed;
  const char* seed = getenv("GEMMD_WORKER_SEED");  // NOLINT(concurrency-mt-unsafe): no threads.
  if (seed != nullptr) {
    delayed.emplace(fake, gemmd::InRandomOrder(fake, std::strtoull(seed, nullptr, 10)));
  }
  gemmd::GpuRuntime& runtime = delayed ? static_cast<gemmd::GpuRuntime&>(*delayed) : fake;
  gemmd::HookedRuntime scripted(runtime, gemmd::AsTheScriptSays(runtime, PauseWithoutEnd));
  return gemmd::EnterWorker(argc, argv, scripted, gemmd::MeasureNothing, {gemmd::ScriptFolder()});
}
