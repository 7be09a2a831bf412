// SPDX-License-Identifier: Apache-2.0
//
// The plots of the page of a report, each a figure of HTML.
#pragma once

#include <string>

#include "client/load/report/report.h"

namespace gemmd {

// Percentiles over 1 / (1 - p), so that each nine takes as much room; both clocks, every step.
std::string PercentilePlot(const LoadReport& report);

// Figures of the intervals, one step after the other.
std::string TimePlot(const LoadReport& report);

// A point for each step; where there is one only, for each of its intervals.
std::string RatePlot(const LoadReport& report);

// What a call's time is spent on, in means, because only means add up.
std::string StagePlot(const LoadReport& report);

}  // namespace gemmd
