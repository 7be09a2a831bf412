// SPDX-License-Identifier: Apache-2.0
//
// gemmbench's command line, and the rows of the catalogue that it names by patterns.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/bench/problem.h"
#include "kernels/kernel.h"

namespace CLI {
class App;
}

namespace gemmd::bench {

struct Options {
  std::vector<std::string> filters;  // Empty: DefaultFilters.
  std::string chip;                  // Empty: no simulator.
  std::string path;                  // A path of the simulator; empty: every one.
  std::string shapes_text;           // Empty: 2048; simulator: 1024; GPU: 4096.
  std::string b_order = "row";
  std::string device = "cpu";
  int threads = 1;
  double seconds = 2;
  int repeat = 5;
  bool lists = false;
  // The report.
  std::string json;  // - is standard output, instead of the table.
  std::string csv;
  std::string save;
  bool shows_progress = false;
  // For GPUs.
  std::string orders_text = "rcr";
  int64_t leading_dimension_offset = 0;
  std::string output_type;  // Empty: the rows' own.
  std::string epilogue = "none";
  std::string blocks = "none";
  std::string quantized = "none";
  double alone_seconds = 0;
  int host_launches = 0;
  bool measures_errors = false;
  bool leaves_libraries_out = false;
  std::string cublaslt;
  std::string cusparselt;

  std::string command;  // As it was typed.

  // Parsed from the texts above.
  std::optional<int> gpu;
  std::vector<Shape> shapes;
  std::vector<Orders> orders;
  Output output;

  bool simulates() const { return !chip.empty(); }
};

// Sets `options` from the arguments, with all texts parsed and all defaults filled in. The app is
// for --help and for messages. Throws CLI::ParseError for help and wrong options. Errors:
// InvalidArgument for malformed texts.
absl::Status ParseOptions(int argc, const char* const* argv, CLI::App& app, Options& options);

// Whether a pattern with * ? and [] matches the whole name.
bool Matches(const std::string& pattern, std::string_view name);

// The rows that any of the patterns matches, in the catalogue's order.
std::vector<const Kernel*> ChooseRows(absl::Span<const Kernel> catalog,
                                      const std::vector<std::string>& patterns);

// The patterns that match no row.
std::vector<std::string> IdlePatterns(absl::Span<const Kernel> catalog,
                                      const std::vector<std::string>& patterns);

}  // namespace gemmd::bench
