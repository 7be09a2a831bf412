// SPDX-License-Identifier: Apache-2.0
//
// Whether two options name one file, by whatever path, even if it is not there yet.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace gemmd::option {

// The file that the links of a path lead to.
inline std::string LinkTarget(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMostLinks = 40;  // As many as the kernel follows.
  std::error_code error;
  fs::path target = fs::canonical(path, error);
  if (!error) return target;
  // Nothing is there yet.
  target = path;
  for (int i = 0; i < kMostLinks && fs::is_symlink(target, error); ++i) {
    target = target.parent_path() / fs::read_symlink(target, error);
  }
  return target;
}

// A device such as /dev/null is no file that two options could spoil.
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

}  // namespace gemmd::option
