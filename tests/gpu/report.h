// SPDX-License-Identifier: Apache-2.0
//
// The report of a check, for people and as JSON.
#pragma once

#include <string>

#include "tests/gpu/checker.h"

namespace gemmd {

// The GPU and the software that ran the kernels.
struct GpuFacts {
  std::string name;
  std::string chip;
  std::string driver;
  std::string cuda;
  std::string commit;
};

// The rows that failed, and the totals; the last line says PASSED or FAILED.
std::string TextOf(const GpuFacts& gpu, const CheckResult& result);

std::string JsonOf(const GpuFacts& gpu, const CheckResult& result);

}  // namespace gemmd
