// SPDX-License-Identifier: Apache-2.0
//
// Whether what a command line asks for finds memory, before any is taken.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace gemmd::option {

// Bytes that the machine can give without swapping, and at most what the control group may have;
// all bytes there are where neither says.
inline int64_t FreeMemoryBytes() {
  int64_t free = std::numeric_limits<int64_t>::max();
  int64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) free = limit;
  std::ifstream file("/proc/meminfo");
  std::string name;
  while (file >> name && name != "MemAvailable:") {
  }
  int64_t kib = 0;
  if (file >> kib) free = std::min(free, kib * 1024);
  return free;
}

// What is wrong with `what` that needs so many bytes, none standing for more than 63 bits; empty if
// they are free: "got 9x9x9, which needs 4096 bytes of memory, want at most 1024, which are free".
inline std::string RefuseMemory(const std::string& what, std::optional<int64_t> bytes,
                                int64_t free = FreeMemoryBytes()) {
  if (bytes && *bytes <= free) return "";
  return "got " + what + ", which needs " + (bytes ? std::to_string(*bytes) : "2^63 or more") +
         " bytes of memory, want at most " + std::to_string(free) + ", which are free";
}

}  // namespace gemmd::option
