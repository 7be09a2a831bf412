// SPDX-License-Identifier: Apache-2.0
//
// Text for people: aligned tables, and numbers with units.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gemmd {

// Rows of cells under a heading. Columns line up; numbers should be aligned right.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string heading;
    Align align = Align::kLeft;
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Missing cells are empty.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Lines of text without trailing spaces, each ended by a line feed; the heading first.
  std::string Print() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

std::string FormatNanoseconds(int64_t ns);                        // "850 ns", "12.3 us", "1.50 s"
std::string FormatBytes(int64_t bytes);                           // "850 B", "12.5 MiB"
std::string FormatCount(int64_t count);                           // "1,234,567"
std::string FormatRate(double operations_per_second);             // "123.4 GFLOP/s"
std::string FormatOperationRate(int64_t operations, int64_t ns);  // "123.4 GFLOP/s"; "" for 0 ns.

}  // namespace gemmd
