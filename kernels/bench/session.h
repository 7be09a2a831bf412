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
  // Prints the head of the table. `facts` say where everything is measured; the session adds what
  // was built, when, and the command. `total` is the number of measurements to come.
  Session(const Options& options, std::vector<Column> columns, Fields facts, size_t total);

  // Says what runs now.
  void Begin(std::string_view kernel, const Shape& shape) const;

  // One of these ends each measurement.
  void Keep(Entry entry);
  // It cannot be made here, which is no failure.
  void Skip(std::string_view kernel, const Shape& shape, const absl::Status& why);
  void Fail(std::string_view kernel, const Shape& shape, const absl::Status& why);

  // A line on standard error.
  void Say(std::string_view text) const;

  // Writes the report, as far as it is there, to the files that the options name, but into a pipe
  // or a device only at the End.
  // Errors: NotFound, of the first file that cannot be written.
  absl::Status WriteFiles() const { return Write(false); }

  // Writes the files; prints the report where it takes the place of the table.
  // Errors: as of WriteFiles.
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

// The commit that the program was built from, as git describes it; "unknown" where it was not built
// in a repository.
std::string_view BuildCommit();

}  // namespace gemmd::bench
