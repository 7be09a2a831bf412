// SPDX-License-Identifier: Apache-2.0
//
// gemmd-crossing: prints what it costs to cross to a worker's process and back, with one job at a
// time: the time from Submit to its end but for what the worker needs for the job itself.
// usage: gemmd-crossing WORKER_BINARY [JOBS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <future>
#include <vector>

#include "server/worker_device.h"
#include "tests/server/worker/small_product.h"

namespace gemmd {
namespace {

int64_t NowNs() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What the GPU's stages and copies took is part of the job.
int64_t CrossingNs(WorkerDevice& device, const Job& job) {
  std::promise<int64_t> end;
  const int64_t start_ns = NowNs();
  device.Submit(job, [&](const JobOutcome& outcome) {
    const int64_t stages_ns = outcome.copy_in_ns + outcome.compute_ns + outcome.copy_out_ns;
    end.set_value(outcome.status.ok() ? NowNs() - start_ns - stages_ns : -1);
  });
  return end.get_future().get();
}

void Print(const char* what, WorkerDevice& device, const Job& job, int jobs, long pause_ns) {
  std::vector<int64_t> times;
  for (int i = 0; i < jobs; ++i) {
    const timespec pause = {.tv_sec = 0, .tv_nsec = pause_ns};
    if (pause_ns > 0) nanosleep(&pause, nullptr);
    times.push_back(CrossingNs(device, job));
    if (times.back() < 0) std::exit(1);
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double part) {
    return static_cast<double>(times[static_cast<size_t>(part * (jobs - 1))]) / 1e3;
  };
  std::printf("%-30s p50 %6.1f us  p90 %6.1f us  p99 %6.1f us\n", what, at(0.5), at(0.9), at(0.99));
}

int Main(int argc, char** argv) {
  if (argc < 2) return 2;
  const int jobs = argc > 2 ? std::atoi(argv[2]) : 10000;
  WorkerDeviceOptions options;
  options.command.binary = argv[1];
  WorkerDevice device(options);
  if (const absl::Status status = device.WaitUntilStarted(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  SmallProduct empty(0, 0, 0);
  SmallProduct small(64, 64, 64);
  constexpr long kPauseNs = 300'000;  // Long enough for processors to fall asleep.
  Print("empty, one after the other", device, empty.JobFor(device), jobs, 0);
  Print("64x64x64, one after the other", device, small.JobFor(device), jobs, 0);
  Print("empty, with pauses", device, empty.JobFor(device), jobs / 10, kPauseNs);
  Print("64x64x64, with pauses", device, small.JobFor(device), jobs / 10, kPauseNs);
  return 0;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::Main(argc, argv); }
