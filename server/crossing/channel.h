// SPDX-License-Identifier: Apache-2.0
//
// One end of the channel between the front and a worker. Records go through ring buffers in shared
// memory, one for each direction. A socket wakes the side that sleeps, carries the worker's first
// record, which a front of another build also understands, and closes when either process ends.
// Nothing in the rings is trusted: the other side can write anything there.
#pragma once

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/system/files.h"

namespace gemmd {

// State that the front and a worker of the host share without exchanging records, by slot of the
// request.
struct LaunchControl {
  // Written by the worker, before it looks whether the request was aborted: the last request of the
  // slot that it started.
  std::array<std::atomic<uint64_t>, kMaxInFlight> started_ids = {};
  // Written by the front, before it looks whether the request has started: whether the result of
  // the last one is no longer needed. If the front sees that it has not started, it never will.
  std::array<std::atomic<bool>, kMaxInFlight> are_aborted = {};
};

// How long one side spins for the next record before it sleeps: waking it takes longer than a small
// job. At least the base; where records come more slowly than that, but regularly, twice the time
// between the last two.
class SpinTime {
 public:
  explicit SpinTime(int64_t base_ns) : base_ns_(base_ns) {}

  // A record came this long after this side had nothing more to do.
  void Saw(int64_t gap_ns) { gap_ns_ = gap_ns; }

  int64_t ns() const {
    const int64_t max_ns = kMaxTimesBase * base_ns_;
    return gap_ns_ <= max_ns / 2 ? std::max(base_ns_, 2 * gap_ns_) : base_ns_;
  }

  static constexpr int64_t kMaxTimesBase = 8;

 private:
  int64_t base_ns_ = 0;
  int64_t gap_ns_ = 0;
};

// Threads: one sends and one receives at a time; both may close it, one after the other.
class Channel {
 public:
  // The front's end. `other` becomes the socket of the worker's.
  // Errors: ResourceExhausted, Unavailable.
  static absl::StatusOr<Channel> Create(FileDescriptor& other);
  // The worker's end. `rings` is the file of the front's rings, which the caller keeps.
  // Errors: InvalidArgument if it is another file.
  static absl::StatusOr<Channel> Open(FileDescriptor socket, int rings);

  Channel() = default;

  // Sends without waiting. Errors: Unavailable if the other side is known to be gone, or has not
  // taken kSlots records.
  absl::Status Send(absl::Span<const std::byte> bytes);
  // The same through the socket; only for a worker's first record.
  absl::Status SendThroughSocket(absl::Span<const std::byte> bytes) const;

  // Takes a record. Errors: NotFound if there is none; Unavailable if the other side is gone and
  // everything that it sent was taken; InvalidArgument for anything longer than a record.
  absl::Status TryReceive(Packet& packet);
  // Waits for a record: spins for `spin_ns`, then sleeps for at most `limit` (null: no limit).
  // Errors: as TryReceive; NotFound only after the limit.
  absl::Status Receive(Packet& packet, int64_t spin_ns = 0, const timespec* limit = nullptr);

  // Whether TryReceive may find something. Makes no system call.
  bool HasNews() const;
  // Waits for news, or for `other`, whose `revents` it sets, for at most `limit` (null: no limit).
  void Sleep(const timespec* limit, pollfd* other = nullptr);

  // The other side sees that this one is gone.
  void Close();
  bool is_open() const { return socket_.is_open(); }

  // In the memory of the rings; stays valid when the channel is closed. Only for a channel that was
  // open.
  LaunchControl& control() const;

  int rings() const { return memory_.descriptor(); }  // Only for the front's end.

  static constexpr size_t kSlots = 64;

 private:
  struct Ring;
  struct Shared;
  enum Direction { kToWorker, kToFront };

  Channel(FileDescriptor socket, Staging memory, Direction out);

  Shared& shared() const;
  Ring& out() const;
  Ring& in() const;
  absl::Status TakeFromRing(uint64_t sent, Packet& packet);
  absl::Status TakeFromSocket(Packet& packet);

  FileDescriptor socket_;
  Staging memory_;
  Direction out_ = kToWorker;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  bool is_socket_ready_ = false;
  bool is_over_ = false;  // Nothing more comes through the socket.
};

template <typename Record>
absl::Span<const std::byte> BytesOfRecord(const Record& record) {
  static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) <= sizeof(Packet::bytes));
  return {reinterpret_cast<const std::byte*>(&record), sizeof(record)};
}

template <typename Record>
absl::Status SendRecord(Channel& channel, const Record& record) {
  return channel.Send(BytesOfRecord(record));
}

// Sends the rates, in parts. Errors: as Send.
absl::Status SendRates(Channel& channel, const GpuRates& rates);

}  // namespace gemmd
