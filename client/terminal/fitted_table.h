// SPDX-License-Identifier: Apache-2.0
//
// Text that fits into the columns and lines of a terminal.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/terminal/text_table.h"

namespace gemmd {

inline constexpr int kAnyColumns = std::numeric_limits<int>::max();

// Characters of a line in UTF-8, each of which takes one column.
int ColumnsOf(absl::string_view line);

// Lines that are cut behind so many columns; as many lines as fit, the last of which tells how many
// are missing.
std::string CutText(absl::string_view text, int columns, int lines);

// Words that flow into lines of so many columns, each ended by a line feed. A longer word is alone.
std::string FlowText(const std::vector<std::string>& words, absl::string_view gap, int columns);

// A table that goes without its least needed columns where there is no room for all.
class FittedTable {
 public:
  struct Column {
    TextTable::Column column;
    int rank = 0;  // 0: always there. The largest goes first.
  };

  explicit FittedTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool is_empty() const { return rows_.empty(); }

  // As TextTable::Print.
  std::string Print(int columns = kAnyColumns) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace gemmd
