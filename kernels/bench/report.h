// SPDX-License-Identifier: Apache-2.0
//
// Reports of measurements, on the CPU, in the simulator and on a GPU: as JSON and CSV for programs,
// and as a table for people.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "kernels/bench/problem.h"

namespace gemmd::bench {

using Value = std::variant<std::monostate, bool, int64_t, double, std::string>;  // First: absent.

// One value of a report. The name "cublaslt.seconds" says that the field is `seconds` of the group
// `cublaslt`; a group whose fields are all absent is null in JSON.
struct Field {
  std::string name;
  Value value;
};
using Fields = std::vector<Field>;

// One column of a table.
struct Column {
  std::string heading;
  int width;  // Negative: left-aligned.
};

// One measurement in a report.
struct Entry {
  std::string kernel;
  Shape shape = {};
  Fields fields;
  std::vector<std::string> cells;  // One for each column of the table.
  bool is_right = true;            // Whether the results were correct.
};

struct Report {
  Fields facts;  // Where and how the measurements were made.
  std::vector<Fields> measurements;
};

std::string ToJson(const Report& report);

// One line for each measurement, after a header line, in which "_" separates groups.
std::string ToCsv(const Report& report);

std::string TableHeader(const std::vector<Column>& columns);
std::string TableLine(const std::vector<Column>& columns, const std::vector<std::string>& cells);

// The value of a member or function of an optional object: as a field (absent if the object is),
// and as the text of a cell ("-" if absent).
template <typename Whole, typename Of>
Value ValueOf(const std::optional<Whole>& whole, const Of& of) {
  return whole ? Value(std::invoke(of, *whole)) : Value();
}
template <typename Whole, typename Of>
std::string TextOf(const std::optional<Whole>& whole, const Of& of) {
  return whole ? std::string(std::invoke(of, *whole)) : "-";
}

// Texts for cells: a rate of operations, by 1e12 or 1e9 a second, and a share of 1.
std::string TeraText(double rate);
std::string GigaText(double rate);
std::string PercentText(double share);

// Whether the path names a pipe, a terminal, a device, or the file of standard output.
bool IsStream(const std::string& path);

// Writes an output file named by the user. A stream is written in place. A regular file is replaced
// by a new one once that is complete, and is unchanged on failure. Links are followed, even to a
// file that does not exist yet. Errors: NotFound, with the path and why.
absl::Status WriteOutputFile(const std::string& path, std::string_view text);

}  // namespace gemmd::bench
