// SPDX-License-Identifier: Apache-2.0
#include "server/store/device_copies.h"

#include <utility>

#include "kernels/text.h"

namespace gemmd {

DeviceCopies::Use& DeviceCopies::Use::operator=(Use&& other) noexcept {
  std::swap(copy_, other.copy_);
  std::swap(block_, other.block_);
  return *this;
}

DeviceCopies::Use::~Use() {
  if (copy_ == nullptr) return;
  MutexLock lock(&copy_->owner_->mutex_);
  --copy_->users_;
}

DeviceCopy::~DeviceCopy() {
  MutexLock lock(&owner_->mutex_);
  owner_->Drop(*this);
}

// Frees the block, where there is one and it is not lost.
void DeviceCopies::Drop(DeviceCopy& copy) {
  if (copy.block_ == 0) return;
  resident_.erase(&copy);
  --counts_.copies;
  counts_.bytes -= BlockBytes(copy.bytes_);
  // Whatever reads the block was submitted before; a block that is lost is freed for nothing.
  if (!is_closed_) memory_.Free(copy.block_);
  copy.block_ = 0;
}

void DeviceCopies::Close() {
  MutexLock lock(&mutex_);
  is_closed_ = true;
}

std::shared_ptr<DeviceCopy> DeviceCopies::CopyOf(TensorBytes& bytes) {
  MutexLock lock(&bytes.copies_mutex);
  std::shared_ptr<DeviceCopy>& copy = bytes.copies[this];
  if (copy == nullptr) copy = std::make_shared<DeviceCopy>(shared_from_this(), bytes.bytes());
  return copy;
}

void DeviceCopies::Bring(const std::shared_ptr<TensorBytes>& bytes, Done done) {
  std::shared_ptr<DeviceCopy> copy = CopyOf(*bytes);
  Use use;
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    copy->turn_ = ++last_turn_;
    if (copy->block_ != 0 && !is_closed_ && copy->generation_ != memory_.generation()) Drop(*copy);
    if (is_closed_) {
      refused = absl::UnavailableError("the server is stopping");
    } else if (copy->block_ != 0) {
      ++counts_.hits;
      ++copy->users_;
      use = Use(copy, copy->block_);
    } else if (BlockBytes(copy->bytes_) > memory_.capacity_bytes()) {
      refused = absl::ResourceExhaustedError(
          Concat("tensor: got ", copy->bytes_, " bytes, want at most the ",
                 memory_.capacity_bytes(), " that tensors may take on the device"));
    } else {
      copy->waiters_.push_back(std::move(done));
      if (std::exchange(copy->is_being_made_, true)) return;
      copy->is_promised_ = true;
      promised_bytes_ += BlockBytes(copy->bytes_);
    }
  }
  if (!refused.ok()) return std::move(done)(refused);
  if (use.block() != 0) return std::move(done)(std::move(use));
  Allocate(std::move(copy), bytes, kTries);
}

void DeviceCopies::Allocate(std::shared_ptr<DeviceCopy> copy, std::shared_ptr<TensorBytes> bytes,
                            int tries) {
  absl::Status room;
  {
    MutexLock lock(&mutex_);
    room = MakeRoom(copy->bytes_);
  }
  if (!room.ok()) return Finish(copy, room);
  const int64_t size = copy->bytes_;
  memory_.Allocate(size,
                   [self = shared_from_this(), copy = std::move(copy), bytes = std::move(bytes),
                    tries](absl::StatusOr<DeviceBlock> block) mutable {
                     if (block.ok()) {
                       self->Fill(std::move(copy), std::move(bytes), *block);
                     } else if (absl::IsResourceExhausted(block.status()) && tries > 1) {
                       self->Allocate(std::move(copy), std::move(bytes), tries - 1);
                     } else {
                       self->Finish(copy, block.status());
                     }
                   });
}

absl::Status DeviceCopies::MakeRoom(int64_t bytes) {
  if (is_closed_) return absl::UnavailableError("the server is stopping");
  const int64_t capacity = memory_.capacity_bytes();
  while (counts_.bytes > capacity - promised_bytes_) {
    DeviceCopy* const oldest = LeastRecentlyUsed();
    if (oldest == nullptr) {
      return absl::ResourceExhaustedError(Concat("tensor: got ", bytes,
                                                 " bytes, want room on the device, whose ",
                                                 capacity, " bytes for tensors are in use"));
    }
    ++counts_.evictions;
    Drop(*oldest);
  }
  return absl::OkStatus();
}

DeviceCopy* DeviceCopies::LeastRecentlyUsed() {
  DeviceCopy* oldest = nullptr;
  for (DeviceCopy* const copy : resident_) {
    if (copy->users_ > 0 || copy->is_being_made_) continue;
    if (oldest == nullptr || copy->turn_ < oldest->turn_) oldest = copy;
  }
  return oldest;
}

void DeviceCopies::Fill(std::shared_ptr<DeviceCopy> copy, std::shared_ptr<TensorBytes> bytes,
                        DeviceBlock block) {
  bool is_closed = false;
  {
    MutexLock lock(&mutex_);
    is_closed = is_closed_;
    copy->block_ = block;
    // Where the block is of an earlier generation, the Write fails.
    copy->generation_ = is_closed ? 0 : memory_.generation();
    resident_.insert(copy.get());
    ++counts_.copies;
    counts_.bytes += BlockBytes(copy->bytes_);
    copy->is_promised_ = false;
    promised_bytes_ -= BlockBytes(copy->bytes_);
  }
  if (is_closed) return Finish(copy, absl::UnavailableError("the server is stopping"));
  const Piece whole(bytes->host(), static_cast<size_t>(bytes->bytes()));
  memory_.Write(block, 0, {whole},
                [self = shared_from_this(), copy = std::move(copy), bytes = std::move(bytes)](
                    const absl::Status& status) { self->Finish(copy, status); });
}

void DeviceCopies::Finish(const std::shared_ptr<DeviceCopy>& copy, const absl::Status& status) {
  Waiters waiters;
  std::vector<Use> uses;
  {
    MutexLock lock(&mutex_);
    waiters.swap(copy->waiters_);
    copy->is_being_made_ = false;
    if (std::exchange(copy->is_promised_, false)) promised_bytes_ -= BlockBytes(copy->bytes_);
    if (status.ok()) {
      ++counts_.made;
      copy->users_ += static_cast<int>(waiters.size());
      for (size_t i = 0; i < waiters.size(); ++i) uses.push_back(Use(copy, copy->block_));
    } else {
      Drop(*copy);
    }
  }
  for (size_t i = 0; i < waiters.size(); ++i) {
    if (status.ok()) {
      std::move(waiters[i])(std::move(uses[i]));
    } else {
      std::move(waiters[i])(status);
    }
  }
}

bool DeviceCopies::Has(const DeviceCopy& copy) const {
  MutexLock lock(&mutex_);
  return copy.block_ != 0 && !copy.is_being_made_ && !is_closed_ &&
         copy.generation_ == memory_.generation();
}

DeviceCopies::Counts DeviceCopies::counts() const {
  MutexLock lock(&mutex_);
  return counts_;
}

}  // namespace gemmd
