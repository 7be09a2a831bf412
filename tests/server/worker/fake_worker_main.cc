// SPDX-License-Identifier: Apache-2.0
//
// gemmd-fake-worker: a worker without a GPU. It obeys the script that the environment variable
// GEMMD_WORKER_SCRIPT names (server/worker/scripted_runtime.h).
#include <cstdlib>

#include "server/worker/worker_entry.h"
#include "tests/server/worker/fake_gpu_runtime.h"

int main(int argc, char** argv) {
  const char* script = getenv("GEMMD_WORKER_SCRIPT");  // NOLINT(concurrency-mt-unsafe): no threads.
  gemmd::FakeGpuRuntime runtime;
  return gemmd::EnterWorker(argc, argv, runtime, script == nullptr ? "" : script,
                            gemmd::MeasureNothing);
}
