// SPDX-License-Identifier: Apache-2.0
//
// The life of one product between the wire and the scheduler, the same for unary calls and streams:
// parse, choose device and kernel, admit, queue; then fill the answer with timing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/device/served_device.h"
#include "server/scheduling/admission.h"
#include "server/scheduling/scheduler.h"
#include "server/scheduling/stats.h"
#include "server/scheduling/trace_context.h"
#include "server/system/clock.h"
#include "server/wire/convert.h"

namespace gemmd {

// What is known of a request besides its message.
struct Arrival {
  int64_t arrived_ns = 0;  // When its last byte was there.
  int64_t deadline_ns = kNoDeadlineNs;
  std::string peer;  // Only where request lines are logged.
  std::optional<TraceSpan> span;
};

// A valid request with its device, its kernel, and what it will take.
struct PreparedProduct {
  ParsedRequest parsed;
  const ServedDevice* served = nullptr;
  int64_t predicted_ns = 0;
  int64_t bytes = 0;  // Of operands, result and scratch.
};

class ProductRunner {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  // Borrows everything; the first device is the default one.
  ProductRunner(const std::vector<ServedDevice>& devices, Scheduler& scheduler,
                Admission& admission, Stats& stats, const Clock& clock, int64_t max_message_bytes);

  // Starts one product. Where this returns OK, `done` is called exactly once from another thread
  // (or from Cancel), and `response` is complete where it is called with OK; request and response
  // must live until then. `ticket` is the caller's to keep until the answer has left.
  //
  // Errors: as Gemm.Multiply of the wire contract; `done` is then never called.
  // Threads: any.
  absl::StatusOr<JobId> Start(const v1::MultiplyRequest& request, Arrival arrival,
                              v1::MultiplyResponse& response, Admission::Ticket& ticket, Done done);

  // Drops the product where it still waits.
  void Cancel(JobId id) { scheduler_.Cancel(id); }

  // Where a product runs: on the device that it names; otherwise on the first one that has a kernel
  // for it. Where none has: the device that says best why.
  struct Placement {
    const ServedDevice* served = nullptr;
    const Kernel* kernel = nullptr;  // None where no kernel of the device runs the product.
  };

  // Errors: NotFound, naming the devices; Unavailable where it is not ready.
  absl::StatusOr<Placement> FindPlace(const ParsedRequest& parsed) const;

 private:
  absl::StatusOr<PreparedProduct> Prepare(const v1::MultiplyRequest& request) const;
  absl::Status Place(PreparedProduct& product) const;
  absl::StatusOr<Admission::Ticket> Admit(const PreparedProduct& product);
  Submission MakeSubmission(PreparedProduct product, const v1::MultiplyRequest& request,
                            Arrival arrival, v1::MultiplyResponse& response, Done done);

  const std::vector<ServedDevice>& devices_;
  Scheduler& scheduler_;
  Admission& admission_;
  Stats& stats_;
  const Clock& clock_;
  const int64_t max_message_bytes_;
};

}  // namespace gemmd
