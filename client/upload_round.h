// SPDX-License-Identifier: Apache-2.0
//
// One try to bring what an upload misses: streams over several connections take chunks in turn, so
// that they arrive nearly in order, which is how the server hashes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/client_session.h"
#include "client/lent_bytes.h"
#include "client/steady_time.h"
#include "client/transfer.h"
#include "gemmd/v1/resident.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/byte_buffer.h"

namespace gemmd {

// The bytes of a tensor: those of the caller, then zeros for the padding of the last line where the
// caller left it out.
struct UploadSource {
  std::span<const std::byte> data;
  std::span<const std::byte> padding;

  int64_t bytes() const { return static_cast<int64_t>(data.size() + padding.size()); }

  // Those from `offset` on that lie together, at most `most`.
  std::span<const std::byte> From(int64_t offset, int64_t most) const;
};

// Threads: the caller's, and those of gRPC, on which the streams react.
class UploadRound {
 public:
  // All are borrowed.
  UploadRound(const UploadSource& source, LentBytes& lent, const ClientSession& session,
              SteadyTime deadline);
  ~UploadRound();  // Only where no stream is open.

  // Opens a stream whose first message is `first`; the first stream of a round learns what is
  // missing.
  void Open(const std::shared_ptr<grpc::Channel>& channel, const v1::PutRequest& first)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until the first stream knows what is missing; nothing where it ended before.
  std::optional<v1::PutState> AwaitState(absl::FunctionRef<absl::Status(int64_t sent)> look)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until all streams have ended; cancels them where `look` fails.
  void AwaitEnd(absl::FunctionRef<absl::Status(int64_t sent)> look) ABSL_LOCKS_EXCLUDED(mutex_);

  // After the end.
  std::optional<v1::TensorInfo> tensor() const
      ABSL_LOCKS_EXCLUDED(mutex_);                          // Where it is complete.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);  // The first failure of a stream.

 private:
  class Stream;
  struct Chunk {
    int64_t offset;
    std::span<const std::byte> bytes;
  };

  // What streams ask, under the lock.
  std::optional<Chunk> TakeChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ShallClose() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void OnAnswer(Stream& stream, absl::StatusOr<v1::PutResponse> answer) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnStreamDone(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Stream*> Streams() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasState() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return state_.has_value() || HasEnded();
  }
  bool HasEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_ == 0; }

  const UploadSource& source_;
  LentBytes& lent_;
  const ClientSession& session_;
  const SteadyTime deadline_;

  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<v1::PutState> state_ ABSL_GUARDED_BY(mutex_);
  int next_range_ ABSL_GUARDED_BY(mutex_) = 0;  // The next byte to be sent: a range, and within it.
  int64_t next_in_range_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_broken_ ABSL_GUARDED_BY(mutex_) =
      false;  // A stream ended before the tensor was complete.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::TensorInfo> tensor_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
