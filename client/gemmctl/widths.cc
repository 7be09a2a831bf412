// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/widths.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gemmd {
namespace {

// "wgmma.m64n256k16.f32.f16.f16" without its N.
struct SplitName {
  std::string name;  // "wgmma.m64nNk16.f32.f16.f16".
  int width = 0;     // 0: not a name of wgmma.
};

SplitName Split(const std::string& name) {
  if (!absl::StartsWith(name, "wgmma.")) return {name};
  const size_t n = name.find(".m64n");
  if (n == std::string::npos) return {name};
  const size_t first = n + 5;
  const size_t last = name.find('k', first);
  SplitName split;
  if (last == std::string::npos ||
      !absl::SimpleAtoi(absl::string_view(name).substr(first, last - first), &split.width)) {
    return {name};
  }
  split.name = absl::StrCat(name.substr(0, first), "N", name.substr(last));
  return split;
}

// Rows that will be one.
struct Group {
  TableRow row;
  std::vector<int> widths;
};

}  // namespace

std::string DescribeNumbers(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t first = 0; first < numbers.size();) {
    size_t last = first;
    const int step = first + 1 < numbers.size() ? numbers[first + 1] - numbers[first] : 0;
    while (last + 1 < numbers.size() && numbers[last + 1] - numbers[last] == step) ++last;
    if (last - first < 2) last = first;  // Two numbers make no run.
    absl::StrAppend(&text, text.empty() ? "" : ", ", numbers[first]);
    if (last > first) absl::StrAppend(&text, "..", numbers[last], " by ", step);
    first = last + 1;
  }
  return text;
}

std::vector<TableRow> CollapseWidths(const std::vector<TableRow>& rows) {
  std::vector<Group> groups;
  std::map<TableRow, size_t> group_of;
  for (const TableRow& row : rows) {
    const SplitName split = Split(row.front());
    TableRow key = row;
    key.front() = split.name;
    const auto [found, is_new] = group_of.try_emplace(std::move(key), groups.size());
    if (is_new || split.width == 0) groups.push_back({row, {}});
    Group& group = is_new || split.width == 0 ? groups.back() : groups[found->second];
    if (split.width > 0) group.widths.push_back(split.width);
  }
  std::vector<TableRow> collapsed;
  for (Group& group : groups) {
    if (group.widths.size() > 1) {
      group.row.front() = absl::StrCat(Split(group.row.front()).name,
                                       ", N = ", DescribeNumbers(std::move(group.widths)));
    }
    collapsed.push_back(std::move(group.row));
  }
  return collapsed;
}

}  // namespace gemmd
