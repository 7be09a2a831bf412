// SPDX-License-Identifier: Apache-2.0
//
// The report as one HTML file that needs nothing else: no network, no scripts.
#pragma once

#include <string>

#include "client/load/report/report.h"

namespace gemmd {

std::string ReportHtml(const LoadReport& report);

}  // namespace gemmd
