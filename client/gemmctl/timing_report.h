// SPDX-License-Identifier: Apache-2.0
//
// How the time of repeated products was spent: one measurement per stage and call, and the spread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/gemmctl/percentiles.h"
#include "gemmd/v1/gemm.pb.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// One call: the server's stages, and the time from before the call until after it here.
struct CallTiming {
  v1::Timing server;
  int64_t round_trip_ns = 0;
};

// A stage and its times, one per call.
struct StageTimes {
  std::string name;
  std::vector<int64_t> ns;
  bool has_rate = false;  // Whether operations per time mean something.
};

// The stages in the order in which they happen; then total, overhead (total - compute), round trip.
std::vector<StageTimes> StagesOf(const std::vector<CallTiming>& calls);

// A table: one time per stage for one call, else min, p50 and p99; and operations per second where
// they mean something, at the p50.
std::string TimingTable(const std::vector<CallTiming>& calls, int64_t operations);

// {"receive": {"min_ns": ..., "p50_ns": ..., "p99_ns": ...}, ...}
nlohmann::ordered_json TimingJson(const std::vector<CallTiming>& calls);

}  // namespace gemmd
