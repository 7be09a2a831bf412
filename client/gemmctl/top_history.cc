// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/top_history.h"

#include <utility>

namespace gemmd {

void TopHistory::Add(const v1::GetStatisticsResponse& now, const ActivityRates& rates) {
  std::map<std::string, std::deque<double>> devices;
  for (int i = 0; i < now.devices_size(); ++i) {
    const std::string& name = now.devices(i).name();
    std::deque<double> values = std::move(devices_[name]);
    values.push_back(rates.devices[static_cast<size_t>(i)].products_per_second);
    if (values.size() > kMostViews) values.pop_front();
    devices[name] = std::move(values);
  }
  devices_ = std::move(devices);
}

std::deque<double> TopHistory::Of(const std::string& device) const {
  const auto found = devices_.find(device);
  return found == devices_.end() ? std::deque<double>() : found->second;
}

}  // namespace gemmd
