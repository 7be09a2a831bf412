// SPDX-License-Identifier: Apache-2.0
#include "server/store/device_copies.h"

#include <algorithm>
#include <utility>

#include "kernels/status_macros.h"
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
  copy.charge_ = Account::Charge();
}

void DeviceCopies::Close() {
  MutexLock lock(&mutex_);
  is_closed_ = true;
}

void DeviceCopies::BringAs(const std::shared_ptr<PlacedBytes>& bytes, bool is_new, Done done) {
  Making making = {.copy = bytes->CopyOn(*this), .bytes = bytes, .is_new = is_new};
  DeviceCopy& copy = *making.copy;
  Use use;
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    copy.turn_ = ++last_turn_;
    if (copy.block_ != 0 && !is_closed_ && copy.generation_ != memory_.generation()) Drop(copy);
    if (is_closed_) {
      refused = absl::UnavailableError("the server is stopping");
    } else if (copy.block_ != 0 && !copy.is_being_made_) {
      ++counts_.hits;
      ++copy.users_;
      use = Use(making.copy, copy.block_);
    } else if (BlockBytes(copy.bytes_) > memory_.capacity_bytes()) {
      refused = absl::ResourceExhaustedError(
          Concat("quota: got ", copy.bytes_, " bytes of device memory, want at most the ",
                 memory_.capacity_bytes(), " of ", device_,
                 " that all tensors may take (--gpu-tensor-bytes)"));
    } else {
      copy.waiters_.push_back(std::move(done));
      if (std::exchange(copy.is_being_made_, true)) return;
      copy.is_promised_ = true;
      promised_bytes_ += BlockBytes(copy.bytes_);
    }
  }
  if (!refused.ok()) return std::move(done)(refused);
  if (use.block() != 0) return std::move(done)(std::move(use));
  if (is_new) return Allocate(std::move(making));
  bytes->BringToHost(
      [self = shared_from_this(), making = std::move(making)](const absl::Status& status) mutable {
        status.ok() ? self->Allocate(std::move(making)) : self->Finish(making, status);
      });
}

DeviceCopies::Use DeviceCopies::TakeAtOnce(PlacedBytes& bytes) {
  std::shared_ptr<DeviceCopy> copy = bytes.CopyOn(*this);
  MutexLock lock(&mutex_);
  if (!HasLocked(*copy)) return Use();
  copy->turn_ = ++last_turn_;
  ++counts_.hits;
  ++copy->users_;
  const DeviceBlock block = copy->block_;
  return Use(std::move(copy), block);
}

absl::Status DeviceCopies::Charge(Making& making) {
  Account* const account = making.bytes->device_account();
  if (account == nullptr || making.charge.bytes() > 0) return absl::OkStatus();
  while (true) {
    absl::StatusOr<Account::Charge> charge = account->Take(BlockBytes(making.copy->bytes_));
    if (charge.ok()) {
      making.charge = *std::move(charge);
      return absl::OkStatus();
    }
    if (!GiveUpOneOf(*account)) return charge.status();
  }
}

bool DeviceCopies::GiveUpOneOf(const Account& account) {
  struct Held {
    int64_t turn = 0;
    std::shared_ptr<DeviceCopy> copy;
    std::shared_ptr<PlacedBytes> tensor;
  };
  // Whoever lets go of the last one needs the lock.
  std::vector<Held> held;
  {
    MutexLock lock(&mutex_);
    for (DeviceCopy* const copy : resident_) {
      if (copy->users_ > 0 || copy->is_being_made_) continue;
      held.push_back({copy->turn_, copy->weak_from_this().lock(), copy->tensor_.lock()});
    }
  }
  std::erase_if(held, [&](const Held& one) {
    return one.copy == nullptr || one.tensor == nullptr || one.tensor->device_account() != &account;
  });
  std::sort(held.begin(), held.end(),
            [](const Held& one, const Held& other) { return one.turn < other.turn; });
  for (const Held& one : held) {
    if (one.tensor->GiveUp(*this, *one.copy) != PlacedBytes::Leaving::kGone) continue;
    MutexLock lock(&mutex_);
    ++counts_.evictions;
    return true;
  }
  return false;
}

void DeviceCopies::Allocate(Making making) {
  const absl::Status charged = Charge(making);
  if (!charged.ok()) return Finish(making, charged);
  std::shared_ptr<PlacedBytes> to_write_back;
  const absl::Status room = MakeRoom(making.copy->bytes_, to_write_back);
  if (!room.ok()) return Finish(making, room);
  if (to_write_back != nullptr) {
    return to_write_back->BringToHost([self = shared_from_this(), making = std::move(making)](
                                          const absl::Status& status) mutable {
      // What is lost needs no room any more.
      const bool is_gone = absl::IsFailedPrecondition(status) && --making.tries > 0;
      status.ok() || is_gone ? self->Allocate(std::move(making)) : self->Finish(making, status);
    });
  }
  const int64_t size = making.copy->bytes_;
  memory_.Allocate(size, [self = shared_from_this(),
                          making = std::move(making)](absl::StatusOr<DeviceBlock> block) mutable {
    if (block.ok()) {
      self->Fill(std::move(making), *block);
    } else if (absl::IsResourceExhausted(block.status()) && making.tries > 1) {
      --making.tries;
      self->Allocate(std::move(making));
    } else {
      self->Finish(making, block.status());
    }
  });
}

