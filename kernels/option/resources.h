// SPDX-License-Identifier: Apache-2.0
//
// Checks of the files and memory that a command line needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/text.h"

namespace gemmd::option {

// The file that the links of a path lead to.
inline std::string LinkTarget(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMaxLinks = 40;  // As many as the kernel follows.
  std::error_code error;
  fs::path target = fs::canonical(path, error);
  if (!error) return target;
  // Nothing is there yet.
  target = path;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(target, error); ++i) {
    target = target.parent_path() / fs::read_symlink(target, error);
  }
  return target;
}

// Whether two paths lead to one file, even if it is not there yet. A device such as /dev/null does
// not count: two options cannot corrupt it.
inline bool IsSameFile(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_character_file(a, error)) return false;
  if (fs::equivalent(a, b, error)) return true;
  const auto place_of = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(LinkTarget(path), error), error);
  };
  return place_of(a) == place_of(b);
}

// Free memory of the machine without swapping, limited by the control group; the maximum if neither
// is known.
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

// The error for `what` if it needs more bytes than are free (nullopt: more than 63 bits); empty if
// the bytes are free: "got 9x9x9, which needs 4096 bytes of memory, want at most 1024, which are
// free".
inline std::string RefuseMemory(const std::string& what, std::optional<int64_t> bytes,
                                int64_t free = FreeMemoryBytes()) {
  if (bytes && *bytes <= free) return "";
  return "got " + what + ", which needs " + (bytes ? std::to_string(*bytes) : "2^63 or more") +
         " bytes of memory, want at most " + std::to_string(free) + ", which are free";
}

}  // namespace gemmd::option

namespace gemmd {

// A file that an option names; an empty path names none.
struct OptionFile {
  std::string_view option;
  std::string path;
};

// Checks that each output differs from all other outputs and inputs, by any path. A device such as
// /dev/null may be named twice. Errors: InvalidArgument, naming both options.
inline absl::Status CheckOutputs(std::span<const OptionFile> outputs,
                                 std::span<const OptionFile> inputs) {
  std::vector<OptionFile> others(inputs.begin(), inputs.end());
  for (const OptionFile& output : outputs) {
    if (output.path.empty()) continue;
    for (const OptionFile& other : others) {
      if (other.path.empty() || !option::IsSameFile(output.path, other.path)) continue;
      return Invalid(output.option, output.path,
                     Concat("another file than that of ", other.option));
    }
    others.push_back(output);
  }
  return absl::OkStatus();
}

}  // namespace gemmd
