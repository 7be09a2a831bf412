// SPDX-License-Identifier: Apache-2.0
//
// gemmd-crossing: prints the latency to a worker's process and back, with one job at a time: the
// time from Submit to the end, without the worker's time for the job itself.
// usage: gemmd-crossing WORKER_BINARY [JOBS [SPIN_US]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <future>
#include <utility>
#include <vector>

#include "server/device/worker_device.h"
#include "tests/server/worker/small_product.h"

namespace gemmd {
namespace {

int64_t NowNs() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs jobs one after the other. Each is submitted at the end of the one before, as the scheduler
// does, or after a pause.
class Crossing {
 public:
  Crossing(WorkerDevice& device, const Job& job, size_t jobs)
      : device_(device), job_(job), jobs_(jobs) {}

  void Run(long pause_ns) {
    pause_ns_ = pause_ns;
    Submit();
    done_.get_future().wait();
  }

  // Both from Submit to the end: without the stages of the job itself, and with them.
  std::vector<int64_t>& times_ns() { return times_ns_; }
  std::vector<int64_t>& wholes_ns() { return wholes_ns_; }

 private:
  void Submit() {
    const timespec pause = {.tv_sec = 0, .tv_nsec = pause_ns_};
    if (pause_ns_ > 0) nanosleep(&pause, nullptr);
    start_ns_ = NowNs();
    device_.Submit(job_, [this](JobOutcome outcome) {
      const int64_t stages_ns = outcome.copy_in_ns + outcome.compute_ns + outcome.copy_out_ns;
      const int64_t all_ns = NowNs() - start_ns_;
      wholes_ns_.push_back(all_ns);
      times_ns_.push_back(all_ns - stages_ns);
      if (!outcome.status.ok()) std::exit(1);
      if (times_ns_.size() < jobs_) return Submit();
      done_.set_value();
    });
  }

  WorkerDevice& device_;
  const Job job_;
  const size_t jobs_;
  long pause_ns_ = 0;
  int64_t start_ns_ = 0;
  std::vector<int64_t> times_ns_;
  std::vector<int64_t> wholes_ns_;
  std::promise<void> done_;
};

void Print(const char* what, WorkerDevice& device, const Job& job, int jobs, long pause_ns) {
  Crossing crossing(device, job, static_cast<size_t>(jobs));
  crossing.Run(pause_ns);
  const auto at = [&](std::vector<int64_t>& times_ns, double part) {
    std::sort(times_ns.begin(), times_ns.end());
    return static_cast<double>(times_ns[static_cast<size_t>(part * (jobs - 1))]) / 1e3;
  };
  std::vector<int64_t>& times = crossing.times_ns();
  std::printf("%-30s p50 %6.1f us  p90 %6.1f us  p99 %6.1f us  whole p50 %6.1f us\n", what,
              at(times, 0.5), at(times, 0.9), at(times, 0.99), at(crossing.wholes_ns(), 0.5));
}

int Main(int argc, char** argv) {
  if (argc < 2) return 2;
  const int jobs = argc > 2 ? std::atoi(argv[2]) : 10000;
  WorkerDeviceOptions options;
  options.program.binary = argv[1];
  if (argc > 3) options.program.spin_ns = int64_t{1000} * std::atoi(argv[3]);
  std::printf("looking for %s before sleeping\n",
              absl::FormatDuration(absl::Nanoseconds(options.program.spin_ns)).c_str());
  WorkerDevice device(options);
  if (const absl::Status status = device.WaitUntilStarted(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  SmallProduct empty(0, 0, 0);
  SmallProduct small(64, 64, 64);
  constexpr long kPauseNs = 300'000;  // Long enough for processors to go to sleep.
  Print("empty, one after the other", device, empty.JobFor(device), jobs, 0);
  Print("64x64x64, one after the other", device, small.JobFor(device), jobs, 0);
  Print("empty, with pauses", device, empty.JobFor(device), jobs / 10, kPauseNs);
  Print("64x64x64, with pauses", device, small.JobFor(device), jobs / 10, kPauseNs);
  return 0;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::Main(argc, argv); }
