// SPDX-License-Identifier: Apache-2.0
//
// One load, kept up for a while: sends calls as its plan says and measures what became of them.
//
// An open loop sends each call when it is due, whatever became of those before. A closed loop keeps
// a number of calls in flight; a turn that an answer has freed is due at once. Calls that are due
// in the warm-up are sent and not counted. After the last call is sent, every answer is waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/load/arrivals.h"
#include "client/load/load_clock.h"
#include "client/load/mix.h"
#include "client/load/payload.h"
#include "client/load/recorder.h"
#include "client/load/tally.h"
#include "client/load/verifier.h"
#include "gemmd/client.h"

namespace gemmd {

struct ClosedLoop {
  int concurrency = 1;
};

struct OpenLoop {
  ArrivalPlan arrivals = {};
  int64_t most_in_flight = 10000;  // Calls beyond wait, which is counted as blocked time.
};

struct LoadStep {
  std::variant<ClosedLoop, OpenLoop> loop = ClosedLoop();
  int64_t warmup_ns = 1'000'000'000;
  int64_t duration_ns = 10'000'000'000;        // Behind the warm-up.
  int64_t count = 0;                           // Most calls behind the warm-up. 0: as many as come.
  int64_t interval_ns = 1'000'000'000;         // Of the series over time.
  absl::Duration timeout = absl::Seconds(10);  // Of each call.
};

// What calls are made of and where they go. Outlives the run.
struct LoadTargets {
  std::vector<Client> clients;  // Calls take turns on them.
  const std::vector<Payload>* payloads = nullptr;
  const MixPicker* picker = nullptr;
  Verifier* verifier = nullptr;
};

// The calls that ended within one interval.
struct LoadInterval {
  int64_t from_ns = 0;  // Since the end of the warm-up, so negative within it.
  int64_t to_ns = 0;
  int64_t in_flight = 0;  // At the end.
  IntervalTally tally = {};
};

struct StepResult {
  Tally tally;          // Of the calls due within the window.
  double window_s = 0;  // From the end of the warm-up to the last send.
  double rate = 0;      // Calls that ended OK within the window, per second.
  double offered = 0;   // Calls that were due within the window, per second.
  int64_t unsent = 0;  // Of those, not sent before its end: the limit of calls in flight held them.
  int64_t sent_late = 0;  // Sent more than 1 ms behind the time at which they could be.
  int64_t most_in_flight = 0;
  double client_cores = 0;  // Cores that this process kept busy within the window.
  double usable_cores = 0;  // That it may use.
  bool was_interrupted = false;
  std::map<absl::StatusCode, std::string> first_messages;  // Of the calls that failed.
  std::vector<LoadInterval> intervals;                     // Of the window.
};

// Called with each interval as it ends, warm-up included, on a thread of the run.
using LoadProgress = std::function<void(const LoadInterval&)>;

// Runs one step. Two stop requests make it give up the calls under way, whereby the clients of
// `targets` end. Blocks.
StepResult RunLoad(LoadTargets& targets, const LoadStep& step, const StopRequests& stop,
                   const LoadProgress& progress);

}  // namespace gemmd
