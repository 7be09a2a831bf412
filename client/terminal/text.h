// SPDX-License-Identifier: Apache-2.0
//
// Human-readable text: aligned tables, numbers with units, times and sparklines; and text inside
// HTML and SVG.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gemmd {

inline constexpr int kAnyColumns = std::numeric_limits<int>::max();

// Rows of cells under a heading. Columns are aligned; align numbers right.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string heading;
    Align align = Align::kLeft;
    int rank = 0;  // 0: always shown. Without room, the largest rank is dropped first.
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Missing cells are empty.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Lines of text without trailing spaces, each ended by a line feed; the heading first.
  std::string Print(int columns = kAnyColumns) const;

  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }

 private:
  std::string PrintColumns(const std::vector<size_t>& kept) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

std::string FormatNanoseconds(int64_t ns);                        // "850 ns", "12.3 us", "1.50 s"
std::string FormatBytes(int64_t bytes);                           // "850 B", "12.5 MiB"
std::string FormatCount(int64_t count);                           // "1,234,567"
std::string FormatRate(double operations_per_second);             // "123.4 GFLOP/s"
std::string FormatOperationRate(int64_t operations, int64_t ns);  // "123.4 GFLOP/s"; "" for 0 ns.

// Characters of a line in UTF-8, each of which takes one column.
int ColumnsOf(absl::string_view line);

// Truncates lines to `columns` and the text to `lines` lines, the last of which says how many are
// missing.
std::string CutText(absl::string_view text, int columns, int lines);

// Wraps words into lines of at most `columns` columns, each ended by a line feed. A longer word
// gets its own line.
std::string FlowText(const std::vector<std::string>& words, absl::string_view gap, int columns);

// The last `columns` values as one-character bars (UTF-8), from a line at the bottom for 0 to a
// full block for the largest. Precondition: no value is negative.
std::string Sparkline(const std::deque<double>& values, size_t columns);

// "90", "1.5" (seconds), "500ms", "2m"; absent for any other text. Also accepts negative and
// infinite times; the caller checks the range.
std::optional<absl::Duration> ParseTime(absl::string_view text);

// The text as an element's content or a quoted attribute's value. Control characters except tabs
// and line feeds, which XML does not allow, become question marks.
std::string EscapedMarkup(absl::string_view text);

// Appends a <text> element of SVG. `style` is its class.
void AddSvgText(int x, int y, const char* style, const std::string& text, std::string& svg);

}  // namespace gemmd
