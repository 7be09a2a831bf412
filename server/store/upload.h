// SPDX-License-Identifier: Apache-2.0
//
// A tensor on its way in: several streams bring its bytes, in any order and at the same time. The
// indices of a sparse one are checked at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/digest.h"
#include "server/store/tensor.h"
#include "server/system/mutex.h"

namespace gemmd {

// Some bytes of a tensor.
struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;

  int64_t end() const { return offset + bytes; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// Which bytes of a tensor there are: ranges that neither touch nor overlap.
class ByteRanges {
 public:
  // Adds the range and gives those parts of it that were not there, in order.
  std::vector<ByteRange> Add(ByteRange range);

  // Whether the range overlaps what is there, or follows or precedes it without a gap.
  bool Touches(ByteRange range) const;

  // What is not there of the first `bytes` bytes, in order.
  std::vector<ByteRange> Missing(int64_t bytes) const;

  // How many bytes are there from the first one on.
  int64_t PrefixBytes() const;

  bool Covers(int64_t bytes) const { return PrefixBytes() >= bytes; }
  size_t count() const { return ends_.size(); }

 private:
  absl::btree_map<int64_t, int64_t> ends_;  // From the offset of each range.
};

// Checks the indices of a sparse tensor once, when all of it has come: products rely on them
// wherever its bytes are.
class SparseCheck {
 public:
  // Borrows the tensor's bytes, all of which are there.
  SparseCheck(const TensorSpec& spec, const std::byte* bytes) : spec_(spec), bytes_(bytes) {}

  // Looks at rows of about so many bytes more, one at least. True once it has seen all.
  // Errors: InvalidArgument "chunk: matrix 1: row 3, group 17: got indices 2, 2, want increasing".
  absl::StatusOr<bool> Advance(int64_t max_bytes);

 private:
  const TensorSpec spec_;
  const std::byte* const bytes_;
  int64_t matrix_ = 0;
  int64_t row_ = 0;
};

class Upload {
 public:
  // Told once how the upload ended, from any thread.
  using Listener = absl::AnyInvocable<void(const absl::StatusOr<TensorState>&) &&>;
  using StreamId = int64_t;

  // What has come is remembered as ranges: whoever leaves more gaps sends at random.
  static constexpr size_t kMaxRanges = 1024;
  // What an upload takes beside the tensor's bytes.
  static constexpr int64_t kOverheadBytes = int64_t{64} << 10;

  // Without a digest the bytes are not hashed.
  Upload(const RandomId& id, int64_t lease_ns, TensorDraft draft, Account::Charge overhead,
         const std::optional<Sha256Digest>& digest, int64_t now_ns, std::string_view device = "");

  const RandomId& id() const { return id_; }
  bool pinned() const { return pinned_; }
  int64_t lease_ns() const { return lease_ns_; }
  const std::optional<Sha256Digest>& digest() const { return wanted_; }
  // Where the tensor is brought once it is complete; empty: nowhere.
  const std::string& device() const { return device_; }

  // What came, for whoever was told that it is complete, until the draft is taken.
  const TensorSpec& spec() const { return draft_.spec; }
  const std::byte* bytes() const { return bytes_->host(); }

  // What the upload becomes, for the one caller who was told that it is complete.
  TensorDraft TakeDraft() { return std::move(draft_); }

  // Copies the pieces, which follow each other, to where nothing was before; what comes twice is
  // left out. Errors: InvalidArgument outside of the tensor, or too many gaps. Threads: any.
  absl::Status Write(int64_t offset, absl::Span<const absl::Span<const std::byte>> pieces,
                     int64_t now_ns) ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<ByteRange> Missing() const ABSL_LOCKS_EXCLUDED(mutex_);

  enum class Progress : uint8_t {
    kWaiting,   // For bytes, or for another thread that hashes.
    kBehind,    // There is more to be hashed: call it again.
    kComplete,  // Everything is there and was hashed. Told to one caller.
    kMismatch,  // The same, but the hash is another one.
  };
  // Hashes what has come in order, at most about `max_bytes`. Threads: any.
  Progress Advance(int64_t max_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the caller is the one that goes on with an upload that is behind.
  bool ClaimCatchingUp() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndCatchingUp() ABSL_LOCKS_EXCLUDED(mutex_);

  // A stream that serves the upload; where the upload has ended, the listener is called at once.
  StreamId Attach(Listener listener, int64_t now_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // From now on the listener is not called, unless it already is.
  void Detach(StreamId stream, int64_t now_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the listeners; the first end counts.
  void End(const absl::StatusOr<TensorState>& result) ABSL_LOCKS_EXCLUDED(mutex_);

  bool HasExpired(int64_t now_ns) const { return now_ns - used_ns() >= lease_ns_; }
  // When it expires if nothing else comes.
  int64_t expires_ns() const { return used_ns() + lease_ns_; }
  bool has_streams() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether one more stream may join: whoever ends the upload tells them all.
  // Errors: ResourceExhausted.
  static constexpr size_t kMaxStreams = 64;
  absl::Status CheckRoom() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // When something came last.
  int64_t used_ns() const ABSL_LOCKS_EXCLUDED(mutex_);

  const RandomId id_;
  const int64_t lease_ns_;  // From one sign of life to its end without another one.
  const bool pinned_;
  const int64_t size_;  // The tensor's bytes.
  const std::shared_ptr<TensorBytes> bytes_;
  const Account::Charge overhead_;
  const std::optional<Sha256Digest> wanted_;
  const std::string device_;
  TensorDraft draft_;

  mutable Mutex mutex_;
  int64_t used_ns_ ABSL_GUARDED_BY(mutex_);
  // A range is claimed by whoever copies it, and received once that is done.
  ByteRanges claimed_ ABSL_GUARDED_BY(mutex_);
  ByteRanges received_ ABSL_GUARDED_BY(mutex_);
  Sha256 hash_;  // Used by whoever has set is_hashing_.
  bool is_hashing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_catching_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_complete_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t hashed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  StreamId last_stream_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<StreamId, Listener> listeners_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::StatusOr<TensorState>> result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
