// SPDX-License-Identifier: Apache-2.0
//
// A product as the daemon works with it between the wire and the devices. It is allocated once:
// each stage from the parsed request to the answer adds what it learns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "kernels/problem.h"
#include "kernels/select.h"
#include "server/device/device.h"
#include "server/scheduling/flow.h"
#include "server/scheduling/scheduler.h"
#include "server/scheduling/stats.h"
#include "server/scheduling/trace_context.h"
#include "server/scheduling/verification.h"
#include "server/store/product_tensors.h"
#include "server/system/clock.h"
#include "server/trust/identity.h"
#include "server/trust/meter.h"

namespace gemmd {

// What an answer holds beside the matrix: names, timing and lengths, rounded up generously.
inline constexpr int64_t kAnswerOverheadBytes = 4096;

// What is known of a request besides its product.
struct Arrival {
  int64_t arrived_ns = 0;  // When the last byte of the request was there.
  int64_t deadline_ns = kNoDeadlineNs;
  std::string request_id;
  std::string peer;         // As gRPC names it: "ipv4:192.0.2.1:50123".
  std::string_view method;  // "MultiplyStream": a literal.
  uint64_t connection = 0;  // Another number for each connection that is open.
  std::string session;      // The token of the caller's session; empty where there is none.
  std::optional<TraceSpan> span;
  // The session of that token, where it has been found before.
  std::shared_ptr<const TensorStore::SessionUse> used_session;
  // Others that came with it are started next: it is launched with them, when
  // ProductRunner::LaunchCompany is called.
  bool has_company = false;
  std::shared_ptr<const Identity> caller;  // Null where callers are known by their host alone.

  // Who shares a turn with it.
  FlowId flow() const;
};

struct Product : Submission {
  // The kernel that computed D, or is to do so.
  const Kernel& kernel() const { return outcome.kernel != nullptr ? *outcome.kernel : *job.kernel; }
  const std::string& device_name() const { return served->device->info().name; }

  // What was asked for and by whom. The job borrows the operands.
  Arrival arrival;
  SourcePieces pieces;                      // What the job's sources point into.
  std::unique_ptr<ProductTensors> tensors;  // Null if no matrix is a resident tensor.
  Constraints constraints;
  std::string wanted_device;  // Empty if the request names none.
  // How D is to be checked. Absent if the request leaves that to the server; a rate of 0 is also
  // left to it.
  std::optional<VerifyRule> asked_check;

  // Whoever waits for it. `prepare` makes the answer, except for its timing: it is called before
  // `answer`, only if the product is OK, and the time that it takes is the stage kSendPrepare.
  absl::AnyInvocable<void(const Product&)> prepare;
  absl::AnyInvocable<void(Product&) &&> answer;

  // Where it runs and what it takes.
  const ServedDevice* served = nullptr;
  int64_t room_bytes = 0;  // Message, result and scratch together.
  VerifyRule check;        // How D is checked; kNone if it is not.
  Meter::Entry entry;      // Among the products of its caller.
  int64_t admitted_ns = 0;

  // The check of D.
  int64_t check_begun_ns = 0;
  int wrong_answers = 0;
  // For a check that computes D once more: where, and what came of it.
  const ServedDevice* again_served = nullptr;
  const Kernel* again_kernel = nullptr;
  HeldBytes again;

  // How it ended, beside `outcome`. If that is OK, D is complete.
  std::optional<TensorState> tensor;               // Into which D went.
  std::optional<AnswerVerification> verification;  // Absent if no check was asked for.
  ProductTiming timing;                            // As far as the stages are known.
};

}  // namespace gemmd
