// SPDX-License-Identifier: Apache-2.0
//
// What a server did between two of its statistics.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gemmd/v1/statistics.pb.h"

namespace gemmd {

struct DeviceRates {
  double products_per_second = 0;  // That were OK.
  double failures_per_second = 0;  // That the server is to blame for.
  double operations_per_second = 0;
  double bytes_in_per_second = 0;
  double bytes_out_per_second = 0;
  double busy = 0;  // Share of the time, 0 to 1.
  // At most so long took half and 99 % of the products: the bound of the bucket. Nothing where
  // there were none.
  static constexpr int64_t kBeyondBounds = std::numeric_limits<int64_t>::max();
  std::optional<int64_t> p50_ns;
  std::optional<int64_t> p99_ns;
};

struct ActivityRates {
  double seconds = 0;  // Between the two.
  double admissions_per_second = 0;
  double refusals_per_second = 0;
  std::vector<DeviceRates> devices;  // As in `now`.
};

// Where the server has started anew between them, those since its start.
ActivityRates RatesBetween(const v1::GetStatisticsResponse& before,
                           const v1::GetStatisticsResponse& now);

}  // namespace gemmd
