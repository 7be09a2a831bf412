// SPDX-License-Identifier: Apache-2.0
#include "server/store/upload.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {

std::vector<ByteRange> ByteRanges::Add(ByteRange range) {
  std::vector<ByteRange> added;
  if (range.bytes <= 0) return added;
  // The first range that ends at or after the beginning of this one.
  auto next = ends_.upper_bound(range.offset);
  if (next != ends_.begin() && std::prev(next)->second >= range.offset) --next;
  int64_t begin = range.offset;
  int64_t end = range.end();
  int64_t at = range.offset;
  while (next != ends_.end() && next->first <= range.end()) {
    if (next->first > at) added.push_back({at, next->first - at});
    at = std::max(at, next->second);
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ends_.erase(next);
  }
  if (at < range.end()) added.push_back({at, range.end() - at});
  ends_.emplace(begin, end);
  return added;
}

bool ByteRanges::Touches(ByteRange range) const {
  // The last range that begins at or before the end of this one.
  const auto after = ends_.upper_bound(range.end());
  return after != ends_.begin() && std::prev(after)->second >= range.offset;
}

std::vector<ByteRange> ByteRanges::Missing(int64_t bytes) const {
  std::vector<ByteRange> missing;
  int64_t at = 0;
  for (const auto& [offset, end] : ends_) {
    if (offset >= bytes) break;
    if (offset > at) missing.push_back({at, offset - at});
    at = end;
  }
  if (at < bytes) missing.push_back({at, bytes - at});
  return missing;
}

int64_t ByteRanges::PrefixBytes() const {
  const auto first = ends_.begin();
  return first != ends_.end() && first->first == 0 ? first->second : 0;
}

absl::StatusOr<bool> SparseCheck::Advance(int64_t max_bytes) {
  const MatrixLayout& layout = spec_.layout;
  if (!layout.is_sparse() || spec_.bytes == 0) return true;
  ASSIGN_OR_RETURN(const SparseLayout one,
                   SparseLayoutOf("spec", layout.type, layout.rows, layout.columns));
  const int64_t row_bytes = std::max<int64_t>(1, one.value_line_bytes + one.index_line_bytes);
  int64_t max_rows = std::max<int64_t>(1, max_bytes / row_bytes);
  while (matrix_ < spec_.matrices && max_rows > 0) {
    const int64_t end = std::min(one.rows, row_ + max_rows);
    const std::string place = spec_.matrices == 1 ? "chunk" : Concat("chunk: matrix ", matrix_);
    RETURN_IF_ERROR(CheckCompressedRows(place, one, bytes_ + matrix_ * one.bytes, row_, end));
    max_rows -= end - row_;
    row_ = end;
    if (row_ < one.rows) continue;
    ++matrix_;
    row_ = 0;
  }
  return matrix_ == spec_.matrices;
}

namespace {

// Copies the part `range` of pieces that begin at `offset` of the tensor.
void Copy(absl::Span<const absl::Span<const std::byte>> pieces, int64_t offset,
          const ByteRange& range, std::byte* tensor) {
  int64_t at = offset;
  for (const absl::Span<const std::byte> piece : pieces) {
    const int64_t end = at + static_cast<int64_t>(piece.size());
    const int64_t first = std::max(at, range.offset);
    const int64_t last = std::min(end, range.end());
    if (first < last) {
      std::memcpy(tensor + first, piece.data() + (first - at), static_cast<size_t>(last - first));
    }
    at = end;
  }
}

}  // namespace

Upload::Upload(const RandomId& id, int64_t lease_ns, TensorDraft draft, Account::Charge overhead,
               const std::optional<Sha256Digest>& digest, int64_t now_ns, std::string_view device)
    : id_(id),
      lease_ns_(lease_ns),
      pinned_(draft.keep.pinned),
      size_(draft.spec.bytes),
      bytes_(draft.bytes),
      overhead_(std::move(overhead)),
      wanted_(digest),
      device_(device),
      draft_(std::move(draft)),
      used_ns_(now_ns) {}

