// SPDX-License-Identifier: Apache-2.0
#include "client/load/cpu_usage.h"

#include <sched.h>
#include <sys/resource.h>

namespace gemmd {

int64_t ProcessCpuNs() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& time) {
    return int64_t{time.tv_sec} * 1'000'000'000 + int64_t{time.tv_usec} * 1000;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

double UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace gemmd
