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
#include "absl/status/status.h"
#include "kernels/problem.h"
#include "kernels/select.h"
#include "server/device/device.h"
#include "server/product/admission.h"
#include "server/product/check_queue.h"
#include "server/product/counts.h"
#include "server/product/queue.h"
#include "server/product/scheduler.h"
#include "server/product/spans.h"
#include "server/product/verification.h"
#include "server/store/product_tensors.h"
#include "server/system/clock.h"
#include "server/trust/identity.h"

namespace gemmd {

// What an answer holds beside the matrix: names, timing and lengths, rounded up generously.
inline constexpr int64_t kAnswerOverheadBytes = 4096;

// What is known of a request besides its product.
struct Arrival {
  int64_t arrived_ns = 0;  // When the last byte of the request was there.
  int64_t deadline_ns = kNoDeadlineNs;
  std::string request_id;
  // "ipv4:192.0.2.1:50123" or "unix:uid:1000" (Gate::PeerOf). One text for all products of a
  // message; null if it is not known.
  std::shared_ptr<const std::string> peer_name;
  std::string_view method;  // "MultiplyStream": a literal.
  uint64_t connection = 0;  // Another number for each open connection, and each session on it.
  std::string session;      // The token of the caller's session; empty where there is none.
  std::optional<TraceSpan> span;
  // The session of that token, where it has been found before.
  std::shared_ptr<const TensorStore::SessionUse> used_session;
  std::shared_ptr<const Identity> caller;  // Null where there are no rules.

  std::string_view peer() const { return peer_name == nullptr ? std::string_view() : *peer_name; }
  // Who shares a turn with it.
  FlowId flow() const;
};

struct Product : Submission {
  // Makes it one that has not been launched. It has ended, and may be queued once more.
  void WaitAgain();

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

  // Gives it back at its end to whoever asked for it.
  absl::AnyInvocable<void(std::unique_ptr<Product>) &&> answer;

  // Where it runs and what it takes.
  const ServedDevice* served = nullptr;
  VerifyRule check;    // How D is checked; kNone if it is not.
  Meter::Entry entry;  // Among the products of its caller.
  int64_t admitted_ns = 0;

  // The check of D.
  int64_t check_predicted_ns = 0;  // For one thread of the host.
  CheckQueue::Claim check_claim;   // From before the product is queued until its end.
  int64_t check_begun_ns = 0;
  int64_t check_ran_ns = 0;  // The time that it had a thread.
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

// A message was refused before it was read.
void LogRefusal(const Arrival& arrival, const absl::Status& status);

// A product was refused, perhaps before it was known what it is: its message has so many bytes.
void LogRefusal(const Arrival& arrival, int64_t bytes, const absl::Status& status);

// A product that was let in has ended.
void LogProduct(const Product& product);

}  // namespace gemmd
