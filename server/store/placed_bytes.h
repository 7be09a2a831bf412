// SPDX-License-Identifier: Apache-2.0
//
// Bytes of a tensor in host memory, in memory of devices, or in several of these places: tracks
// which places are up to date, and updates the others. A place is current if it has the bytes
// written last. A writer needs the right to write at one place, and outdates the others; products
// that write at the same place share the right, and others wait for it. A reader has the bytes
// brought to its place and does not wait for writers: each element is from before or after a write.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/device/job.h"
#include "server/store/account.h"
#include "server/system/mutex.h"

namespace gemmd {

class SharedMemory;  // server/crossing/shared_memory.h

// Host memory for the bytes of a tensor: in SharedMemory if that holds tensors and has room. Reads
// as zeros until written, and is returned to the system at once.
class HostMemory {
 public:
  // From this size on, private memory is mapped separately: pages are allocated when touched.
  static constexpr int64_t kMappedBytes = int64_t{1} << 20;

  // Aligned to at least 64 bytes. Memory for workers is in SharedMemory, regardless of where
  // tensors are. Errors: ResourceExhausted.
  static absl::StatusOr<HostMemory> Allocate(int64_t bytes, bool is_for_workers = false);
  // Never in SharedMemory. From kMappedBytes on, it costs only addresses until it is touched. Each
  // launch of a worker that uses it copies it. Errors: ResourceExhausted.
  static absl::StatusOr<HostMemory> AllocatePrivate(int64_t bytes);

  HostMemory() = default;
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  // Returns the pages to the system; the memory reads as zeros again. Returns false, without any
  // change, if the memory is not mapped separately.
  bool Clear() const;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  HostMemory(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}

  SharedMemory* shared() const;  // The SharedMemory that it is from, or null.

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

class DeviceCopies;
class DeviceCopy;
struct DeviceForm;

// Identifies derived data, and the part of the tensor that it is derived from.
struct FormKey {
  uint32_t form = 0;  // DerivedOperand::form.
  int64_t bytes = 0;
  int64_t offset = 0;  // Offset of the part in the tensor's bytes.
  MatrixLayout layout;
  int64_t matrices = 1;

  friend bool operator==(const FormKey&, const FormKey&) = default;
};

// Always owned by shared pointers. Lock order: before any DeviceCopies. Threads: any.
class PlacedBytes : public std::enable_shared_from_this<PlacedBytes> {
 public:
  // Memory of a device; null: host memory.
  using Place = const DeviceCopies*;
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;
  using Taken = absl::AnyInvocable<void() &&>;

  // Host memory always exists, but may be outdated or empty.
  std::byte* host() const { return host_.data(); }
  int64_t bytes() const { return host_.bytes(); }

