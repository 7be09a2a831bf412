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
  // Whatever lies free at the end of an arena stays up to this size, malloc_trim or not. All arenas
  // together may so keep 48 MiB: with 16 of 32 MiB, 78 MiB were seen. With 8 MiB in each, every
  // page that gRPC receives into was given back and cleared anew for the next message.
  constexpr int kKeptBytes = 12 << 20;
  constexpr int kMostArenas = 4;
  mallopt(M_ARENA_MAX, std::clamp(cores, 2, kMostArenas));
  mallopt(M_MMAP_THRESHOLD, kMmapBytes);
  mallopt(M_TRIM_THRESHOLD, kKeptBytes);
}

void GiveBackFreeMemory() { malloc_trim(0); }

}  // namespace gemmd
