// SPDX-License-Identifier: Apache-2.0
//
// An upload of a tensor: several streams write its bytes, in any order and at the same time. The
// indices of a sparse tensor are checked at the end. If the host has no room for the tensor, the
// bytes pass through a window to a device as they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
#include "server/crossing/job_layout.h"
#include "server/store/digest.h"
#include "server/store/placed_bytes.h"
#include "server/store/tensor.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

// The received bytes of a tensor, as ranges that neither touch nor overlap.
class ByteRanges {
 public:
  // Adds the range and returns its new parts, in order. No effect if it throws.
  std::vector<ByteRange> Add(ByteRange range);

  // Removes a range that lies within one existing range. No effect if it throws.
  void Remove(ByteRange range);

  // Whether the range overlaps or adjoins an existing range.
  bool Touches(ByteRange range) const;

  // The missing ranges of the first `bytes` bytes, in order.
  std::vector<ByteRange> Missing(int64_t bytes) const;

  // The number of contiguous bytes from the first one on.
  int64_t PrefixBytes() const;

  bool Covers(int64_t bytes) const { return PrefixBytes() >= bytes; }
  size_t count() const { return ends_.size(); }

 private:
  absl::btree_map<int64_t, int64_t> ends_;  // Ends of ranges, by offset.
};

// Checks the indices of a sparse tensor once it is complete: products rely on them.
class SparseCheck {
 public:
  // Borrows the complete tensor's bytes.
  SparseCheck(const TensorSpec& spec, const std::byte* bytes) : spec_(spec), bytes_(bytes) {}

  // Checks further rows of about `max_bytes` bytes, at least one. Returns true once all rows are
  // checked. Errors: InvalidArgument "chunk: matrix 1: row 3, group 17: got indices 2, 2, want
  // increasing".
  absl::StatusOr<bool> Advance(int64_t max_bytes);

 private:
  const TensorSpec spec_;
  const std::byte* const bytes_;
  int64_t matrix_ = 0;
  int64_t row_ = 0;
};

// Always owned by shared pointers.
class Upload : public std::enable_shared_from_this<Upload> {
 public:
  // Called once when the upload ends, from any thread.
  using Listener = absl::AnyInvocable<void(const absl::StatusOr<TensorState>&) &&>;
  using StreamId = int64_t;
  using Waiter = absl::AnyInvocable<void() &&>;

  // Max ranges of received bytes: more gaps mean that the client sends at random.
  static constexpr size_t kMaxRanges = 1024;
  // Memory of an upload besides the tensor's bytes.
  static constexpr int64_t kOverheadBytes = int64_t{64} << 10;
  // Also memory of an upload that passes its bytes on: half for those on their way to the device,
  // half for those read back to be hashed.
  static constexpr int64_t kWindowBytes = int64_t{8} << 20;

  // Without a digest, bytes are not hashed.
  Upload(const RandomId& id, int64_t lease_ns, TensorDraft draft, Account::Charge overhead,
         const std::optional<Sha256Digest>& digest, int64_t now_ns, std::string_view device = "");

  const RandomId& id() const { return id_; }
  bool pinned() const { return pinned_; }
  int64_t lease_ns() const { return lease_ns_; }
  const std::optional<Sha256Digest>& digest() const { return wanted_; }
  // The device to bring the complete tensor to; empty: none.
  const std::string& device() const { return device_; }

  // The received tensor, for the caller that was notified of completion, until the draft is taken.
  const TensorSpec& spec() const { return draft_.spec; }
  const std::byte* bytes() const { return bytes_->host(); }

  // Passes the bytes on to a device, where the tensor begins to be allocated, instead of writing
  // them to host memory. Call once, before Write. `on_progress` is called from threads of the
  // device when Resume and Advance have something to do. A failure ends the upload: Aborted if
  // bytes are lost, ResourceExhausted if the device has no space, or the host no memory. Borrows
  // the clock: what the device does renews the lease.
  using OnProgress = std::function<void(std::shared_ptr<Upload>)>;
  void PassTo(std::shared_ptr<DeviceCopies> device, const Clock& clock, OnProgress on_progress)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Continues what waited for the device. Threads: one at a time.
  void Resume() ABSL_LOCKS_EXCLUDED(mutex_);
  // The device has all bytes, and they are valid. For the caller that was notified of completion.
  void EndPassing();
  // Why bytes could not be passed on, or OK.
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The resulting tensor, for the one caller that was notified of completion.
  TensorDraft TakeDraft() { return std::move(draft_); }

