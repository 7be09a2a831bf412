// SPDX-License-Identifier: Apache-2.0
#include "server/store/upload.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "kernels/matrix/invalid.h"
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
  for (; next != ends_.end() && next->first <= range.end(); ++next) {
    if (next->first > at) added.push_back({at, next->first - at});
    at = std::max(at, next->second);
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
  }
  if (at < range.end()) added.push_back({at, range.end() - at});
  ends_[begin] = end;  // The last step that takes memory.
  ends_.erase(std::next(ends_.find(begin)), ends_.upper_bound(end));
  return added;
}

void ByteRanges::Remove(ByteRange range) {
  const auto from = std::prev(ends_.upper_bound(range.offset));
  const int64_t begin = from->first;
  if (range.end() < from->second) ends_.emplace(range.end(), from->second);
  if (begin < range.offset) {
    ends_.find(begin)->second = range.offset;
  } else {
    ends_.erase(begin);
  }
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

// Bytes that are read back from a device at a time: a read costs as much as a quarter of a
// megabyte.
constexpr int64_t kReadAtOnce = Upload::kWindowBytes / 2;

// Copies the part `range` of pieces that begin at `offset` of the tensor.
void Copy(absl::Span<const absl::Span<const std::byte>> pieces, int64_t offset,
          const ByteRange& range, std::byte* to) {
  int64_t at = offset;
  for (const absl::Span<const std::byte> piece : pieces) {
    const int64_t end = at + static_cast<int64_t>(piece.size());
    const int64_t first = std::max(at, range.offset);
    const int64_t last = std::min(end, range.end());
    if (first < last) {
      std::memcpy(to + (first - range.offset), piece.data() + (first - at),
                  static_cast<size_t>(last - first));
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
      no_memory_(absl::ResourceExhaustedError("upload: no memory for its bytes, begin a new one")),
      draft_(std::move(draft)),
      used_ns_(now_ns) {}

absl::StatusOr<bool> Upload::Write(int64_t offset,
                                   absl::Span<const absl::Span<const std::byte>> pieces,
                                   int64_t now_ns, Waiter later, StreamId stream) {
  int64_t bytes = 0;
  for (const absl::Span<const std::byte> piece : pieces) {
    bytes += static_cast<int64_t>(piece.size());
  }
  if (offset < 0 || offset > size_ || bytes > size_ - offset) {
    return Invalid("chunk", Concat(bytes, " bytes from ", offset, " on"),
                   Concat("bytes of a tensor of ", size_));
  }
  const ByteRange range = {offset, bytes};
  Claim claim(*this);
  std::shared_ptr<Chunk>& chunk = claim.chunk;
  {
    MutexLock lock(&mutex_);
    used_ns_ = now_ns;
    if (passed_to_ != nullptr) {
      if (is_over()) return true;
      const int64_t room = std::max(bytes, kMinChunkRoom);
      if (!HasRoom(room)) {
        if (stream != 0 && !listeners_.contains(stream)) return true;
        waiting_.push_back({stream, std::move(later)});
        return false;
      }
      // Allocated only if there is room, and before bytes are claimed: this may fail.
      chunk = std::make_shared<Chunk>(Chunk{.offset = offset, .room = room});
      chunk->bytes = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    }
    if (claimed_.count() >= kMaxRanges && !claimed_.Touches(range)) {
      return Invalid("chunk", Concat("bytes with more than ", kMaxRanges - 1, " gaps between them"),
                     "fewer");
    }
    claim.parts = claimed_.Add(range);
    if (claim.parts.empty()) return true;
    if (chunk != nullptr) {
      chunk->parts = claim.parts.size();
      passing_bytes_ += chunk->room;
    }
  }
  if (chunk != nullptr) {
    Copy(pieces, offset, range, chunk->bytes.get());
    for (; claim.next < claim.parts.size(); ++claim.next) Pass(chunk, claim.parts[claim.next]);
    return true;
  }
  for (const ByteRange& part : claim.parts)
    Copy(pieces, offset, part, bytes_->host() + part.offset);
  MutexLock lock(&mutex_);
  for (; claim.next < claim.parts.size(); ++claim.next) received_.Add(claim.parts[claim.next]);
  return true;
}

void Upload::GiveBack(const Claim& claim) {
  Chunk* const chunk = claim.chunk.get();
  {
    MutexLock lock(&mutex_);
    if (chunk != nullptr) chunk->parts -= claim.parts.size() - claim.next;
    if (chunk != nullptr && chunk->parts == 0) passing_bytes_ -= chunk->room;
    try {
      for (size_t i = claim.next; i < claim.parts.size(); ++i) claimed_.Remove(claim.parts[i]);
    } catch (const std::bad_alloc&) {
      failure_ = no_memory_;  // They can neither be received nor claimed again.
    }
  }
  if (chunk == nullptr) return;
  try {
    on_progress_(shared_from_this());
  } catch (const std::bad_alloc&) {  // Waiting calls continue with the next progress.
  }
}

void Upload::PassTo(std::shared_ptr<DeviceCopies> device, const Clock& clock,
                    OnProgress on_progress) {
  passed_to_ = std::move(device);
  clock_ = &clock;
  on_progress_ = std::move(on_progress);
  if (wanted_) read_back_ = std::make_shared_for_overwrite<std::byte[]>(kReadAtOnce);
  (void)bytes_->TakeWritingAtOnce(passed_to_.get());  // Nobody else has the bytes.
  passed_to_->MakeNew(bytes_, [self = shared_from_this()](absl::StatusOr<DeviceCopies::Use> copy) {
    self->EndPlacing(std::move(copy));
  });
}

void Upload::EndPlacing(absl::StatusOr<DeviceCopies::Use> copy) {
  if (copy.ok()) {
    bytes_->BeginWriting(passed_to_.get());
    copy_ = *std::move(copy);
  }
  {
    MutexLock lock(&mutex_);
    used_ns_ = clock_->NowNs();
    if (copy.ok()) {
      is_placed_ = true;
    } else {
      FailPassing(copy.status());
    }
  }
  ReportProgress();
}

// One chunk always has room, however large it is.
bool Upload::HasRoom(int64_t room) const {
  return is_placed_ && (passing_bytes_ == 0 || passing_bytes_ + room <= kWindowBytes / 2);
}

void Upload::Pass(const std::shared_ptr<Chunk>& chunk, const ByteRange& range) {
  const absl::Span<const std::byte> bytes(chunk->bytes.get() + (range.offset - chunk->offset),
                                          static_cast<size_t>(range.bytes));
  DeviceMemory::Done done = [self = shared_from_this(), chunk, range](const absl::Status& status) {
    self->EndPass(*chunk, range, status);
  };
  if (passed_to_->Write(copy_, range.offset, bytes, done)) return;
  EndPass(*chunk, range, absl::UnavailableError("the server is stopping"));
}

void Upload::EndPass(Chunk& chunk, const ByteRange& range, const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    used_ns_ = clock_->NowNs();
    if (--chunk.parts == 0) passing_bytes_ -= chunk.room;
    try {
      status.ok() ? (void)received_.Add(range) : FailPassing(status);
    } catch (const std::bad_alloc&) {
      FailPassing(no_memory_);
    }
  }
  ReportProgress();
}

void Upload::ReadBack(const ByteRange& range) {
  const absl::Span<std::byte> to(read_back_.get(), static_cast<size_t>(range.bytes));
  try {
    DeviceMemory::Done done = [self = shared_from_this(), range](const absl::Status& status) {
      self->EndReadingBack(range.bytes, status);
    };
    if (passed_to_->Read(copy_.copy(), range.offset, to, done)) return;
    EndReadingBack(range.bytes, absl::UnavailableError("the device has lost them"));
  } catch (const std::bad_alloc&) {
    EndReadingBack(range.bytes, no_memory_);
  }
}

void Upload::EndReadingBack(int64_t bytes, const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    used_ns_ = clock_->NowNs();
    if (status.ok()) {
      read_back_bytes_ = bytes;
    } else {
      FailPassing(status);
    }
  }
  ReportProgress();
}

void Upload::ReportProgress() {
  try {
    return on_progress_(shared_from_this());
  } catch (const std::bad_alloc&) {
    MutexLock lock(&mutex_);
    FailPassing(no_memory_);
  }
  try {
    End(no_memory_);
  } catch (const std::bad_alloc&) {  // Who was not told finds it ended.
  }
}

void Upload::FailPassing(const absl::Status& status) {
  if (!failure_.ok()) return;
  failure_ = absl::IsResourceExhausted(status)
                 ? status
                 : absl::AbortedError(Concat(
                       "upload: its bytes are passed to ", device_,
                       ", which has lost them, begin a new one: ", std::string(status.message())));
}

void Upload::Resume() {
  int64_t read_bytes = 0;
  std::vector<Waiting> waiting;
  {
    MutexLock lock(&mutex_);
    read_bytes = std::exchange(read_back_bytes_, 0);
    waiting.swap(waiting_);
  }
  if (read_bytes > 0) {
    hash_.Add({read_back_.get(), static_cast<size_t>(read_bytes)});
    MutexLock lock(&mutex_);
    is_hashing_ = false;
    hashed_bytes_ += read_bytes;
  }
  for (Waiting& one : waiting) {
    if (one.waiter) std::move(one.waiter)();
  }
}

void Upload::EndPassing() {
  if (passed_to_ == nullptr) return;
  bytes_->EndWriting(passed_to_.get(), /*has_begun=*/true, /*is_ok=*/true);
  copy_ = DeviceCopies::Use();
}

// Shares nothing with the upload: ThreadSanitizer does not see how Abseil counts references.
absl::Status Upload::failure() const {
  MutexLock lock(&mutex_);
  return {failure_.code(), failure_.message()};
}

std::vector<ByteRange> Upload::Missing() const {
  MutexLock lock(&mutex_);
  return received_.Missing(size_);
}

bool Upload::HasAll() const {
  MutexLock lock(&mutex_);
  return is_over() || (passed_to_ != nullptr ? claimed_ : received_).Covers(size_);
}

Upload::Progress Upload::Advance(int64_t max_bytes) {
  // Small, so that a caller never waits long for another one's hashing.
  constexpr int64_t kHashedAtOnce = int64_t{256} << 10;
  while (true) {
    ByteRange next;
    {
      MutexLock lock(&mutex_);
      if (is_complete_) return Progress::kWaiting;
      if (!failure_.ok()) {
        is_complete_ = true;
        return Progress::kFailed;
      }
      if (result_ || is_hashing_) return Progress::kWaiting;
      const int64_t there = received_.PrefixBytes();
      if (!wanted_) hashed_bytes_ = there;
      if (hashed_bytes_ == there && there < size_) return Progress::kWaiting;
      if (hashed_bytes_ == size_) {
        is_complete_ = true;
        break;
      }
      if (max_bytes <= 0) return Progress::kBehind;
      next = {hashed_bytes_, passed_to_ != nullptr
                                 ? std::min(there - hashed_bytes_, kReadAtOnce)
                                 : std::min({there - hashed_bytes_, kHashedAtOnce, max_bytes})};
      is_hashing_ = true;
    }
    if (passed_to_ != nullptr) {
      ReadBack(next);
      return Progress::kWaiting;
    }
    hash_.Add({bytes_->host() + next.offset, static_cast<size_t>(next.bytes)});
    max_bytes -= next.bytes;
    MutexLock lock(&mutex_);
    is_hashing_ = false;
    hashed_bytes_ += next.bytes;
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
  // Destroyed after the lock is released: they may hold the last reference to a call.
  Listener listener;
  std::vector<Waiting> waiting;
  MutexLock lock(&mutex_);
  used_ns_ = now_ns;
  for (Waiting& one : waiting_) {
    if (one.stream == stream) waiting.push_back(std::move(one));
  }
  std::erase_if(waiting_, [stream](const Waiting& one) { return one.stream == stream; });
  const auto found = listeners_.find(stream);
  if (found == listeners_.end()) return;
  listener = std::move(found->second);
  listeners_.erase(found);
}

void Upload::End(const absl::StatusOr<TensorState>& result) {
  absl::flat_hash_map<StreamId, Listener> listeners;
  std::vector<Waiting> waiting;
  {
    MutexLock lock(&mutex_);
    if (result_) return;
    result_ = result;
    listeners.swap(listeners_);
    waiting.swap(waiting_);
  }
  for (auto& [stream, listener] : listeners) {
    if (listener != nullptr) std::move(listener)(result);
  }
  for (Waiting& one : waiting) {
    if (one.waiter) std::move(one.waiter)();
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
