// SPDX-License-Identifier: Apache-2.0
//
// Heat maps of what differs: pictures and pages that refer to nothing outside of themselves.
#pragma once

#include <string>
#include <vector>

#include "client/gemmctl/difference_report.h"

namespace gemmd {

// One SVG file with the maps of all comparisons below each other. Each block of elements tells
// about itself under the pointer.
std::string DifferencesSvg(const std::vector<NamedDifference>& all);

// A page of HTML with that picture and the report.
std::string DifferencesPage(const std::vector<NamedDifference>& all);

}  // namespace gemmd