absl::Status DeviceCopies::MakeRoom(int64_t bytes, std::shared_ptr<PlacedBytes>& to_write_back) {
  while (true) {
    std::shared_ptr<DeviceCopy> oldest;
    std::shared_ptr<PlacedBytes> tensor;
    RETURN_IF_ERROR(FindOldest(bytes, oldest, tensor));
    if (oldest == nullptr) return absl::OkStatus();
    switch (tensor->GiveUp(*this, *oldest)) {
      case PlacedBytes::Leaving::kInUse: break;
      case PlacedBytes::Leaving::kGone: {
        MutexLock lock(&mutex_);
        ++counts_.evictions;
        break;
      }
      case PlacedBytes::Leaving::kIsOnlyPlace: {
        MutexLock lock(&mutex_);
        ++counts_.written_back;
        to_write_back = std::move(tensor);
        return absl::OkStatus();
      }
    }
  }
}

absl::Status DeviceCopies::FindOldest(int64_t bytes, std::shared_ptr<DeviceCopy>& oldest,
                                      std::shared_ptr<PlacedBytes>& tensor) {
  // Whoever lets go of the last one needs the lock.
  std::vector<std::shared_ptr<const void>> passed;
  MutexLock lock(&mutex_);
  if (is_closed_) return absl::UnavailableError("the server is stopping");
  const int64_t capacity = memory_.capacity_bytes();
  while (counts_.bytes > capacity - promised_bytes_) {
    DeviceCopy* const found = LeastRecentlyUsed();
    if (found == nullptr) {
      const int64_t used = counts_.bytes + promised_bytes_ - BlockBytes(bytes);
      return absl::ResourceExhaustedError(
          Concat("quota: got ", bytes, " bytes of device memory, want at most the ",
                 std::max<int64_t>(0, capacity - used), " that are free of all tensors of ",
                 device_, ": ", used, " of ", capacity, " are in use (--gpu-tensor-bytes)"));
    }
    oldest = found->weak_from_this().lock();
    tensor = found->tensor_.lock();
    if (oldest != nullptr && tensor != nullptr) return absl::OkStatus();
    // It is about to go with its tensor.
    Drop(*found);
    passed.push_back(std::move(oldest));
    passed.push_back(std::move(tensor));
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

void DeviceCopies::Fill(Making making, DeviceBlock block) {
  DeviceCopy& copy = *making.copy;
  bool is_closed = false;
  {
    MutexLock lock(&mutex_);
    is_closed = is_closed_;
    copy.block_ = block;
    // Where the block is of an earlier generation, the Write fails.
    copy.generation_ = is_closed ? 0 : memory_.generation();
    copy.charge_ = std::move(making.charge);
    resident_.insert(&copy);
    ++counts_.copies;
    counts_.bytes += BlockBytes(copy.bytes_);
    copy.is_promised_ = false;
    promised_bytes_ -= BlockBytes(copy.bytes_);
  }
  if (is_closed) return Finish(making, absl::UnavailableError("the server is stopping"));
  if (making.is_new) return Finish(making, absl::OkStatus());
  const Piece whole(making.bytes->host(), static_cast<size_t>(making.bytes->bytes()));
  memory_.Write(block, 0, {whole},
                [self = shared_from_this(), making = std::move(making)](
                    const absl::Status& status) { self->Finish(making, status); });
}

void DeviceCopies::Finish(const Making& making, const absl::Status& status) {
  const std::shared_ptr<DeviceCopy>& copy = making.copy;
  Waiters waiters;
  std::vector<Use> uses;
  {
    MutexLock lock(&mutex_);
    waiters.swap(copy->waiters_);
    copy->is_being_made_ = false;
    if (std::exchange(copy->is_promised_, false)) promised_bytes_ -= BlockBytes(copy->bytes_);
    if (status.ok()) {
      if (!making.is_new) ++counts_.made;
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

bool DeviceCopies::HasLocked(const DeviceCopy& copy) const {
  return copy.block_ != 0 && !copy.is_being_made_ && !is_closed_ &&
         copy.generation_ == memory_.generation();
}

bool DeviceCopies::Has(const DeviceCopy& copy) const {
  MutexLock lock(&mutex_);
  return HasLocked(copy);
}

// The block may be freed as soon as this returns: the device reads it before.
bool DeviceCopies::Read(const DeviceCopy& copy, int64_t offset, absl::Span<std::byte> to,
                        DeviceMemory::Done& done) {
  MutexLock lock(&mutex_);
  if (!HasLocked(copy)) return false;
  memory_.Read(copy.block_, offset, to, std::move(done));
  return true;
}

bool DeviceCopies::Compress(const CompressTask& task, DeviceMemory::CompressDone done) {
  MutexLock lock(&mutex_);
  if (is_closed_) return false;
  memory_.Compress(task, std::move(done));
  return true;
}

bool DeviceCopies::DropUnused(DeviceCopy& copy) {
  MutexLock lock(&mutex_);
  if (copy.users_ > 0 || copy.is_being_made_) return false;
  Drop(copy);
  return true;
}

DeviceCopies::Counts DeviceCopies::counts() const {
  MutexLock lock(&mutex_);
  return counts_;
}

}  // namespace gemmd
