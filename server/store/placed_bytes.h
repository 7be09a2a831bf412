// SPDX-License-Identifier: Apache-2.0
//
// Bytes of a tensor that lie in memory of the host, in memory of devices, or in several of these
// places at once: which of them have what was written last, and how the others get it.
//
// A place is current where its bytes are those that were written last. Whoever writes has the right
// to do so at one place, and makes the others outdated; products that write at the same place share
// the right, and others wait for it. Whoever reads has the bytes brought to where it reads, and
// waits for no writer: it gets the elements of before or of after.
#pragma once

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

// Memory of the host for the bytes of a tensor: where SharedMemory has tensors, in that, as long as
// there is room. It reads as zeros until it is written, and goes back to the system at once.
class HostMemory {
 public:
  // From so many bytes on, memory of the process's own is mapped for itself: the pages are there
  // only once they are touched.
  static constexpr int64_t kMappedBytes = int64_t{1} << 20;

  // Aligned to 64 bytes at least. What is for workers lies in SharedMemory, wherever tensors are.
  // Errors: ResourceExhausted.
  static absl::StatusOr<HostMemory> Allocate(int64_t bytes, bool is_for_workers = false);

  HostMemory() = default;
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  // Gives the pages back to the system; the memory reads as zeros again. False where it is not
  // mapped for itself, and nothing has changed.
  bool Clear() const;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  HostMemory(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}

  SharedMemory* shared() const;  // What the memory is of; null where that is none.

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

class DeviceCopies;
class DeviceCopy;
struct DeviceForm;

// What is derived, and from which part of the tensor.
struct FormKey {
  uint32_t form = 0;  // DerivedOperand::form.
  int64_t bytes = 0;
  int64_t offset = 0;  // Where the part begins in the tensor's bytes.
  MatrixLayout layout;
  int64_t matrices = 1;

  friend bool operator==(const FormKey&, const FormKey&) = default;
};

// Held by shared pointers alone. Locked before any DeviceCopies. Threads: any.
class PlacedBytes : public std::enable_shared_from_this<PlacedBytes> {
 public:
  // A device's memory; null: memory of the host.
  using Place = const DeviceCopies*;
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;
  using Taken = absl::AnyInvocable<void() &&>;

  // Memory of the host is always there; what is in it may be outdated, or nothing at all.
  std::byte* host() const { return host_.data(); }
  int64_t bytes() const { return host_.bytes(); }

