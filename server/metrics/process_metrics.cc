// SPDX-License-Identifier: Apache-2.0
//
// What every Prometheus client library tells about its process, under the names that they share.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "server/metrics/metric.h"
#include "server/system/resident_memory.h"

namespace gemmd {
namespace {

// A field of /proc/self/stat after the program's name, which may hold anything. Fields have the
// numbers of proc(5); the first after the name is 3.
std::optional<int64_t> StatField(int number) {
  std::ifstream file("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= number; ++i) fields >> field;
  std::istringstream digits(field);
  int64_t value = 0;
  if (!(digits >> value)) return std::nullopt;
  return value;
}

std::optional<double> Ticks(std::optional<int64_t> ticks) {
  if (!ticks) return std::nullopt;
  return static_cast<double>(*ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double Seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

std::optional<double> CpuSeconds() {
  timespec used = {};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) != 0) return std::nullopt;
  return Seconds(used);
}

// In seconds since 1970.
std::optional<double> ComputeStartSeconds() {
  constexpr int kStartTime = 22;  // In ticks since the machine's start.
  const std::optional<double> start = Ticks(StatField(kStartTime));
  timespec wall = {};
  timespec since_boot = {};
  if (!start || clock_gettime(CLOCK_REALTIME, &wall) != 0 ||
      clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) {
    return std::nullopt;
  }
  return Seconds(wall) - Seconds(since_boot) + *start;
}

// Computed once: the two clocks drift apart and are never read at the same moment, but a start that
// moves looks like a restart.
std::optional<double> StartSeconds() {
  static const std::optional<double> start = ComputeStartSeconds();
  return start;
}

std::optional<int64_t> OpenFiles() {
  std::error_code error;
  int64_t count = 0;
  // A range-based loop would throw from its ++.
  for (std::filesystem::directory_iterator file("/proc/self/fd", error), end; !error && file != end;
       file.increment(error)) {
    ++count;
  }
  if (error) return std::nullopt;
  return count - 1;  // One of the files is the open folder itself.
}

std::optional<int64_t> MostOpenFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

constexpr Metric kProcessMetrics[] = {
    {.name = "process_cpu_seconds_total",
     .type = MetricType::kCounter,
     .unit = "seconds",
     .help = "Processor time that the daemon has used, without the workers of GPUs",
     .collect = [](const Snapshot&, Samples& s) { s.Add({}, CpuSeconds()); }},
    {.name = "process_resident_memory_bytes",
     .unit = "bytes",
     .help = "Resident memory of the daemon",
     .collect = [](const Snapshot&, Samples& s) { s.Add({}, ResidentBytes()); }},
    {.name = "process_open_fds",
     .help = "Files that the daemon has open",
     .collect = [](const Snapshot&, Samples& s) { s.Add({}, OpenFiles()); }},
    {.name = "process_max_fds",
     .help = "The most files that the daemon may have open",
     .collect = [](const Snapshot&, Samples& s) { s.Add({}, MostOpenFiles()); }},
    {.name = "process_start_time_seconds",
     .unit = "seconds",
     .help = "When the daemon started, in seconds since 1970",
     .collect = [](const Snapshot&, Samples& s) { s.Add({}, StartSeconds()); }},
};

}  // namespace

absl::Span<const Metric> ProcessMetrics() { return kProcessMetrics; }

}  // namespace gemmd
