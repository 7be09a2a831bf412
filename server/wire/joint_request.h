// SPDX-License-Identifier: Apache-2.0
//
// A MultiplyStreamRequest that has arrived, cut into its products before any of them is parsed:
// each is admitted and refused by itself.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/wire/examination.h"
#include "server/wire/incoming.h"
#include "server/wire/received_slices.h"

namespace gemmd {

// What one message may hold. More would save nothing, and nobody reads its bytes for long.
inline constexpr size_t kMostJointRequests = 256;
inline constexpr int64_t kMostJointBytes = int64_t{4} << 20;  // Where there are several.

class JointRequest {
 public:
  // Takes the bytes out of `buffer`.
  explicit JointRequest(grpc::ByteBuffer& buffer);

  // Finds the products. Once, before anything else. Errors: InvalidArgument where the bytes are no
  // such message, or it is against its bounds.
  absl::Status Cut();

  // Products that were not taken.
  size_t size() const { return products_.size() - taken_; }

  // The next product. One of several has to be gone before the next one is taken, and before this
  // is. Memory that only those before it were in is freed.
  // Errors: ResourceExhausted where there is none for the list of its slices; it is then left out.
  absl::StatusOr<Incoming> Take();

 private:
  ReceivedSlices SlicesOf(WireRange range);

  int64_t wire_bytes_ = 0;
  ReceivedSlices slices_;
  std::vector<WireRange> products_;
  size_t taken_ = 0;
  size_t slice_ = 0;         // The one that the next product begins in, or one before,
  int64_t slice_begin_ = 0;  // and where that begins.
  size_t freed_ = 0;         // What comes before it is freed.
};

}  // namespace gemmd
