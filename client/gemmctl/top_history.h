// SPDX-License-Identifier: Apache-2.0
//
// What gemmctl top has seen of each device.
#pragma once

#include <deque>
#include <map>
#include <string>

#include "client/gemmctl/activity.h"
#include "gemmd/v1/statistics.pb.h"

namespace gemmd {

class TopHistory {
 public:
  // As many views as a wide terminal shows.
  static constexpr size_t kMostViews = 240;

  // `rates` belong to `now`. Devices that are gone are forgotten.
  void Add(const v1::GetStatisticsResponse& now, const ActivityRates& rates);

  bool is_empty() const { return devices_.empty(); }

  // Products a second, the latest last.
  std::deque<double> Of(const std::string& device) const;

 private:
  std::map<std::string, std::deque<double>> devices_;
};

}  // namespace gemmd