absl::Status Upload::Write(int64_t offset, absl::Span<const absl::Span<const std::byte>> pieces,
                           int64_t now_ns) {
  int64_t bytes = 0;
  for (const absl::Span<const std::byte> piece : pieces) {
    bytes += static_cast<int64_t>(piece.size());
  }
  if (offset < 0 || offset > size_ || bytes > size_ - offset) {
    return absl::InvalidArgumentError(Concat("chunk: got ", bytes, " bytes from ", offset,
                                             " on, want bytes of a tensor of ", size_));
  }
  std::vector<ByteRange> claimed;
  {
    MutexLock lock(&mutex_);
    used_ns_ = now_ns;
    const ByteRange range = {offset, bytes};
    if (claimed_.count() >= kMaxRanges && !claimed_.Touches(range)) {
      return absl::InvalidArgumentError(Concat("chunk: got bytes with more than ", kMaxRanges - 1,
                                               " gaps between them, want fewer"));
    }
    claimed = claimed_.Add(range);
  }
  if (claimed.empty()) return absl::OkStatus();
  for (const ByteRange& range : claimed) Copy(pieces, offset, range, bytes_->host());
  MutexLock lock(&mutex_);
  for (const ByteRange& range : claimed) received_.Add(range);
  return absl::OkStatus();
}

std::vector<ByteRange> Upload::Missing() const {
  MutexLock lock(&mutex_);
  return received_.Missing(size_);
}

Upload::Progress Upload::Advance(int64_t max_bytes) {
  // Small, so that a caller never waits long for another one's hashing.
  constexpr int64_t kHashedAtOnce = int64_t{256} << 10;
  while (true) {
    absl::Span<const std::byte> next;
    {
      MutexLock lock(&mutex_);
      if (is_hashing_ || is_complete_) return Progress::kWaiting;
      const int64_t there = received_.PrefixBytes();
      if (!wanted_) hashed_bytes_ = there;
      if (hashed_bytes_ == there && there < size_) return Progress::kWaiting;
      if (hashed_bytes_ == size_) {
        is_complete_ = true;
        break;
      }
      if (max_bytes <= 0) return Progress::kBehind;
      const int64_t count = std::min({there - hashed_bytes_, kHashedAtOnce, max_bytes});
      next = {bytes_->host() + hashed_bytes_, static_cast<size_t>(count)};
      is_hashing_ = true;
    }
    hash_.Add(next);
    max_bytes -= static_cast<int64_t>(next.size());
    MutexLock lock(&mutex_);
    is_hashing_ = false;
    hashed_bytes_ += static_cast<int64_t>(next.size());
  }
  return !wanted_ || hash_.Finish() == *wanted_ ? Progress::kComplete : Progress::kMismatch;
}

bool Upload::ClaimCatchingUp() {
  MutexLock lock(&mutex_);
  return !std::exchange(is_catching_up_, true);
}

void Upload::EndCatchingUp() {
  MutexLock lock(&mutex_);
  is_catching_up_ = false;
}

absl::StatusOr<Upload::StreamId> Upload::Attach(int64_t now_ns) {
  MutexLock lock(&mutex_);
  if (listeners_.size() >= kMaxStreams) {
    return absl::ResourceExhaustedError(
        Concat("join: the upload has ", listeners_.size(), " streams, want at most ", kMaxStreams));
  }
  used_ns_ = now_ns;
  listeners_.emplace(++last_stream_, nullptr);
  return last_stream_;
}

void Upload::Listen(StreamId stream, Listener listener) {
  std::optional<absl::StatusOr<TensorState>> result;
  {
    MutexLock lock(&mutex_);
    result = result_;
    if (!result) listeners_[stream] = std::move(listener);
  }
  if (result) std::move(listener)(*result);
}

void Upload::Detach(StreamId stream, int64_t now_ns) {
  // Destroyed after the lock is released: it may hold the last reference to a call.
  Listener listener;
  MutexLock lock(&mutex_);
  used_ns_ = now_ns;
  const auto found = listeners_.find(stream);
  if (found == listeners_.end()) return;
  listener = std::move(found->second);
  listeners_.erase(found);
}

void Upload::End(const absl::StatusOr<TensorState>& result) {
  absl::flat_hash_map<StreamId, Listener> listeners;
  {
    MutexLock lock(&mutex_);
    if (result_) return;
    result_ = result;
    listeners.swap(listeners_);
  }
  for (auto& [stream, listener] : listeners) {
    if (listener != nullptr) std::move(listener)(result);
  }
}

bool Upload::has_streams() const {
  MutexLock lock(&mutex_);
  return !listeners_.empty();
}

int64_t Upload::used_ns() const {
  MutexLock lock(&mutex_);
  return used_ns_;
}

}  // namespace gemmd
