// SPDX-License-Identifier: Apache-2.0
#include "kernels/nearest_names.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr size_t kNearest = 3;  // Known names in the message about an unknown one.
constexpr size_t kShown = 128;  // Characters of the unknown name in the message.

// The number of insertions, deletions and replacements that turn one name into the other.
int EditDistance(std::string_view from, std::string_view to) {
  std::vector<int> row(to.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < from.size(); ++i) {
    int diagonal = row[0]++;
    for (size_t j = 0; j < to.size(); ++j) {
      const int replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string NearestNames(absl::Span<const std::string_view> known, std::string_view name) {
  struct Near {
    int distance;
    std::string_view name;
  };
  std::vector<Near> all;
  for (const std::string_view candidate : known) {
    all.push_back({EditDistance(name, candidate), candidate});
  }
  const size_t count = std::min(kNearest, all.size());
  std::stable_sort(all.begin(), all.end(),
                   [](const Near& a, const Near& b) { return a.distance < b.distance; });
  std::string text;
  for (size_t i = 0; i < count; ++i) text += Concat(i == 0 ? "" : ", ", all[i].name);
  return text;
}

}  // namespace

absl::Status UnknownName(std::string_view field, std::string_view name, std::string_view wanted,
                         absl::Span<const std::string_view> known) {
  name = name.substr(0, kShown);
  return absl::NotFoundError(
      GotWant(field, name, Concat(wanted, " (nearest: ", NearestNames(known, name), ")")));
}

}  // namespace gemmd
