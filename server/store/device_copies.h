// SPDX-License-Identifier: Apache-2.0
//
// Copies of tensors in the memory of one device: made where a product first needs them or leaves
// its result there, and given up where room is needed for another one. The copy that alone is
// current is written back to memory of the host before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/device/device_memory.h"
#include "server/device/job.h"
#include "server/store/account.h"
#include "server/store/placed_bytes.h"
#include "server/system/mutex.h"

namespace gemmd {

class DeviceCopies : public std::enable_shared_from_this<DeviceCopies> {
 public:
  // A copy is not given up while somebody uses it. Movable. Threads: one at a time.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept = default;
    Use& operator=(Use&& other) noexcept;
    ~Use();

    DeviceBlock block() const { return block_; }

   private:
    friend class DeviceCopies;
    Use(std::shared_ptr<DeviceCopy> copy, DeviceBlock block)
        : copy_(std::move(copy)), block_(block) {}

    std::shared_ptr<DeviceCopy> copy_;
    DeviceBlock block_ = 0;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<Use>) &&>;

  struct Counts {
    int64_t copies = 0;
    int64_t bytes = 0;
    // Since the start:
    int64_t hits = 0;          // The copy was there.
    int64_t made = 0;          // It had to be made.
    int64_t evictions = 0;     // It was given up for another one,
    int64_t written_back = 0;  // and had to be written to memory of the host for that.
  };

  // Borrows the memory until Close. `device` is the device's name.
  DeviceCopies(DeviceMemory& memory, std::string device)
      : memory_(memory), device_(std::move(device)) {}

  const std::string& device() const { return device_; }

  // The memory is about to go: it is not used any more, and nothing is brought.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `done` once, from any thread, perhaps before this returns: with a use of the copy, or why
  // there is none. Errors: ResourceExhausted where there is no room beside copies that are used, or
  // the owner of the bytes may have no more of devices,
  // FailedPrecondition where the bytes are lost, and those of DeviceMemory. Threads: any.
  void Bring(const std::shared_ptr<PlacedBytes>& bytes, Done done) ABSL_LOCKS_EXCLUDED(mutex_) {
    BringAs(bytes, /*is_new=*/false, std::move(done));
  }
  // The same for bytes that nobody has written yet, or can find: they are zeros.
  void MakeNew(const std::shared_ptr<PlacedBytes>& bytes, Done done) ABSL_LOCKS_EXCLUDED(mutex_) {
    BringAs(bytes, /*is_new=*/true, std::move(done));
  }

  // A use of the copy where it is there; of no block where it is not.
  Use TakeAtOnce(PlacedBytes& bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether the copy is there, as far as is known.
  bool Has(const DeviceCopy& copy) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads the copy from `offset` on where it is there, as DeviceMemory::Read does; false where it
  // is not, and `done` is as it was.
  bool Read(const DeviceCopy& copy, int64_t offset, absl::Span<std::byte> to,
            DeviceMemory::Done& done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Compresses on the device, as DeviceMemory::Compress does; false where that is about to go.
  bool Compress(const CompressTask& task, DeviceMemory::CompressDone done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // False where somebody uses it.
  bool DropUnused(DeviceCopy& copy) ABSL_LOCKS_EXCLUDED(mutex_);

  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class DeviceCopy;
  using Waiters = std::vector<Done>;

  // A copy that is being made.
  struct Making {
    std::shared_ptr<DeviceCopy> copy;
    std::shared_ptr<PlacedBytes> bytes;
    bool is_new = false;
    int tries = kTries;
    Account::Charge charge = {};  // To the bytes' own account, where there is one.
  };
  // Tries it so often: what was freed for it may be on its way.
  static constexpr int kTries = 100;

  void BringAs(const std::shared_ptr<PlacedBytes>& bytes, bool is_new, Done done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Allocate(Making making) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives up copies of the same account, those that were used least recently first, until it has
  // room for this one. What is nowhere else stays.
  absl::Status Charge(Making& making) ABSL_LOCKS_EXCLUDED(mutex_);
  bool GiveUpOneOf(const Account& account) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fill(Making making, DeviceBlock block) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finish(const Making& making, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives up copies, those that were used least recently first, until all that are being made fit,
  // or until it comes to one that has to be written to memory of the host before.
  absl::Status MakeRoom(int64_t bytes, std::shared_ptr<PlacedBytes>& to_write_back)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The copy that is to go next, and what it is a copy of; null where there is room.
  absl::Status FindOldest(int64_t bytes, std::shared_ptr<DeviceCopy>& oldest,
                          std::shared_ptr<PlacedBytes>& tensor) ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceCopy* LeastRecentlyUsed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasLocked(const DeviceCopy& copy) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(DeviceCopy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DeviceMemory& memory_;
  const std::string device_;
  mutable Mutex mutex_;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t last_turn_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t promised_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // To copies that have no block yet.
  absl::flat_hash_set<DeviceCopy*> resident_ ABSL_GUARDED_BY(mutex_);  // Those with a block.
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

// The copy of one tensor on one device, which the tensor keeps. What changes is guarded by the lock
// of its owner.
class DeviceCopy : public std::enable_shared_from_this<DeviceCopy> {
 public:
  DeviceCopy(std::shared_ptr<DeviceCopies> owner, std::weak_ptr<PlacedBytes> tensor, int64_t bytes)
      : owner_(std::move(owner)), tensor_(std::move(tensor)), bytes_(bytes) {}
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  ~DeviceCopy();

  DeviceCopies& owner() const { return *owner_; }

 private:
  friend class DeviceCopies;
  const std::shared_ptr<DeviceCopies> owner_;
  const std::weak_ptr<PlacedBytes> tensor_;
  const int64_t bytes_;
  DeviceBlock block_ = 0;  // Once it is filled.
  uint64_t generation_ = 0;
  Account::Charge charge_;  // While there is a block.
  int64_t turn_ = 0;        // When it was used last, counted in uses.
  int users_ = 0;
  bool is_being_made_ = false;
  bool is_promised_ = false;  // It counts in promised_bytes_.
  DeviceCopies::Waiters waiters_;
};

}  // namespace gemmd
