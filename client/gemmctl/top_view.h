// SPDX-License-Identifier: Apache-2.0
//
// What gemmctl top shows.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/gemmctl/activity.h"
#include "client/gemmctl/top_history.h"
#include "client/terminal/fitted_table.h"
#include "gemmd/v1/statistics.pb.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// By what devices are sorted, the largest first; kServer: in the server's order.
enum class TopSort { kServer, kBusy, kProducts, kWaiting };

struct TopOptions {
  int columns = kAnyColumns;  // The terminal's.
  int lines = kAnyColumns;
  bool all = false;  // Idle simulators too.
  TopSort sort = TopSort::kServer;
  TopHistory history = {};
};

// `rates` belong to `now`.
std::string TopText(const std::string& address, const v1::GetStatisticsResponse& now,
                    const ActivityRates& rates, const TopOptions& options = {});
nlohmann::ordered_json TopJson(const v1::GetStatisticsResponse& now, const ActivityRates& rates);

// What is shown instead while the server cannot be reached.
std::string NoAnswerText(const std::string& address, const absl::Status& status);
nlohmann::ordered_json NoAnswerJson(const absl::Status& status);

}  // namespace gemmd
