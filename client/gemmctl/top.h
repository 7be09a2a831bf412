// SPDX-License-Identifier: Apache-2.0
//
// What `gemmctl top` shows: a server's activity between two of its statistics.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/terminal/text.h"
#include "gemmd/v1/statistics.pb.h"
#include "nlohmann/json.hpp"

namespace gemmd {

struct DeviceRates {
  double products_per_second = 0;  // Products that were OK.
  double failures_per_second = 0;  // Failures that the server is to blame for.
  double operations_per_second = 0;
  double bytes_in_per_second = 0;
  double bytes_out_per_second = 0;
  double busy = 0;  // Share of the time, 0 to 1.
  // p50 and p99 of products' durations, as bucket bounds. Absent without products.
  static constexpr int64_t kBeyondBounds = std::numeric_limits<int64_t>::max();
  std::optional<int64_t> p50_ns;
  std::optional<int64_t> p99_ns;
};

// A kernel that ran between the two statistics, on devices of one kind.
struct KernelRates {
  std::string device_kind;
  std::string name;
  double products_per_second = 0;
  double computing = 0;  // Seconds of computing in a second, on all devices of the kind.
  double share = 0;      // Its share, 0 to 1, of all computing on devices of the kind.
  int64_t mean_ns = 0;   // Of one product.
};

// Callers under one rule that had products between the two statistics, or have tensors now.
struct CallerRates {
  std::string rule;
  double products_per_second = 0;  // Answered ones.
  double failures_per_second = 0;  // Admitted products that failed, for any reason.
  double refusals_per_second = 0;
  double computing = 0;  // Seconds of computing in a second, on all devices.
  double share = 0;      // Their share, 0 to 1, of the computing for all callers.
  int64_t tensor_bytes = 0;
};

struct ActivityRates {
  double seconds = 0;  // Between the two statistics.
  double admissions_per_second = 0;
  double refusals_per_second = 0;
  std::vector<DeviceRates> devices;  // In the order of `now`.
  // Sorted by computing time, longest first.
  std::vector<KernelRates> kernels;
  std::vector<CallerRates> callers;
};

// The rates between two statistics; since its start, if the server has restarted between them.
ActivityRates RatesBetween(const v1::GetStatisticsResponse& before,
                           const v1::GetStatisticsResponse& now);

// Past rates of each device.
class TopHistory {
 public:
  // As many views as a wide terminal shows.
  static constexpr size_t kMaxViews = 240;

  // `rates` belong to `now`. Removes devices that no longer exist.
  void Add(const v1::GetStatisticsResponse& now, const ActivityRates& rates);

  bool is_empty() const { return devices_.empty(); }

  // Products per second, latest last.
  std::deque<double> Of(const std::string& device) const;

 private:
  std::map<std::string, std::deque<double>> devices_;
};

// The eight callers with the most computing time, after an empty line; empty if there are none.
std::string CallersText(const std::vector<CallerRates>& callers, int columns);

// How devices are sorted, largest first; kServer: the server's order.
enum class TopSort { kServer, kBusy, kProducts, kWaiting };

struct TopOptions {
  int columns = kAnyColumns;  // The terminal's.
  int lines = kAnyColumns;
  bool all = false;  // Show idle simulators too.
  TopSort sort = TopSort::kServer;
  TopHistory history = {};
};

// `rates` belong to `now`.
std::string TopText(const std::string& address, const v1::GetStatisticsResponse& now,
                    const ActivityRates& rates, const TopOptions& options = {});
nlohmann::ordered_json TopJson(const v1::GetStatisticsResponse& now, const ActivityRates& rates);

}  // namespace gemmd