  // Calls `done` once, from any thread, possibly before this returns, when host memory has
  // everything written before the call. Errors: FailedPrecondition, "tensor lost: ...", if no place
  // has it, and those of DeviceMemory::Read.
  void BringToHost(Done done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies the bytes from `offset` on to the caller's memory, which must stay valid until `done` is
  // called; the rest of a tensor that is only on a device stays there. Errors: those of
  // BringToHost.
  void Read(int64_t offset, absl::Span<std::byte> to, Done done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives back the host's pages and their charge if a device has the bytes; later host readers read
  // them from the device, and charge them again. Only for the sole holder of the bytes, so that
  // nobody else accesses host memory. Returns false if impossible now; otherwise call
  // EndLeavingHost, which takes a while; readers wait until then.
  bool BeginLeavingHost() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLeavingHost() ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `taken` once the caller has the right to write at the place, possibly before this
  // returns.
  void TakeWriting(Place place, Taken taken) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same without waiting; returns false if waiting is necessary.
  bool TakeWritingAtOnce(Place place) ABSL_LOCKS_EXCLUDED(mutex_);
  // From now on only this place is current. The holder of the right calls this once the place has
  // all bytes and, on a device, keeps a use of the copy until EndWriting.
  void BeginWriting(Place place) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the right back. `has_begun`: BeginWriting was called. If the written bytes are lost with
  // their device before any product could complete, the host's bytes become current again.
  void EndWriting(Place place, bool has_begun, bool is_ok) ABSL_LOCKS_EXCLUDED(mutex_);

  // A version of the bytes. Each writer changes it twice, at its begin and at its end.
  struct Edition {
    int64_t number = 0;
    bool is_settled = true;  // No writer is active.
  };
  Edition edition() const ABSL_LOCKS_EXCLUDED(mutex_);

  bool is_on_host() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether no place is current: the only current copy was on a device that lost it.
  bool is_lost() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the device of this name has a copy.
  bool is_on(std::string_view device) const ABSL_LOCKS_EXCLUDED(mutex_);
  // A device that has a copy; null if none has.
  std::shared_ptr<DeviceCopies> FindDevice() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Names of devices that have a copy.
  std::vector<std::string> Devices() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The account charged for copies on devices; null if unlimited. Threads: any.
  virtual Account* device_account() const { return nullptr; }

  // Only for DeviceCopies: returns the copy there, creating it if there is none.
  std::shared_ptr<DeviceCopy> CopyOn(DeviceCopies& place) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees the copy's memory, unless it is the only current place or in use.
  enum class Leaving : uint8_t { kGone, kInUse, kIsOnlyPlace };
  Leaving GiveUp(DeviceCopies& place, DeviceCopy& copy) ABSL_LOCKS_EXCLUDED(mutex_);
  // Charges the account for the bytes in host memory; no effect if already charged. Errors:
  // ResourceExhausted.
  virtual absl::Status TakeRoom() { return absl::OkStatus(); }
  // The same for bytes that are then brought to the host: if that fails, the charge is given back.
  absl::Status TakeRoomToRead() ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  explicit PlacedBytes(HostMemory host) : host_(std::move(host)) {}
  ~PlacedBytes() = default;

  // Host memory has changed, so data derived from it is invalid. Called without the lock, before
  // readers are notified.
  virtual void DropForms() {}
  virtual void GiveRoomBack() {}
  virtual bool has_room() const { return true; }

 private:
  using Copies = absl::flat_hash_map<const DeviceCopies*, std::shared_ptr<DeviceCopy>>;

  // Waits for the bytes of this version or a later one.
  struct Reader {
    int64_t version = 0;
    Done done;
  };
  struct Writer {
    Place place = nullptr;
    Taken taken;
  };

  // Callbacks to run without the lock.
  using Answers = std::vector<std::pair<Done, absl::Status>>;
  static void Tell(Answers answers);

  bool MayWrite(Place place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsCurrentOnDevice() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers readers that wait for the host's bytes, or starts a read for them.
  void ServeReaders(Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerReaders(const absl::Status& status, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool StartReading() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts a read if a device is current; otherwise returns false and leaves `done` unchanged.
  bool ReadOnDevice(int64_t offset, absl::Span<std::byte> to, DeviceMemory::Done& done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadOnHost(int64_t offset, absl::Span<std::byte> to, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndReading(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ChargeReading() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the room that reads took is to be given back because they failed: then call
  // EndLeavingHost.
  bool BeginGivingBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Taken> GrantWriting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Copies TakeOthers(Place place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OutdateForms() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const HostMemory host_;
  mutable Mutex mutex_;
  Copies copies_ ABSL_GUARDED_BY(mutex_);
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;  // Incremented at the begin and end of writing.
  bool is_on_host_ ABSL_GUARDED_BY(mutex_) = true;
  // Whether the host was current when the active writers began, and none of them has completed.
  bool was_on_host_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<Reader> readers_ ABSL_GUARDED_BY(mutex_);
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t read_version_ ABSL_GUARDED_BY(mutex_) = 0;  // version_ when the read began.
  // Whether host memory was charged only to read the bytes there, and no read has succeeded since.
  bool is_charged_for_reading_ ABSL_GUARDED_BY(mutex_) = false;

  Place written_at_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int writers_ ABSL_GUARDED_BY(mutex_) = 0;  // Writers that have the right.
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;    // Writers that have begun.
  std::deque<Writer> waiting_writers_ ABSL_GUARDED_BY(mutex_);
};

// Copies of tensors in the memory of one device: created when a product first needs them or leaves
// its result there, and evicted when another copy needs the space. The only current copy is written
// back to host memory first. A copy has forms: data that kernels derive from it, in separate
// blocks. Forms are charged like copies, never displace copies, and are evicted before copies, or
// with their copy.
class DeviceCopies : public std::enable_shared_from_this<DeviceCopies> {
 public:
  // Keeps a copy from eviction. Movable. Not thread-safe.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept = default;
    Use& operator=(Use&& other) noexcept;
    ~Use();

    DeviceBlock block() const { return block_; }
    const DeviceCopy& copy() const { return *copy_; }  // Only if there is a block.

   private:
    friend class DeviceCopies;
    Use(std::shared_ptr<DeviceCopy> copy, DeviceBlock block)
        : copy_(std::move(copy)), block_(block) {}

    std::shared_ptr<DeviceCopy> copy_;
    DeviceBlock block_ = 0;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<Use>) &&>;

  // A form that one job reads or makes. It is not evicted before EndForm.
  struct FormUse {
    std::shared_ptr<DeviceForm> form = {};  // Null: the job has no form.
    DeviceBlock block = 0;
    bool is_made = false;  // If false, the job makes it.
  };

  struct Counts {
    int64_t copies = 0;
    int64_t forms = 0;
    int64_t bytes = 0;  // Bytes of copies and forms.
    // Since the start:
    int64_t hits = 0;          // Copies found.
    int64_t made = 0;          // Copies created.
    int64_t evictions = 0;     // Copies evicted for another one,
    int64_t written_back = 0;  // evicted copies written back to host memory.
  };

  // Borrows the memory until Close. `device` is the device's name.
  DeviceCopies(DeviceMemory& memory, std::string device)
      : memory_(memory), device_(std::move(device)) {}

  const std::string& device() const { return device_; }
  // See DeviceMemory::capacity_bytes; 0 once closed.
  int64_t capacity_bytes() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return is_closed_ ? 0 : memory_.capacity_bytes();
  }

  // The memory is about to be destroyed: stops using it.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `done` once, from any thread, possibly before this returns, with a use of the copy or an
  // error. Errors: ResourceExhausted if there is no space besides copies in use, or the owner's
  // quota on devices is exhausted; FailedPrecondition if the bytes are lost; those of DeviceMemory.
  // Threads: any.
  void Bring(const std::shared_ptr<PlacedBytes>& bytes, Done done) ABSL_LOCKS_EXCLUDED(mutex_) {
    BringAs(bytes, /*is_new=*/false, std::move(done));
  }
  // The same for new bytes that nobody else can find yet: they are zeros.
  void MakeNew(const std::shared_ptr<PlacedBytes>& bytes, Done done) ABSL_LOCKS_EXCLUDED(mutex_) {
    BringAs(bytes, /*is_new=*/true, std::move(done));
  }

  // A use of the copy if the device has it; otherwise a use without a block.
  Use TakeAtOnce(PlacedBytes& bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // A form of a copy in use. Memory is allocated from the second call on, because many operands are
  // used once, and only if there is space besides all copies. Returns none while memory is pending
  // or another job makes the form, or if the copy has kMaxForms other forms.
  FormUse TakeForm(const Use& copy, const FormKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call when the job has ended. `is_made`: the form is valid.
  void EndForm(FormUse use, bool is_made) ABSL_LOCKS_EXCLUDED(mutex_);
  // The bytes change: outdates all forms of the copy, including those being made.
  void OutdateForms(DeviceCopy& copy) ABSL_LOCKS_EXCLUDED(mutex_);
  static constexpr size_t kMaxForms = 8;

  // Whether the device has the copy, as far as known.
  bool Has(const DeviceCopy& copy) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads the copy from `offset` on, as DeviceMemory::Read does; returns false and leaves `done`
  // unchanged if the device does not have it.
  bool Read(const DeviceCopy& copy, int64_t offset, absl::Span<std::byte> to,
            DeviceMemory::Done& done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes to a copy in use, as DeviceMemory::Write does; returns false and leaves `done` unchanged
  // if closed.
  bool Write(const Use& copy, int64_t offset, absl::Span<const std::byte> from,
             DeviceMemory::Done& done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Compresses on the device, as DeviceMemory::Compress does; returns false if closed.
  bool Compress(const CompressTask& task, DeviceMemory::CompressDone done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Recomputes on the device, as DeviceMemory::Recompute does; returns false, and leaves both
  // arguments unchanged, if closed.
  bool Recompute(DeviceMemory::Recomputation& order, DeviceMemory::RecomputeDone& done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns false if the copy is in use.
  bool DropUnused(DeviceCopy& copy) ABSL_LOCKS_EXCLUDED(mutex_);

  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Changes once the device may have lost its memory.
  uint64_t generation() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return is_closed_ ? 0 : memory_.generation();
  }

 private:
  friend class DeviceCopy;
  using Waiters = std::vector<Done>;

  // A copy being created.
  struct Making {
    std::shared_ptr<DeviceCopy> copy;
    std::shared_ptr<PlacedBytes> bytes;
    bool is_new = false;
    int tries = kTries;
    Account::Charge charge = {};  // Charge to the bytes' own account, if any.
    // Copies that stay, by number, because the host has no room for them, and why.
    absl::flat_hash_set<int64_t> passed_over = {};
    absl::Status no_room = {};
  };
  // Max copies passed over: each costs a look at all copies.
  static constexpr size_t kMaxPassedOver = 1024;
  // Max attempts: memory freed for the copy may not be available yet.
  static constexpr int kTries = 100;

  void BringAs(const std::shared_ptr<PlacedBytes>& bytes, bool is_new, Done done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Allocate(Making making) ABSL_LOCKS_EXCLUDED(mutex_);
  // Evicts copies of the same account, least recently used first, until its quota suffices for this
  // copy. Keeps copies that exist nowhere else.
  absl::Status Charge(Making& making) ABSL_LOCKS_EXCLUDED(mutex_);
  bool GiveUpOneOf(const Account& account) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fill(Making making, DeviceBlock block) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finish(const Making& making, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Evicts copies, least recently used first, until all copies being created fit, or until the next
  // one must first be written to host memory, which is charged for it. Passes over those for which
  // the host has no room.
  absl::Status MakeRoom(Making& making, std::shared_ptr<PlacedBytes>& to_write_back)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The next copy to evict, and its tensor; null if there is enough space.
  absl::Status FindOldest(const Making& making, std::shared_ptr<DeviceCopy>& oldest,
                          std::shared_ptr<PlacedBytes>& tensor) ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceCopy* LeastRecentlyUsed(const Making& making) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasLocked(const DeviceCopy& copy) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(DeviceCopy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Allocates the memory of a form; returns false if there is no space.
  bool BeginForm(const std::shared_ptr<DeviceForm>& form, Account* account)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishForm(const std::shared_ptr<DeviceForm>& form, absl::StatusOr<DeviceBlock> block)
      ABSL_LOCKS_EXCLUDED(mutex_);
  static void ForgetWanted(std::vector<std::shared_ptr<DeviceForm>>& forms);
  void DropForm(DeviceForm& form) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Evicts the least recently used idle form; if `account` is not null, among the forms charged to
  // it. Returns false if there is none.
  bool GiveUpForm(const Account* account) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DeviceMemory& memory_;
  const std::string device_;
  mutable Mutex mutex_;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t last_turn_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> last_number_ = 0;  // Of a copy.
  int64_t promised_bytes_ ABSL_GUARDED_BY(mutex_) =
      0;  // Bytes reserved for copies without a block.
  int64_t promised_to_forms_ ABSL_GUARDED_BY(mutex_) =
      0;  // Bytes reserved for forms; copies may take them.
  absl::flat_hash_set<DeviceCopy*> resident_ ABSL_GUARDED_BY(mutex_);  // Copies with a block.
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

// Data that a kernel derives from a copy. Guarded by the lock of the copy's owner.
struct DeviceForm {
  enum class State : uint8_t { kWanted, kAllocating, kEmpty, kBeingMade, kMade };

  const FormKey key;
  State state = State::kWanted;
  DeviceBlock block = 0;  // Set from kEmpty on.
  Account::Charge charge = {};
  int64_t turn = 0;
  int users = 0;
  bool is_gone = false;      // Removed from its copy.
  bool is_outdated = false;  // The form being made is from outdated bytes.
};

// The copy of one tensor on one device, owned by the tensor. Mutable members are guarded by the
// lock of its DeviceCopies.
class DeviceCopy : public std::enable_shared_from_this<DeviceCopy> {
 public:
  DeviceCopy(std::shared_ptr<DeviceCopies> owner, std::weak_ptr<PlacedBytes> tensor, int64_t bytes)
      : owner_(std::move(owner)),
        number_(++owner_->last_number_),
        tensor_(std::move(tensor)),
        bytes_(bytes) {}
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  ~DeviceCopy();

  DeviceCopies& owner() const { return *owner_; }

 private:
  friend class DeviceCopies;
  const std::shared_ptr<DeviceCopies> owner_;
  const int64_t number_;  // Unique among the copies of its owner, gone ones included.
  const std::weak_ptr<PlacedBytes> tensor_;
  const int64_t bytes_;
  DeviceBlock block_ = 0;  // Set once filled.
  uint64_t generation_ = 0;
  Account::Charge charge_;  // Held while there is a block.
  int64_t turn_ = 0;        // Time of the last use, counted in uses.
  int users_ = 0;
  bool is_being_made_ = false;
  bool is_promised_ = false;  // Included in promised_bytes_.
  DeviceCopies::Waiters waiters_;
  std::vector<std::shared_ptr<DeviceForm>> forms_;
};

}  // namespace gemmd
