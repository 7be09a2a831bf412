// SPDX-License-Identifier: Apache-2.0
#include "server/system/processors.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace gemmd {

int UsableProcessors() {
  cpu_set_t usable;
  // Fails where the machine has more than the set has room for.
  if (sched_getaffinity(0, sizeof(usable), &usable) == 0) return CPU_COUNT(&usable);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace gemmd
