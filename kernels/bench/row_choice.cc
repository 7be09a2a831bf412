// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/row_choice.h"

#include <fnmatch.h>

#include <algorithm>

namespace gemmd::bench {

bool Matches(const std::string& pattern, std::string_view name) {
  return fnmatch(pattern.c_str(), std::string(name).c_str(), 0) == 0;
}

std::vector<const Kernel*> ChooseRows(absl::Span<const Kernel> catalog,
                                      const std::vector<std::string>& patterns) {
  std::vector<const Kernel*> rows;
  for (const Kernel& kernel : catalog) {
    const bool is_chosen = std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
      return Matches(pattern, kernel.name);
    });
    if (is_chosen) rows.push_back(&kernel);
  }
  return rows;
}

std::vector<std::string> IdlePatterns(absl::Span<const Kernel> catalog,
                                      const std::vector<std::string>& patterns) {
  std::vector<std::string> idle;
  for (const std::string& pattern : patterns) {
    if (ChooseRows(catalog, {pattern}).empty()) idle.push_back(pattern);
  }
  return idle;
}

}  // namespace gemmd::bench
