// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <string>

namespace gemmd {

// The last `columns` values as bars of one character (UTF-8), from a line at the bottom for 0 to a
// full block for the largest of them; none is negative.
std::string Sparkline(const std::deque<double>& values, size_t columns);

}  // namespace gemmd
