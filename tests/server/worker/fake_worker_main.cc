// SPDX-License-Identifier: Apache-2.0
//
// gemmd-fake-worker: a worker without a GPU that obeys a script (scripted_runtime.h).
#include <unistd.h>

#include "server/worker/worker_entry.h"
#include "tests/server/worker/fake_gpu_runtime.h"
#include "tests/server/worker/scripted_runtime.h"

namespace {

absl::Status PauseWithoutEnd() {
  while (true) pause();
}

}  // namespace

int main(int argc, char** argv) {
  gemmd::FakeGpuRuntime runtime;
  gemmd::ScriptedRuntime scripted(runtime, PauseWithoutEnd);
  return gemmd::EnterWorker(argc, argv, scripted, gemmd::MeasureNothing);
}
