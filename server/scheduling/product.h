// SPDX-License-Identifier: Apache-2.0
//
// A product as the daemon works with it between the wire and the devices: what was asked for, what
// is known of the call, and how it ended.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/problem.h"
#include "kernels/select.h"
#include "server/device/device.h"
#include "server/scheduling/flow.h"
#include "server/scheduling/priority.h"
#include "server/scheduling/trace_context.h"
#include "server/scheduling/verification.h"
#include "server/store/product_tensors.h"
#include "server/system/clock.h"
#include "server/trust/identity.h"

namespace gemmd {

// What an answer holds beside the matrix: names, timing and lengths, rounded up generously.
inline constexpr int64_t kAnswerOverheadBytes = 4096;

// A valid request. `job` borrows the operands; its kernel, sizes and destination are not set yet.
struct ParsedRequest {
  Job job;
  std::unique_ptr<SourcePieces> pieces;     // What the job's sources point into, if anything.
  std::unique_ptr<ProductTensors> tensors;  // Null where no matrix is a resident tensor.
  Constraints constraints;
  std::string device;  // Empty where the request names none.
  Priority priority = Priority::kNormal;
  // What the request asks for; absent where it leaves that to the server. A rate of 0 is also left
  // to it.
  std::optional<VerifyRule> verify;
};

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

// The stages of a product in their order, as Timing of the wire contract has them.
enum class Stage : uint8_t { kReceive, kQueue, kCopyIn, kCompute, kCopyOut, kSendPrepare };
inline constexpr size_t kStages = 6;
std::string_view NameOf(Stage stage);  // "copy_in"

struct ProductTiming {
  std::array<int64_t, kStages> stage_ns = {};  // Indexed by Stage.
  int64_t total_ns = 0;                        // Since the request arrived.

  int64_t& operator[](Stage stage) { return stage_ns[static_cast<size_t>(stage)]; }
  int64_t operator[](Stage stage) const { return stage_ns[static_cast<size_t>(stage)]; }
};

// How an admitted product ended. Where its status is OK, D is complete.
struct ProductOutcome {
  absl::Status status;
  Problem problem;
  const Kernel* kernel = nullptr;
  std::string_view device;                              // The device's name.
  HeldBytes d;                                          // D, where the device gave the memory.
  std::optional<TensorState> tensor = {};               // Into which D went.
  std::optional<AnswerVerification> verification = {};  // Absent where no check was asked for.
  ProductTiming timing;                                 // Zeros where the status is not OK.
};

}  // namespace gemmd
