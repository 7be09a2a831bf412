// SPDX-License-Identifier: Apache-2.0
//
// Measurements as a table for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "kernels/bench/measure.h"

namespace gemmd::bench {

// Where the measurements were made.
struct Environment {
  std::string processor;
  int threads;
};

std::string TableHeader();
std::string TableLine(const Measurement& measurement);
std::string ToJson(const Environment& environment, const std::vector<Measurement>& measurements);

}  // namespace gemmd::bench
