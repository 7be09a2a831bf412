// SPDX-License-Identifier: Apache-2.0
//
// One load, kept up for a while: sends calls as its plan says and measures what became of them.
//
// An open loop sends each call when it is due, whatever became of those before. A closed loop keeps
// a number of calls in flight; a turn that an answer has freed is due at once. Calls that are due
// in the warm-up are sent and not counted. After the last call is sent, every answer is waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "client/load/client_machine.h"
#include "client/load/mix.h"
#include "client/load/open_loop.h"
#include "client/load/payload.h"
#include "client/load/recorder.h"
#include "client/load/verifier.h"
#include "gemmd/client.h"

namespace gemmd {

struct ClosedLoop {
  int concurrency = 1;
};

struct LoadStep {
  std::variant<ClosedLoop, OpenLoop> loop = ClosedLoop();
  int64_t warmup_ns = 1'000'000'000;
  int64_t duration_ns = 10'000'000'000;        // After the warm-up.
  int64_t count = 0;                           // Most calls after the warm-up. 0: as many as come.
  int64_t interval_ns = 1'000'000'000;         // Interval of the series over time.
  absl::Duration timeout = absl::Seconds(10);  // Longest time for each call, but on streams.
};

// What calls are made of and where they go. Outlives the run.
struct LoadTargets {
  std::vector<Client> clients;  // Calls take turns on them.
  const std::vector<Payload>* payloads = nullptr;
  const MixPicker* picker = nullptr;
  Verifier* verifier = nullptr;
  int streams = 0;  // So many of each client carry the calls. 0: each call goes by itself.
};

// Called with each interval as it ends, warm-up included, and its calls, on a thread of the run.
using LoadProgress = std::function<void(const LoadInterval&, const IntervalTally&)>;

// Runs one step. Two stop requests make it give up the calls under way, whereby the clients of
// `targets` end. Blocks.
StepResult RunLoad(LoadTargets& targets, const LoadStep& step, const StopRequests& stop,
                   const LoadProgress& progress);

}  // namespace gemmd