  // Copies consecutive pieces, except bytes received before. Returns false, without taking any, if
  // the window has no room; `later` is then called once, possibly before this returns, when to try
  // again, unless `stream` is detached before. Nothing is taken from a detached stream for which
  // there is no room. Errors: InvalidArgument if outside the tensor, or for too many gaps.
  // Threads: any.
  absl::StatusOr<bool> Write(int64_t offset, absl::Span<const absl::Span<const std::byte>> pieces,
                             int64_t now_ns, Waiter later = {}, StreamId stream = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<ByteRange> Missing() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether no byte is missing, except those on their way to the device, or the upload has ended or
  // failed: in either case its end follows.
  bool HasAll() const ABSL_LOCKS_EXCLUDED(mutex_);

  enum class Progress : uint8_t {
    kWaiting,   // Waiting for bytes, or for another hashing thread, or ended already.
    kBehind,    // There is more to hash: call Advance again.
    kComplete,  // Everything is received and hashed. Returned to one caller only.
    kMismatch,  // The same, but the hash is wrong.
    kFailed,    // The same, but bytes could not be passed on: see failure().
  };
  // Hashes contiguous received bytes, at most about `max_bytes`. Threads: any.
  Progress Advance(int64_t max_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether this caller is to continue an upload that is behind.
  bool ClaimCatchingUp() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndCatchingUp() ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes a place for a stream, until Detach. Limited because ending the upload notifies all
  // streams. Errors: ResourceExhausted.
  static constexpr size_t kMaxStreams = 64;
  absl::StatusOr<StreamId> Attach(int64_t now_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // The stream is told how the upload ends; at once if it has ended. Call it once.
  void Listen(StreamId stream, Listener listener) ABSL_LOCKS_EXCLUDED(mutex_);
  // Afterwards neither the listener nor a waiter is called, unless a call is already running.
  void Detach(StreamId stream, int64_t now_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // Notifies the listeners; only the first call counts.
  void End(const absl::StatusOr<TensorState>& result) ABSL_LOCKS_EXCLUDED(mutex_);

  bool HasExpired(int64_t now_ns) const { return now_ns - used_ns() >= lease_ns_; }
  // When it expires if nothing more happens.
  int64_t expires_ns() const { return used_ns() + lease_ns_; }
  bool has_streams() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Buffer = std::shared_ptr<std::byte[]>;

  // Bytes on their way to the device.
  struct Chunk {
    Buffer bytes = {};
    int64_t offset = 0;  // In the tensor.
    int64_t room = 0;    // What it takes of the window.
    size_t parts = 0;    // Parts on their way; guarded by mutex_.
  };
  // Bytes that a caller of Write has claimed. Gives back those that it does not get to, as without
  // memory for that: they can be sent again.
  struct Claim {
    explicit Claim(Upload& claimed) : upload(claimed) {}
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    ~Claim() {
      if (next < parts.size()) upload.GiveBack(*this);
    }

    Upload& upload;
    std::shared_ptr<Chunk> chunk = {};  // Null if the bytes go to host memory.
    std::vector<ByteRange> parts = {};
    size_t next = 0;  // The first part that is still claimed.
  };
  // The room of a chunk whose bytes are fewer.
  static constexpr int64_t kMinChunkRoom = int64_t{4} << 10;

  struct Waiting {
    StreamId stream = 0;
    Waiter waiter = {};
  };

  // When data last arrived, or the device last made progress.
  int64_t used_ns() const ABSL_LOCKS_EXCLUDED(mutex_);

  bool is_over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return result_ || !failure_.ok(); }
  bool HasRoom(int64_t room) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndPlacing(absl::StatusOr<DeviceCopies::Use> copy) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(const Claim& claim) ABSL_LOCKS_EXCLUDED(mutex_);
  void Pass(const std::shared_ptr<Chunk>& chunk, const ByteRange& range);
  void EndPass(Chunk& chunk, const ByteRange& range, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadBack(const ByteRange& range);
  void EndReadingBack(int64_t bytes, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // The first failure counts.
  void FailPassing(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls on_progress_. If there is no memory for that, ends the upload, which would otherwise
  // never end.
  void ReportProgress() ABSL_LOCKS_EXCLUDED(mutex_);

  const RandomId id_;
  const int64_t lease_ns_;  // Time from the last activity to expiry.
  const bool pinned_;
  const int64_t size_;  // The tensor's bytes.
  const std::shared_ptr<TensorBytes> bytes_;
  const Account::Charge overhead_;
  const std::optional<Sha256Digest> wanted_;
  const std::string device_;
  const absl::Status no_memory_;  // Made early, because making it takes memory.
  TensorDraft draft_;
  // If the bytes are passed on: constant after PassTo.
  std::shared_ptr<DeviceCopies> passed_to_;
  const Clock* clock_ = nullptr;
  OnProgress on_progress_;
  Buffer read_back_;        // For bytes to be hashed.
  DeviceCopies::Use copy_;  // Set before is_placed_, and released by EndPassing.

  mutable Mutex mutex_;
  int64_t used_ns_ ABSL_GUARDED_BY(mutex_);
  // A range is claimed by the thread that copies it, and received when the copy is done.
  ByteRanges claimed_ ABSL_GUARDED_BY(mutex_);
  ByteRanges received_ ABSL_GUARDED_BY(mutex_);
  Sha256 hash_;  // Used by the thread that has set is_hashing_.
  bool is_hashing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_catching_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_complete_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t hashed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_placed_ ABSL_GUARDED_BY(mutex_) = false;       // The device has a block for the tensor.
  int64_t passing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;    // The room of chunks on their way.
  int64_t read_back_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // They are there to be hashed.
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  StreamId last_stream_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of the attached streams; null until they listen.
  absl::flat_hash_map<StreamId, Listener> listeners_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::StatusOr<TensorState>> result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
