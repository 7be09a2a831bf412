// SPDX-License-Identifier: Apache-2.0
#include "server/system/resident_memory.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace gemmd {

namespace {

struct Usage {
  int64_t mapped_bytes = 0;
  int64_t resident_bytes = 0;
  int64_t shared_bytes = 0;  // Those of the resident ones that are of files or shared.
};

std::optional<Usage> ReadUsage(const std::string& process = "self") {
  std::ifstream file("/proc/" + process + "/statm");
  int64_t mapped_pages = 0;
  int64_t resident_pages = 0;
  int64_t shared_pages = 0;
  if (!(file >> mapped_pages >> resident_pages >> shared_pages)) return std::nullopt;
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return Usage{mapped_pages * page_bytes, resident_pages * page_bytes, shared_pages * page_bytes};
}

std::optional<int64_t> LeftOfAddressSpace(const Usage& usage) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur) - usage.mapped_bytes;
}

}  // namespace

std::optional<int64_t> ResidentBytes() {
  const std::optional<Usage> usage = ReadUsage();
  if (!usage) return std::nullopt;
  return usage->resident_bytes;
}

int64_t OwnResidentBytes(pid_t process) {
  const std::optional<Usage> usage = ReadUsage(std::to_string(process));
  return usage ? std::max<int64_t>(usage->resident_bytes - usage->shared_bytes, 0) : 0;
}

std::optional<int64_t> AddressSpaceLeft() {
  const std::optional<Usage> usage = ReadUsage();
  return usage ? LeftOfAddressSpace(*usage) : std::nullopt;
}

std::optional<int64_t> UsedBytes(int64_t limit_bytes) {
  const std::optional<Usage> usage = ReadUsage();
  if (!usage) return std::nullopt;
  const int64_t resident_bytes = usage->resident_bytes;
  const int64_t left_bytes = LeftOfAddressSpace(*usage).value_or(limit_bytes);
  const int64_t reachable_bytes = resident_bytes + std::max<int64_t>(left_bytes, 0);
  if (reachable_bytes >= limit_bytes) return resident_bytes;
  const double part = static_cast<double>(resident_bytes) / static_cast<double>(reachable_bytes);
  return static_cast<int64_t>(part * static_cast<double>(limit_bytes));
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
