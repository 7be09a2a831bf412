// SPDX-License-Identifier: Apache-2.0
//
// Checks of times and of the resident size of a process. They are in suites whose names end in
// `Timed`, which only `tests/run.sh timed` runs, one test at a time.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace gemmd {

// Appends a line of JSON to the table of tests/timed/table.py, if the environment names its folder.
inline void AddTimedRow(const std::string& what, const std::string& bound, const std::string& seen,
                        bool held) {
  const char* folder = std::getenv("GEMMD_TIMED_ROWS");  // NOLINT(concurrency-mt-unsafe)
  if (folder == nullptr) return;
  const std::string suite = absl::StrReplaceAll(
      ::testing::UnitTest::GetInstance()->current_test_info()->test_suite_name(), {{"/", "_"}});
  const auto text = [](const std::string& raw) {
    return absl::StrReplaceAll(raw, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", " "}});
  };
  std::ofstream(absl::StrCat(folder, "/", suite, ".jsonl"), std::ios::app)
      << absl::StrFormat(
             R"({"file": "%s", "attack": "%s", "bound": "%s", "seen": "%s", "held": %s, "is_timed": true})",
             suite, text(what), text(bound), text(seen), held ? "true" : "false")
      << "\n";
}

// Checks that the measured value is at most the bound. NaN fails.
inline void HoldsTimed(const std::string& what, double max, double seen, const std::string& unit) {
  const bool held = seen <= max;
  AddTimedRow(what, absl::StrFormat("<= %g %s", max, unit), absl::StrFormat("%.4g %s", seen, unit),
              held);
  EXPECT_TRUE(held) << what << ": got " << seen << " " << unit << ", want at most " << max;
}

// Checks that the measured value is at least the bound. NaN fails.
inline void HoldsTimedAtLeast(const std::string& what, double min, double seen,
                              const std::string& unit) {
  const bool held = seen >= min;
  AddTimedRow(what, absl::StrFormat(">= %g %s", min, unit), absl::StrFormat("%.4g %s", seen, unit),
              held);
  EXPECT_TRUE(held) << what << ": got " << seen << " " << unit << ", want at least " << min;
}

}  // namespace gemmd
