// SPDX-License-Identifier: Apache-2.0
#include "server/system/resident_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace gemmd {

std::optional<int64_t> ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all_pages = 0;
  int64_t resident_pages = 0;
  if (!(file >> all_pages >> resident_pages)) return std::nullopt;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

void KeepLittleFreeMemory(int cores) {
  constexpr int kMmapBytes = 1 << 20;
  // With 8 MiB every page that gRPC receives into was given back and cleared anew for the next
  // message; with more than 32 there is nothing left to gain.
  constexpr int kKeptBytes = 32 << 20;
  mallopt(M_ARENA_MAX, std::max(2, cores));
  mallopt(M_MMAP_THRESHOLD, kMmapBytes);
  mallopt(M_TRIM_THRESHOLD, kKeptBytes);
}

void GiveBackFreeMemory() { malloc_trim(0); }

}  // namespace gemmd
