// SPDX-License-Identifier: Apache-2.0
#include "server/worker/worker_entry.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "server/system/version.h"

namespace gemmd {
namespace {

// The kernel kills this process when the thread that started it ends.
bool DieWithParent(int64_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return getppid() == parent;  // Otherwise it ended before.
}

}  // namespace

int EnterWorker(int argc, const char* const* argv, GpuRuntime& runtime, MeasureGpu measure,
                std::vector<std::string> writable) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts(VersionText("gemmd-worker").c_str());
    return 0;
  }
  WorkerOptions options;
  int64_t parent = 0;
  if (argc != 7 || !absl::SimpleAtoi(argv[1], &options.ordinal) ||
      !absl::SimpleAtoi(argv[2], &parent) ||
      !absl::SimpleAtoi(argv[3], &options.memory_limit_bytes) ||
      !absl::SimpleAtoi(argv[4], &options.tensor_limit_bytes) ||
      !absl::SimpleAtoi(argv[5], &options.spin_ns) ||
      !absl::SimpleAtob(argv[6], &options.is_confined)) {
    std::fputs("This is a part of gemmd, which starts it for each GPU.\n", stderr);
    return 2;
  }
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  if (!DieWithParent(parent)) return 1;
  options.measure = std::move(measure);
  // The driver opens its devices, shares memory in /dev/shm and names its threads.
  options.writable = {"/dev", "/proc/self"};
  for (std::string& folder : writable) options.writable.push_back(std::move(folder));
  return RunWorker(options, runtime, kWorkerSocket, kWorkerStaging).ok() ? 0 : 1;
}

}  // namespace gemmd
