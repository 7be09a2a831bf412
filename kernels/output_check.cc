// SPDX-License-Identifier: Apache-2.0
#include "kernels/output_check.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "kernels/text.h"

namespace gemmd {
namespace {

namespace fs = std::filesystem;

bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  if (fs::is_character_file(a, error)) return false;
  if (fs::equivalent(a, b, error)) return true;
  const auto place_of = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(LinkTarget(path), error), error);
  };
  return place_of(a) == place_of(b);
}

}  // namespace

std::string LinkTarget(const std::string& path) {
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

absl::Status CheckOutputs(std::span<const OptionFile> outputs, std::span<const OptionFile> inputs) {
  std::vector<OptionFile> others(inputs.begin(), inputs.end());
  for (const OptionFile& output : outputs) {
    if (output.path.empty()) continue;
    for (const OptionFile& other : others) {
      if (other.path.empty() || !IsSameFile(output.path, other.path)) continue;
      return absl::InvalidArgumentError(
          GotWant(output.option, output.path, Concat("another file than that of ", other.option)));
    }
    others.push_back(output);
  }
  return absl::OkStatus();
}

}  // namespace gemmd
