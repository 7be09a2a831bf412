// SPDX-License-Identifier: Apache-2.0
//
// A line that shows how a load goes, rewritten in place on a terminal, one below the other
// elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "client/load/step_result.h"

namespace gemmd {

// "4.0 s  2,001.0/s  in flight 3  p50 310 us  p99 900 us  UNAVAILABLE 2". `calls_by_code`: since
// the beginning of the step.
std::string LiveLine(const LoadInterval& interval, const CallsByCode& calls_by_code);

class LiveView {
 public:
  // `out` null: shows nothing.
  LiveView(std::FILE* out, bool is_terminal) : out_(out), is_terminal_(is_terminal) {}

  void BeginStep(const std::string& name);
  void Show(const LoadInterval& interval, const CallsByCode& calls_by_code);
  void EndStep();

 private:
  std::FILE* out_;
  bool is_terminal_;
  CallsByCode calls_by_code_ = {};  // Since the beginning of the step.
};

}  // namespace gemmd
