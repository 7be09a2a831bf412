// SPDX-License-Identifier: Apache-2.0
//
// Uploads and downloads of tensors: in messages of 2 MiB, over one or more connections, and resumed
// after connections break.
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

// Time points of the steady clock, with absl::Duration between them. absl::Time is the wall
// clock's, whose jumps could end a transfer early.
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

  absl::Duration since_start_;  // Since the clock's epoch.
};

// Chooses the number of connections of a transfer if the caller does not: the number with which the
// client's earlier transfers of similar size were fastest.
//
// Sizes are grouped by powers of two. In each group, the first transfer uses four connections if it
// has more than 8 MiB, otherwise one; the second uses the other number. After that the faster
// number is used, and the other is tried again at times, because networks change.
//
// Threads: any.
class LaneChoice {
 public:
  static constexpr int kSeveralLanes = 4;
  static constexpr int64_t kLargeBytes = int64_t{8} << 20;
  // One in this many transfers of a size uses the slower number.
  static constexpr int64_t kTransfersPerTrial = 16;

  // The number of connections to use: 1 or kSeveralLanes. Fewer than `min_bytes` cannot be divided.
  int For(int64_t bytes, int64_t min_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Records the duration of a complete transfer.
  void Tell(int64_t bytes, int lanes, absl::Duration took) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Size {
    int64_t transfers = 0;
    // Smoothed; 0: unknown.
    double ns_per_byte_of_one = 0;
    double ns_per_byte_of_several = 0;
  };

  Size& SizeOf(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::array<Size, 65> sizes_ ABSL_GUARDED_BY(mutex_);
};

// Messages with tensor bytes are written and parsed here, because protobuf would copy the bytes
// twice. Returns the beginning of a PutRequest with a chunk; the chunk's bytes follow it.
std::string PutChunkHeader(int64_t offset, int64_t bytes);

// A whole message.
grpc::ByteBuffer ToByteBuffer(const google::protobuf::MessageLite& message);

// One answer of Get: a description, or a chunk whose bytes are slices of the received message.
struct GetStep {
  bool is_chunk = false;
  v1::TensorInfo tensor = {};
  int64_t offset = 0;
  std::vector<grpc::Slice> data = {};
  int64_t bytes = 0;  // Total of all slices.
};

// Errors: DataLoss for a malformed answer.
absl::StatusOr<GetStep> ReadGetResponse(const grpc::ByteBuffer& message);

// Errors: DataLoss for a malformed answer.
absl::StatusOr<v1::PutResponse> ReadPutResponse(const grpc::ByteBuffer& message);

struct TransferTerms {
  std::function<void(const TransferProgress&)> progress = {};
  std::optional<absl::Duration> timeout = {};  // For the whole transfer, from `entry` on.
  SteadyTime entry = SteadyTime::Now();        // When the caller's call began.
  absl::Duration patience;                     // Max time without progress, if there is no timeout.
};

// The bytes of a tensor: the caller's, then zeros for the padding of the last line if the caller
// left it out.
struct UploadSource {
  std::span<const std::byte> data;
  std::span<const std::byte> tail;

  int64_t bytes() const { return static_cast<int64_t>(data.size() + tail.size()); }

  // At most `max_bytes` contiguous bytes from `offset` on.
  std::span<const std::byte> From(int64_t offset, int64_t max_bytes) const;
};

struct UploadPlan {
  v1::PutBegin begin;
  UploadSource source;
  int connections = 0;  // As requested by the caller.
  TransferTerms terms;
};

// Uploads a tensor, and resumes by its id after connections break. Blocks until it is complete.
// Errors: the server's own; Unavailable after several attempts without progress; DeadlineExceeded.
absl::StatusOr<v1::TensorInfo> RunUpload(ClientSession& session, UploadPlan plan);

// The download of a tensor, or of a range of it, over several connections: each takes the next
// piece, and the rest of a broken one is requested again.
struct DownloadPlan {
  v1::TensorRef tensor;  // By its handle, if the range takes more than one piece.
  int64_t offset = 0;
  int64_t bytes = 0;
  bool is_rest = false;  // The range must end where the tensor ends.
  TensorSink sink;
  int connections = 0;  // As requested by the caller.
  TransferTerms terms;
};

// Blocks until all bytes are received. Errors: the server's own; the sink's; InvalidArgument if the
// tensor has another size; DataLoss if an answer has other bytes than requested; Unavailable after
// several attempts without progress; DeadlineExceeded.
absl::StatusOr<v1::TensorInfo> RunDownload(ClientSession& session, DownloadPlan plan);

}  // namespace gemmd
