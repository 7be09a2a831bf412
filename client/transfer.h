// SPDX-License-Identifier: Apache-2.0
//
// Tensors on their way to the server and back: in messages of 2 MiB, over one connection or
// several, and resumed where connections break.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/resident.pb.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace gemmd {

class ClientSession;

// Moments of the steady clock, with absl's durations between them. absl::Time is the wall clock's,
// which may jump: by it, a transfer would run out of time that it had.
class SteadyTime {
 public:
  static SteadyTime Now() {
    return SteadyTime(absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()));
  }
  static SteadyTime InfinitePast() { return SteadyTime(-absl::InfiniteDuration()); }

  friend SteadyTime operator+(SteadyTime time, absl::Duration later) {
    return SteadyTime(time.since_start_ + later);
  }
  friend absl::Duration operator-(SteadyTime time, SteadyTime earlier) {
    return time.since_start_ - earlier.since_start_;
  }
  friend bool operator<(SteadyTime a, SteadyTime b) { return a.since_start_ < b.since_start_; }

 private:
  explicit SteadyTime(absl::Duration since_start) : since_start_(since_start) {}

  absl::Duration since_start_;  // Of the clock.
};

// How many connections a transfer takes whose caller names none: as many as the client's earlier
// transfers of about as many bytes went fastest over.
//
// Sizes are told apart by powers of two. Of each, the first transfer goes over four connections if
// it has more than 8 MiB, otherwise over one; the second is the other way. From then on the faster
// way is taken, and the other one is tried again now and then, since networks change.
//
// Threads: any.
class LaneChoice {
 public:
  static constexpr int kSeveralLanes = 4;
  static constexpr int64_t kLargeBytes = int64_t{8} << 20;
  // One of so many transfers of a size goes the slower way.
  static constexpr int64_t kTransfersPerTrial = 16;

  // The connections to take: 1 or kSeveralLanes. `min_bytes`: fewer cannot be divided.
  int For(int64_t bytes, int64_t min_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // How long a transfer took that moved all of its bytes.
  void Tell(int64_t bytes, int lanes, absl::Duration took) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Size {
    int64_t transfers = 0;
    // Smoothed; 0: not known.
    double ns_per_byte_of_one = 0;
    double ns_per_byte_of_several = 0;
  };

  Size& SizeOf(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::array<Size, 65> sizes_ ABSL_GUARDED_BY(mutex_);
};

// The messages with bytes of tensors are made and read here, because protobuf would copy the bytes
// twice. Returns what stands before the bytes of a PutRequest with a chunk; the bytes end it.
std::string PutChunkHeader(int64_t offset, int64_t bytes);

// A whole message.
grpc::ByteBuffer ToByteBuffer(const google::protobuf::MessageLite& message);

// One answer of Get: a description, or a chunk, whose bytes lie in slices of what arrived.
struct GetStep {
  bool is_chunk = false;
  v1::TensorInfo tensor = {};
  int64_t offset = 0;
  std::vector<grpc::Slice> data = {};
  int64_t bytes = 0;  // What all slices have.
};

// Errors: DataLoss where the bytes are no such answer.
absl::StatusOr<GetStep> ReadGetResponse(const grpc::ByteBuffer& message);

// Errors: DataLoss where the bytes are no such answer.
absl::StatusOr<v1::PutResponse> ReadPutResponse(const grpc::ByteBuffer& message);

struct TransferTerms {
  std::function<void(const TransferProgress&)> progress = {};
  std::optional<absl::Duration> timeout = {};  // For all of it, from `entry` on.
  SteadyTime entry = SteadyTime::Now();        // When the caller asked.
  absl::Duration patience;                     // Without any byte, where there is no timeout.
};

// The bytes of a tensor: those of the caller, then zeros for the padding of the last line where the
// caller left it out.
struct UploadSource {
  std::span<const std::byte> data;
  std::span<const std::byte> padding;

  int64_t bytes() const { return static_cast<int64_t>(data.size() + padding.size()); }

  // Those from `offset` on that lie together, at most `most`.
  std::span<const std::byte> From(int64_t offset, int64_t most) const;
};

struct UploadPlan {
  v1::PutBegin begin;
  UploadSource source;
  int connections = 0;  // As the caller asked.
  TransferTerms terms;
};

// Uploads a tensor, and continues by its id after connections broke. Blocks until it is complete.
// Errors: the server's own; Unavailable once some tries have moved no byte; DeadlineExceeded.
absl::StatusOr<v1::TensorInfo> RunUpload(ClientSession& session, UploadPlan plan);

// The download of one tensor, or of a range of it, over several connections: each takes the next
// piece, and what a broken one left is asked for again.
struct DownloadPlan {
  v1::TensorRef tensor;  // By its handle, where the range takes more than one piece.
  int64_t offset = 0;
  int64_t bytes = 0;
  bool is_rest = false;  // The range must end where the tensor ends.
  TensorSink sink;
  int connections = 0;  // As the caller asked.
  TransferTerms terms;
};

// Blocks until all bytes were taken. Errors: the server's own; InvalidArgument where the tensor is
// of another size; DataLoss for an answer with other bytes than those that were asked for; the
// sink's; Unavailable once some tries have moved no byte; DeadlineExceeded.
absl::StatusOr<v1::TensorInfo> RunDownload(ClientSession& session, DownloadPlan plan);

}  // namespace gemmd
