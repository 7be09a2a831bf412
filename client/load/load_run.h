// SPDX-License-Identifier: Apache-2.0
//
// Runs one step of a load: sends calls as planned and measures their outcomes.
//
// An open loop sends each call when it is due, regardless of earlier calls. A closed loop keeps a
// fixed number of calls in flight; each answer makes the next call due at once. Calls due in the
// warm-up are sent but not counted. After the last call, the run waits for every answer.
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
  int64_t count = 0;                           // Max calls after the warm-up. 0: unlimited.
  int64_t interval_ns = 1'000'000'000;         // Interval of the series over time.
  absl::Duration timeout = absl::Seconds(10);  // Timeout of each call, except on streams.
};

// Products and servers of a run. Must outlive the run.
struct LoadTargets {
  std::vector<Client> clients;  // Calls take turns on them.
  const std::vector<Payload>* payloads = nullptr;
  const MixPicker* picker = nullptr;
  Verifier* verifier = nullptr;
  int streams = 0;  // Streams per client. 0: unary calls.
};

// Called on a thread of the run with each finished interval, including the warm-up, and its calls.
using LoadProgress = std::function<void(const LoadInterval&, const IntervalTally&)>;

// Runs one step. A second stop request cancels the calls in progress and destroys the clients of
// `targets`. Blocks.
StepResult RunLoad(LoadTargets& targets, const LoadStep& step, const StopRequests& stop,
                   const LoadProgress& progress);

}  // namespace gemmd
