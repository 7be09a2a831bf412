// SPDX-License-Identifier: Apache-2.0
//
// The tables of a step, as the text and the page show them.
#pragma once

#include <string>
#include <vector>

#include "client/load/report/report.h"

namespace gemmd {

// Every row has as many cells as there are headings.
struct ReportTable {
  std::vector<std::string> headings;
  std::vector<std::vector<std::string>> rows = {};
  size_t text_columns = 1;  // The first ones are text, the others are numbers.
};

ReportTable LatencyTable(const ReportStep& step);  // Both clocks, and how many calls lie above.
ReportTable StageTable(const ReportStep& step);
ReportTable KernelTable(const ReportStep& step);  // Means of the stages for each kernel and device.
ReportTable ProductTable(const LoadReport& report, const ReportStep& step);
ReportTable WindowTable(const SloFindings& slo);

}  // namespace gemmd
