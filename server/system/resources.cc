// SPDX-License-Identifier: Apache-2.0
#include "server/system/resources.h"

#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gemmd {

namespace {

struct Usage {
  int64_t mapped_bytes = 0;
  int64_t resident_bytes = 0;
  int64_t shared_bytes = 0;  // The resident bytes that belong to files or are shared.
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

// The resident pages of shared memory that is not a file on disk.
int64_t ResidentSharedMemory() {
  std::ifstream file("/proc/self/status");
  std::string key;
  while (file >> key) {
    int64_t kibibytes = 0;
    if (key == "RssShmem:" && file >> kibibytes) return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
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

std::optional<int64_t> UsedBytes(int64_t limit_bytes, int64_t shared_bytes) {
  const std::optional<Usage> usage = ReadUsage();
  if (!usage) return std::nullopt;
  const int64_t resident_bytes = usage->resident_bytes - ResidentSharedMemory() + shared_bytes;
  const int64_t left_bytes = LeftOfAddressSpace(*usage).value_or(limit_bytes);
  const int64_t reachable_bytes = resident_bytes + std::max<int64_t>(left_bytes, 0);
  if (reachable_bytes >= limit_bytes) return resident_bytes;
  const double part = static_cast<double>(resident_bytes) / static_cast<double>(reachable_bytes);
  return static_cast<int64_t>(part * static_cast<double>(limit_bytes));
}

void KeepLittleFreeMemory(int cores) {
  constexpr int kMmapBytes = 1 << 20;
  // Free memory at the end of an arena stays up to this size, even after malloc_trim, so all arenas
  // together may keep 48 MiB: with 16 arenas of 32 MiB, 78 MiB were measured. With 8 MiB each,
  // every page into which gRPC receives was returned, and cleared again for the next message.
  constexpr int kKeptBytes = 12 << 20;
  constexpr int kMaxArenas = 4;
  mallopt(M_ARENA_MAX, std::clamp(cores, 2, kMaxArenas));
  mallopt(M_MMAP_THRESHOLD, kMmapBytes);
  mallopt(M_TRIM_THRESHOLD, kKeptBytes);
}

void GiveBackFreeMemory() { malloc_trim(0); }

namespace {

constexpr size_t kStackBytes = size_t{2} << 20;

void UseSmallerStacks() {
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  size_t bytes = 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_setstacksize(&attributes, std::min(bytes, kStackBytes));
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

}  // namespace

bool HasSpareAddresses() {
  rlimit limit = {};
  // The usual case. A mapping would delay all threads that wait for pages.
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY) return true;
  void* const probe =
      mmap(nullptr, kSpareAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED) return false;
  munmap(probe, kSpareAddresses);
  return true;
}

absl::Status PrepareForFewAddresses() {
  const std::optional<int64_t> left_bytes = AddressSpaceLeft();
  if (!left_bytes) return absl::OkStatus();
  UseSmallerStacks();
  constexpr int64_t kMib = int64_t{1} << 20;
  const int processors = get_nprocs_conf();
  const int64_t wanted_mib = 192 + 4 * int64_t{processors};
  if (*left_bytes >= wanted_mib * kMib) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("ulimit -v leaves ", *left_bytes / kMib, " MiB of addresses, want at least ",
                   wanted_mib, " MiB on a machine of ", processors, " processors"));
}

namespace {

constexpr int64_t kNoMemoryLimit = std::numeric_limits<int64_t>::max();

// Without a limit, version 2 writes "max", and version 1 the largest number of whole pages.
int64_t MemoryLimitInFile(const std::string& path) {
  constexpr int64_t kMinOfNoLimit = int64_t{1} << 62;
  std::ifstream file(path);
  std::string text;
  int64_t limit = 0;
  const bool is_limit = std::getline(file, text) && absl::SimpleAtoi(text, &limit) && limit > 0 &&
                        limit < kMinOfNoLimit;
  return is_limit ? limit : kNoMemoryLimit;
}

// The lowest limit of a group and its parents, up to the folder of all groups. In a container the
// path may be that of the host and missing; then the folder of all groups is that of the container.
int64_t MinMemoryLimit(const std::string& all_groups, std::string group, const char* file) {
  int64_t limit = kNoMemoryLimit;
  while (true) {
    limit = std::min(limit, MemoryLimitInFile(absl::StrCat(all_groups, group, "/", file)));
    const size_t slash = group.rfind('/');
    if (slash == group.npos) return limit;
    group.resize(slash);
  }
}

// A process outside its control group namespace has a path like "/../..", which leads outside the
// folder of all groups.
bool IsWithinAllGroups(std::string_view group) {
  const auto up = [](const std::filesystem::path& part) { return part == ".."; };
  const std::filesystem::path path(group);
  return path.is_absolute() && std::none_of(path.begin(), path.end(), up);
}

struct MemoryGroups {
  std::string version1;
  std::string version2;
};

// From lines "NUMBER:CONTROLLERS:PATH"; those of version 2 have the number 0 and no controllers.
// A group that is not in any line is the folder of all groups, "".
MemoryGroups MemoryGroupsOfProcess(const std::string& path) {
  MemoryGroups groups;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !IsWithinAllGroups(parts[2])) continue;
    if (line.starts_with("0::")) groups.version2 = parts[2];
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (absl::c_linear_search(controllers, "memory")) groups.version1 = parts[2];
  }
  return groups;
}

}  // namespace

std::optional<int64_t> ControlGroupMemoryLimit(const std::string& root) {
  const std::filesystem::path folder(root);
  const MemoryGroups groups = MemoryGroupsOfProcess(folder / "proc/self/cgroup");
  const std::string all_groups = folder / "sys/fs/cgroup";
  const int64_t limit = std::min(MinMemoryLimit(all_groups, groups.version2, "memory.max"),
                                 MinMemoryLimit(absl::StrCat(all_groups, "/memory"),
                                                groups.version1, "memory.limit_in_bytes"));
  if (limit == kNoMemoryLimit) return std::nullopt;
  return limit;
}

int UsableProcessors() {
  cpu_set_t usable;
  // Fails if the machine has more processors than the set has room for.
  if (sched_getaffinity(0, sizeof(usable), &usable) == 0) return CPU_COUNT(&usable);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace gemmd
