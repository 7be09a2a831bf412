// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/text_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace gemmd {
namespace {

absl::string_view Cell(const std::vector<std::string>& row, size_t column) {
  return column < row.size() ? absl::string_view(row[column]) : absl::string_view();
}

// Three significant digits: "1.23", "12.3", "123".
std::string Digits(double value) {
  return absl::StrFormat("%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
}

struct Unit {
  double size;
  absl::string_view name;
};

// `value` in the largest unit that it reaches.
template <size_t kCount>
std::string InUnits(double value, const Unit (&units)[kCount]) {
  const Unit* unit = &units[0];
  for (const Unit& candidate : units) {
    if (value >= candidate.size) unit = &candidate;
  }
  return absl::StrCat(Digits(value / unit->size), " ", unit->name);
}

}  // namespace

std::string TextTable::Print() const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = columns_[i].heading.size();
    for (const auto& row : rows_) width = std::max(width, Cell(row, i).size());
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const absl::string_view cell = cell_of(i);
      const std::string padding(widths[i] - cell.size(), ' ');
      const bool is_right = columns_[i].align == Align::kRight;
      absl::StrAppend(&line, i > 0 ? "  " : "", is_right ? padding : "", cell,
                      is_right ? "" : padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  };
  add_line([&](size_t i) { return absl::string_view(columns_[i].heading); });
  for (const auto& row : rows_) {
    add_line([&](size_t i) { return Cell(row, i); });
  }
  return text;
}

std::string FormatNanoseconds(int64_t ns) {
  if (ns < 1000) return absl::StrCat(ns, " ns");
  constexpr Unit kUnits[] = {{1e3, "us"}, {1e6, "ms"}, {1e9, "s"}};
  return InUnits(static_cast<double>(ns), kUnits);
}

std::string FormatBytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  constexpr Unit kUnits[] = {{0x1p10, "KiB"}, {0x1p20, "MiB"}, {0x1p30, "GiB"}, {0x1p40, "TiB"}};
  return InUnits(static_cast<double>(bytes), kUnits);
}

std::string FormatCount(int64_t count) {
  std::string digits = absl::StrCat(count);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > (count < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<size_t>(i), 1, ',');
  }
  return digits;
}

std::string FormatRate(double operations_per_second) {
  constexpr Unit kUnits[] = {{1e6, "MFLOP/s"}, {1e9, "GFLOP/s"}, {1e12, "TFLOP/s"}};
  return InUnits(operations_per_second, kUnits);
}

std::string FormatOperationRate(int64_t operations, int64_t ns) {
  if (ns <= 0 || operations <= 0) return "";
  return FormatRate(static_cast<double>(operations) / static_cast<double>(ns) * 1e9);
}

}  // namespace gemmd
