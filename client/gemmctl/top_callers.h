// SPDX-License-Identifier: Apache-2.0
//
// What `gemmctl top` shows of callers, of whom the server tells where it knows them by rules.
#pragma once

#include <string>
#include <vector>

#include "client/gemmctl/activity.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// The eight whom devices computed for the longest, after an empty line; empty where there are none.
std::string CallersText(const std::vector<CallerRates>& callers, int columns);

nlohmann::ordered_json CallersJson(const std::vector<CallerRates>& callers);

}  // namespace gemmd
