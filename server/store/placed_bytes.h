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
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/device/device_memory.h"
#include "server/store/account.h"
#include "server/store/host_memory.h"
#include "server/system/mutex.h"

namespace gemmd {

class DeviceCopies;
class DeviceCopy;

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

}  // namespace gemmd
