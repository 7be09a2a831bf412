// SPDX-License-Identifier: Apache-2.0
//
// A product on its way between the wire and the devices. It is allocated once. Each stage, from the
// parsed request to the answer, adds its results to it.
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
#include "kernels/verify/sampled.h"
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

// The size of an answer without its matrix: names, timing and lengths, rounded up generously.
inline constexpr int64_t kAnswerOverheadBytes = 4096;

// What is known about a request besides its product.
struct Arrival {
  int64_t arrived_ns = 0;  // When the last byte of the request arrived.
  int64_t deadline_ns = kNoDeadlineNs;
  std::string request_id;
  // "ipv4:192.0.2.1:50123" or "unix:uid:1000" (Gate::PeerOf). All products of a message share one
  // string. Null if the peer is not known.
  std::shared_ptr<const std::string> peer_name;
  std::string_view method;  // "MultiplyStream": a literal.
  uint64_t connection = 0;  // Unique per open connection and session on it.
  std::string session;      // The token of the caller's session; may be empty.
  std::optional<TraceSpan> span;
  // The session of that token, if it has already been found.
  std::shared_ptr<const TensorStore::SessionUse> used_session;
  std::shared_ptr<const Identity> caller;  // Null if there are no rules.

  std::string_view peer() const { return peer_name == nullptr ? std::string_view() : *peer_name; }
  // The flow whose turns the product takes.
  FlowId flow() const;
};

struct Product : Submission {
  // Resets a product that has ended so that it can be queued again.
  void WaitAgain();

  // The kernel that computed D, or that will compute it.
  const Kernel& kernel() const { return outcome.kernel != nullptr ? *outcome.kernel : *job.kernel; }
  const std::string& device_name() const { return served->device->info().name; }

  // The request and its caller. The job borrows the operands.
  Arrival arrival;
  SourcePieces pieces;                      // The pieces that the job's sources point to.
  std::unique_ptr<ProductTensors> tensors;  // Null if no matrix is a resident tensor.
  Constraints constraints;
  std::string wanted_device;  // Empty if the request names none.
  // How to check D. Absent, or with a rate of 0, to the extent that the request leaves the choice
  // to the server.
  std::optional<VerifyRule> asked_check;

  // Returns the product to its submitter at its end.
  absl::AnyInvocable<void(std::unique_ptr<Product>) &&> answer;

  // The device and the resources of the product.
  const ServedDevice* served = nullptr;
  VerifyRule check;    // How D is checked; kNone if it is not.
  Meter::Entry entry;  // Counts the product among those of its caller.
  int64_t admitted_ns = 0;

  // The check of D.
  int64_t check_predicted_ns = 0;
  CheckQueue::Claim check_claim;  // Held from before the product is queued until its end.
  int64_t check_begun_ns = 0;
  int64_t check_ran_ns = 0;               // The time for which it had a thread.
  const Kernel* recomputed_by = nullptr;  // VerifyNeeds::on_device.
  verify::SampledLines sampled;           // What the device computed, for the host to judge.
  int wrong_answers = 0;
  // For a check that computes D a second time, or a sample of it on the device: the place; of the
  // whole D, the outcome.
  const ServedDevice* again_served = nullptr;
  const Kernel* again_kernel = nullptr;
  HeldBytes again;

  // How the product ended, in addition to `outcome`. If that is OK, D is complete.
  std::optional<TensorState> tensor;               // The tensor that holds D.
  std::optional<AnswerVerification> verification;  // Absent if no check was requested.
  ProductTiming timing;                            // For the stages completed so far.
};

// A message was refused before it was read.
void LogRefusal(const Arrival& arrival, const absl::Status& status);

// A product was refused, perhaps before it was parsed. `bytes` is the size of its message.
void LogRefusal(const Arrival& arrival, int64_t bytes, const absl::Status& status);

// An admitted product has ended.
void LogProduct(const Product& product);

}  // namespace gemmd