  // Calls `done` once, from any thread, perhaps before this returns, once memory of the host has
  // what was written before the call. Errors: FailedPrecondition, "tensor lost: ...", where no
  // place has it, and those of DeviceMemory::Read.
  void BringToHost(Done done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies the bytes from `offset` on to memory of the caller, which stays until `done` is called;
  // the rest of a tensor that is on a device alone stays there. Errors: as BringToHost.
  void Read(int64_t offset, absl::Span<std::byte> to, Done done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives the host's pages and room back where a device has the bytes; whoever needs them on the
  // host later has them read from there, and room taken for them. For the only one who holds the
  // bytes: nobody else looks at memory of the host. False where it is not possible now; otherwise
  // EndLeavingHost is to be called, which takes a while, and readers wait until then.
  bool BeginLeavingHost() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLeavingHost() ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `taken` once the caller has the right to write at the place: perhaps before this returns.
  void TakeWriting(Place place, Taken taken) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same where it need not be waited for; false where it must.
  bool TakeWritingAtOnce(Place place) ABSL_LOCKS_EXCLUDED(mutex_);
  // From now on the place alone is current. Whoever has the right calls it once the place has all
  // bytes, and, on a device, keeps a use of the copy until EndWriting.
  void BeginWriting(Place place) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the right back. `has_begun`: BeginWriting was called. Where what was written is lost with
  // its device before any product could complete, the host's bytes count again.
  void EndWriting(Place place, bool has_begun, bool is_ok) ABSL_LOCKS_EXCLUDED(mutex_);

  // Which bytes these are. While nobody has begun to write, the edition stays the same; each writer
  // makes two of it, with its begin and with its end.
  struct Edition {
    int64_t number = 0;
    bool is_settled = true;  // Nobody writes.
  };
  Edition edition() const ABSL_LOCKS_EXCLUDED(mutex_);

  bool is_on_host() const ABSL_LOCKS_EXCLUDED(mutex_);
  // No place is current: the only one was on a device that lost it.
  bool is_lost() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the device of this name has a copy.
  bool is_on(std::string_view device) const ABSL_LOCKS_EXCLUDED(mutex_);
  // A device that has a copy; null where none has.
  std::shared_ptr<DeviceCopies> FindDevice() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Names of devices that have a copy.
  std::vector<std::string> Devices() const ABSL_LOCKS_EXCLUDED(mutex_);

  // What copies on devices are charged to; null where nobody bounds them. Threads: any.
  virtual Account* device_account() const { return nullptr; }

  // For DeviceCopies alone: the copy there, made where there is none yet.
  std::shared_ptr<DeviceCopy> CopyOn(DeviceCopies& place) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees the copy's memory. It is needed where it is the only current place, or in use.
  enum class Leaving : uint8_t { kGone, kInUse, kIsOnlyPlace };
  Leaving GiveUp(DeviceCopies& place, DeviceCopy& copy) ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  explicit PlacedBytes(HostMemory host) : host_(std::move(host)) {}
  ~PlacedBytes() = default;

  // Memory of the host has other bytes than before: what was derived from it is of no use. Called
  // without the lock, before anybody is told.
  virtual void DropForms() {}
  // The account's room for the bytes in memory of the host. Where there is room, or has been taken,
  // taking it does nothing. Errors: ResourceExhausted.
  virtual absl::Status TakeRoom() { return absl::OkStatus(); }
  virtual void GiveRoomBack() {}

 private:
  using Copies = absl::flat_hash_map<const DeviceCopies*, std::shared_ptr<DeviceCopy>>;

  // Waits for the bytes as they were at this count of changes, or later ones.
  struct Reader {
    int64_t version = 0;
    Done done;
  };
  struct Writer {
    Place place = nullptr;
    Taken taken;
  };

  // What is to be told to whom, without the lock.
  using Answers = std::vector<std::pair<Done, absl::Status>>;
  static void Tell(Answers answers);

  bool MayWrite(Place place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsCurrentOnDevice() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers those who wait for the host's bytes, or has the bytes read for them.
  void ServeReaders(Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerReaders(const absl::Status& status, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool StartReading() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads where a device has what was written last; otherwise false, and `done` is as it was.
  bool ReadOnDevice(int64_t offset, absl::Span<std::byte> to, DeviceMemory::Done& done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadOnHost(int64_t offset, absl::Span<std::byte> to, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndReading(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Taken> GrantWriting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Copies TakeOthers(Place place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OutdateForms() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const HostMemory host_;
  mutable Mutex mutex_;
  Copies copies_ ABSL_GUARDED_BY(mutex_);
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;  // Changes with the begin and the end of writing.
  bool is_on_host_ ABSL_GUARDED_BY(mutex_) = true;
  // Whether the host was current when those who write now began, none of whom has completed.
  bool was_on_host_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<Reader> readers_ ABSL_GUARDED_BY(mutex_);
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t read_version_ ABSL_GUARDED_BY(mutex_) = 0;  // When the reading began.

  Place written_at_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int writers_ ABSL_GUARDED_BY(mutex_) = 0;  // They have the right.
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;    // Those of them who write.
  std::deque<Writer> waiting_writers_ ABSL_GUARDED_BY(mutex_);
};

// Copies of tensors in the memory of one device: made when a product first needs them or leaves its
// result there, and evicted when another one needs the room. A copy that is the only current one is
// written back to memory of the host first.
//
// A copy has forms: what kernels derive from it, in blocks of their own. They count as copies do,
// take no room from those, and go first where one is to be made; and with their copy.
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

  // A form that one job reads, or makes. It is not given up before EndForm.
  struct FormUse {
    std::shared_ptr<DeviceForm> form = {};  // Null: there is none for the job.
    DeviceBlock block = 0;
    bool is_made = false;  // Otherwise the job makes it.
  };

  struct Counts {
    int64_t copies = 0;
    int64_t forms = 0;
    int64_t bytes = 0;  // Of both.
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

  // A form of a copy that is in use. Memory is taken for it from the second call on, since many
  // operands are used once, and only where there is room beside all copies. None while it is not
  // there yet or another job makes it, and none of a copy with kMaxForms others.
  FormUse TakeForm(const Use& copy, const FormKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  // The job has ended. `is_made`: it has made the form, or found it made.
  void EndForm(FormUse use, bool is_made) ABSL_LOCKS_EXCLUDED(mutex_);
  // The bytes change: what was made of them, or is being made, is outdated.
  void OutdateForms(DeviceCopy& copy) ABSL_LOCKS_EXCLUDED(mutex_);
  static constexpr size_t kMaxForms = 8;

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

  // Another number once the device may have lost what was in its memory.
  uint64_t generation() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return is_closed_ ? 0 : memory_.generation();
  }

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
  // Takes the memory of a form; false where there is no room.
  bool BeginForm(const std::shared_ptr<DeviceForm>& form, Account* account)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishForm(const std::shared_ptr<DeviceForm>& form, absl::StatusOr<DeviceBlock> block)
      ABSL_LOCKS_EXCLUDED(mutex_);
  static void ForgetWanted(std::vector<std::shared_ptr<DeviceForm>>& forms);
  void DropForm(DeviceForm& form) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives up the least recently used of the idle forms; if `account` is not null, of those that it
  // pays for. False if there is none.
  bool GiveUpForm(const Account* account) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DeviceMemory& memory_;
  const std::string device_;
  mutable Mutex mutex_;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t last_turn_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t promised_bytes_ ABSL_GUARDED_BY(mutex_) = 0;     // To copies that have no block yet.
  int64_t promised_to_forms_ ABSL_GUARDED_BY(mutex_) = 0;  // Copies have that where they need it.
  absl::flat_hash_set<DeviceCopy*> resident_ ABSL_GUARDED_BY(mutex_);  // Those with a block.
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

// What a kernel derives from a copy, once the copy has been used for it. All of it is guarded by
// the lock of the copy's owner.
struct DeviceForm {
  enum class State : uint8_t { kWanted, kAllocating, kEmpty, kBeingMade, kMade };

  const FormKey key;
  State state = State::kWanted;
  DeviceBlock block = 0;  // From kEmpty on.
  Account::Charge charge = {};
  int64_t turn = 0;
  int users = 0;
  bool is_gone = false;      // Its copy does not have it any longer.
  bool is_outdated = false;  // What is being made is of earlier bytes.
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
  std::vector<std::shared_ptr<DeviceForm>> forms_;
};

}  // namespace gemmd
