// SPDX-License-Identifier: Apache-2.0
#include "client/load/cpu_usage.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace gemmd {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The path of this process's control group of version 2, "/" in a container; empty where there is
// none. Beside groups of version 1 its line, which begins with 0::, is the last one.
std::string OwnGroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "";
}

// The least quota of that group and those above it.
double CoresOfGroups() {
  double least = std::numeric_limits<double>::infinity();
  std::string group = OwnGroup();
  if (group.empty()) return least;
  for (;; group.resize(group.rfind('/'))) {
    if (group == "/") group.clear();
    least = std::min(least, CoresOfQuota(FirstLine("/sys/fs/cgroup" + group + "/cpu.max")));
    if (group.find('/') == group.npos) return least;
  }
}

}  // namespace

int64_t ProcessCpuNs() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& time) {
    return int64_t{time.tv_sec} * 1'000'000'000 + int64_t{time.tv_usec} * 1000;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

double CoresOfQuota(const std::string& cpu_max) {
  std::istringstream text(cpu_max);
  double quota_us = 0;
  double period_us = 0;
  const bool is_quota = (text >> quota_us >> period_us) && quota_us > 0 && period_us > 0;
  return is_quota ? quota_us / period_us : std::numeric_limits<double>::infinity();
}

double UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const double by_affinity =
      sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return std::min(by_affinity, CoresOfGroups());
}

}  // namespace gemmd
