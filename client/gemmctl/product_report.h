// SPDX-License-Identifier: Apache-2.0
//
// Reports the times of a product and the result of the check of D.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/terminal/option.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// Minimum and percentiles of a few measurements, all kept. (gemmload's histograms take any number
// and round to buckets.)

// The value at `fraction` (0 to 1) of `values` by nearest rank: the smallest value such that at
// least that share of the values is not larger. The result is always a measured value; 0 if there
// are none.
int64_t Percentile(std::vector<int64_t> values, double fraction);

struct Spread {
  int64_t min = 0;
  int64_t p50 = 0;
  int64_t p99 = 0;
};

Spread SpreadOf(std::vector<int64_t> values);

// One call: the server's stages, and the round-trip time measured here.
struct CallTiming {
  v1::Timing server;
  int64_t round_trip_ns = 0;
};

// A table: one time per stage for a single call, else min, p50 and p99; plus operations per second
// at the p50 where meaningful.
std::string TimingTable(const std::vector<CallTiming>& calls, int64_t operations);

// {"receive": {"min_ns": ..., "p50_ns": ..., "p99_ns": ...}, ...}
nlohmann::ordered_json TimingJson(const std::vector<CallTiming>& calls);

// The check of D that the server makes before it answers: its command-line form and its result.
// (`multiply --verify` instead checks D here, after it arrives.)

// "none", "sampled", "sampled:0.001", "checksum" or "duplicate"; empty: the server's default.
// Errors: InvalidArgument.
absl::StatusOr<ServerCheck> ParseServerCheck(absl::string_view text);

// Adds --server-verify, which sets `text`.
CommandOption AddServerCheck(CLI::App& app, std::string& text);

// Lines that say what was checked, at what cost, and how likely a wrong element was missed.
std::string ServerCheckText(const v1::Verification& check, int64_t total_ns);

}  // namespace gemmd
