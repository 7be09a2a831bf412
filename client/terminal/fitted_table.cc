// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/fitted_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gemmd {
namespace {

// A byte within a character of UTF-8.
bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

absl::string_view CutLine(absl::string_view line, int columns) {
  int seen = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (!Continues(line[i]) && ++seen > columns) return line.substr(0, i);
  }
  return line;
}

std::vector<absl::string_view> LinesOf(absl::string_view text) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

int WidestLine(absl::string_view text) {
  int widest = 0;
  for (const absl::string_view line : LinesOf(text)) widest = std::max(widest, ColumnsOf(line));
  return widest;
}

}  // namespace

int ColumnsOf(absl::string_view line) {
  return static_cast<int>(
      std::count_if(line.begin(), line.end(), [](char byte) { return !Continues(byte); }));
}

std::string CutText(absl::string_view text, int columns, int lines) {
  const std::vector<absl::string_view> all = LinesOf(text);
  const size_t most = static_cast<size_t>(std::max(1, lines));
  const size_t shown = all.size() <= most ? all.size() : most - 1;
  std::string cut;
  for (size_t i = 0; i < shown; ++i) absl::StrAppend(&cut, CutLine(all[i], columns), "\n");
  if (shown == all.size()) return cut;
  const std::string rest = absl::StrCat(all.size() - shown, " more lines");
  return absl::StrCat(cut, CutLine(rest, columns), "\n");
}

std::string FlowText(const std::vector<std::string>& words, absl::string_view gap, int columns) {
  std::string text;
  int used = 0;
  for (const std::string& word : words) {
    const int width = ColumnsOf(word);
    // In 64 bits: `columns` may be the largest int.
    const bool has_room = int64_t{used} + ColumnsOf(gap) + width <= columns;
    if (used > 0) absl::StrAppend(&text, has_room ? gap : "\n");
    used = (used > 0 && has_room ? used + ColumnsOf(gap) : 0) + width;
    absl::StrAppend(&text, word);
  }
  return text + "\n";
}

std::string FittedTable::Print(int columns) const {
  std::vector<size_t> kept(columns_.size());
  for (size_t i = 0; i < kept.size(); ++i) kept[i] = i;
  while (true) {
    std::vector<TextTable::Column> headings;
    for (const size_t i : kept) headings.push_back(columns_[i].column);
    TextTable table(std::move(headings));
    for (const auto& row : rows_) {
      std::vector<std::string> cells;
      for (const size_t i : kept) cells.push_back(i < row.size() ? row[i] : "");
      table.AddRow(std::move(cells));
    }
    const std::string text = table.Print();
    const auto least = std::max_element(kept.begin(), kept.end(), [this](size_t x, size_t y) {
      return columns_[x].rank < columns_[y].rank;
    });
    if (WidestLine(text) <= columns || least == kept.end() || columns_[*least].rank == 0) {
      return CutText(text, columns, std::numeric_limits<int>::max());
    }
    kept.erase(least);
  }
}

}  // namespace gemmd
