// SPDX-License-Identifier: Apache-2.0
#include "server/system/control_group.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace gemmd {
namespace {

constexpr int64_t kNoMemoryLimit = std::numeric_limits<int64_t>::max();

// Version 2 writes "max" where there is no limit, version 1 the largest number of whole pages.
int64_t MemoryLimitInFile(const std::string& path) {
  constexpr int64_t kLeastOfNoLimit = int64_t{1} << 62;
  std::ifstream file(path);
  std::string text;
  int64_t limit = 0;
  const bool is_limit = std::getline(file, text) && absl::SimpleAtoi(text, &limit) && limit > 0 &&
                        limit < kLeastOfNoLimit;
  return is_limit ? limit : kNoMemoryLimit;
}

// The least limit of a group and of those that contain it, up to the folder of all groups. In a
// container the path may be the host's and missing; then the folder of all groups is the
// container's.
int64_t LeastMemoryLimit(const std::string& all_groups, std::string group, const char* file) {
  int64_t least = kNoMemoryLimit;
  while (true) {
    least = std::min(least, MemoryLimitInFile(absl::StrCat(all_groups, group, "/", file)));
    const size_t slash = group.rfind('/');
    if (slash == group.npos) return least;
    group.resize(slash);
  }
}

// A process outside its control group namespace has a path like "/../..", which leads out of the
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
// A group that no line names is the folder of all groups, "".
MemoryGroups MemoryGroupsOfProcess(const std::string& path) {
  MemoryGroups groups;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t number_end = line.find(':');
    if (number_end == line.npos) continue;
    const size_t controllers_end = line.find(':', number_end + 1);
    if (controllers_end == line.npos) continue;
    const std::string controllers =
        absl::StrCat(",", line.substr(number_end + 1, controllers_end - number_end - 1), ",");
    const std::string group = line.substr(controllers_end + 1);
    if (!IsWithinAllGroups(group)) continue;
    if (line.starts_with("0::")) groups.version2 = group;
    if (controllers.find(",memory,") != controllers.npos) groups.version1 = group;
  }
  return groups;
}

}  // namespace

std::optional<int64_t> ControlGroupMemoryLimit(const std::string& root) {
  const std::filesystem::path folder(root);
  const MemoryGroups groups = MemoryGroupsOfProcess(folder / "proc/self/cgroup");
  const std::string all_groups = folder / "sys/fs/cgroup";
  const int64_t least = std::min(LeastMemoryLimit(all_groups, groups.version2, "memory.max"),
                                 LeastMemoryLimit(absl::StrCat(all_groups, "/memory"),
                                                  groups.version1, "memory.limit_in_bytes"));
  if (least == kNoMemoryLimit) return std::nullopt;
  return least;
}

}  // namespace gemmd
