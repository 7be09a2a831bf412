// SPDX-License-Identifier: Apache-2.0
//
// One run of gemmbench: prints measurements as they come, and writes its report.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/bench/options.h"
#include "kernels/bench/report.h"

namespace gemmd::bench {

class Session {
 public:
  // Prints the head of the table. `facts` describe where the measurements are made; the session
  // adds the build, the time and the command. `total` is the number of measurements to come.
  Session(const Options& options, std::vector<Column> columns, Fields facts, size_t total);

  // Says what runs now.
  void Begin(std::string_view kernel, const Shape& shape) const;

  // Call one of these after each measurement.
  void Keep(Entry entry);
  // The measurement is impossible here, which is not a failure.
  void Skip(std::string_view kernel, const Shape& shape, const absl::Status& why);
  void Fail(std::string_view kernel, const Shape& shape, const absl::Status& why);

  // A line on standard error.
  void Say(std::string_view text) const;

  // Writes the report so far to the files that the options name; pipes and devices are written only
  // by End. Errors: NotFound, for the first file that cannot be written.
  absl::Status WriteFiles() const { return Write(false); }

  // Writes the files; prints the report if it replaces the table. Errors: those of WriteFiles.
  absl::Status End() const;

  bool is_empty() const { return report_.measurements.empty(); }
  // Whether no result was wrong and nothing failed.
  bool is_right() const { return is_right_; }

 private:
  absl::Status Write(bool is_whole) const;
  bool prints_table() const { return options_.json != "-"; }

  const Options& options_;
  const std::vector<Column> columns_;
  const size_t total_;
  Report report_;
  size_t done_ = 0;
  bool is_right_ = true;
};

// The commit that the program was built from, as git describes it; "unknown" if it was not built in
// a repository.
std::string_view BuildCommit();

}  // namespace gemmd::bench
