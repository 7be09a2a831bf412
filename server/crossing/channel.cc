// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/mutex.h"

namespace gemmd {
namespace {

constexpr size_t kCacheLine = 64;

// The byte that wakes the other side. Every record is longer.
constexpr std::byte kWake{0};

// Max wake-ups read per call: the other side may send them endlessly.
constexpr int kMaxWakesAtOnce = 64;

absl::Status IsGone(std::string_view why) {
  return absl::UnavailableError(Concat("the other process is gone", why.empty() ? "" : ": ", why));
}

// Without a message it takes no memory.
absl::Status NoRecord() { return absl::Status(absl::StatusCode::kNotFound, ""); }

absl::Status IsTooLong(uint64_t bytes) {
  return absl::InvalidArgumentError(
      GotWant("record", Concat(bytes, " bytes"), Concat("at most ", sizeof(Packet::bytes))));
}

}  // namespace

// One side writes `sent` and slots, the other `received` and `is_asleep`.
struct Channel::Ring {
  struct alignas(kCacheLine) Slot {
    std::atomic<uint64_t> size;
    std::array<std::byte, sizeof(Packet::bytes)> bytes;
  };

  alignas(kCacheLine) std::atomic<uint64_t> sent;
  alignas(kCacheLine) std::atomic<uint64_t> received;
  std::atomic<uint32_t> is_asleep;  // The sender must wake the receiver.
  std::array<Slot, kSlots> slots;
};

struct Channel::Shared {
  std::array<Ring, 2> rings;  // By Direction.
  LaunchControl control;
};

Channel::Channel(FileDescriptor socket, Staging memory, Direction out)
    : socket_(std::move(socket)), memory_(std::move(memory)), out_(out) {}

absl::StatusOr<Channel> Channel::Create(FileDescriptor& other) {
  std::array<int, 2> pair = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return absl::UnavailableError(Concat("worker: socket pair: ", strerror(errno)));
  }
  FileDescriptor socket(pair[0]);
  other = FileDescriptor(pair[1]);
  ASSIGN_OR_RETURN(Staging memory, Staging::Create(sizeof(Shared)));
  new (memory.matrices().data()) Shared;
  return Channel(std::move(socket), std::move(memory), kToWorker);
}

absl::StatusOr<Channel> Channel::Open(FileDescriptor socket, int rings) {
  ASSIGN_OR_RETURN(Staging memory, Staging::Map(rings));
  if (memory.matrices().size() != sizeof(Shared)) {
    return absl::InvalidArgumentError(
        GotWant("rings", Concat(memory.matrices().size(), " bytes"), Concat(sizeof(Shared))));
  }
  return Channel(std::move(socket), std::move(memory), kToFront);
}

Channel::Shared& Channel::shared() const {
  return *reinterpret_cast<Shared*>(memory_.matrices().data());
}
Channel::Ring& Channel::out() const { return shared().rings[out_]; }
Channel::Ring& Channel::in() const {
  return shared().rings[out_ == kToWorker ? kToFront : kToWorker];
}
LaunchControl& Channel::control() const { return shared().control; }

absl::Status Channel::Send(absl::Span<const std::byte> bytes) {
  if (!socket_.is_open()) return IsGone("");
  Ring& ring = out();
  if (sent_ - ring.received.load(std::memory_order_acquire) >= kSlots) {
    return absl::UnavailableError(Concat("the other process takes no records, ", kSlots, " wait"));
  }
  Ring::Slot& slot = ring.slots[sent_ % kSlots];
  std::copy(bytes.begin(), bytes.end(), slot.bytes.begin());
  slot.size.store(bytes.size(), std::memory_order_relaxed);
  // Either this side sees that the other one is asleep, or the other one sees the record (Sleep).
  ring.sent.store(++sent_, std::memory_order_seq_cst);
  if (ring.is_asleep.load(std::memory_order_seq_cst) == 0) return absl::OkStatus();
  if (ring.is_asleep.exchange(0, std::memory_order_relaxed) == 0) return absl::OkStatus();
  return SendThroughSocket({&kWake, 1});
}

absl::Status Channel::SendThroughSocket(absl::Span<const std::byte> bytes) const {
  while (true) {
    const ssize_t sent =
        send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
    if (sent < 0 && errno == EINTR) continue;
    return IsGone(strerror(errno));
  }
}

absl::Status Channel::TryReceive(Packet& packet) {
  if (memory_.matrices().empty()) return IsGone("");
  for (int i = 0; i < kMaxWakesAtOnce; ++i) {
    const uint64_t sent = in().sent.load(std::memory_order_acquire);
    if (sent != received_) return TakeFromRing(sent, packet);
    if (is_over_) return IsGone("");
    if (!is_socket_ready_) break;
    const absl::Status taken = TakeFromSocket(packet);
    // A wake-up, or the end: records sent earlier are in the ring.
    if (!absl::IsNotFound(taken)) return taken;
  }
  return NoRecord();
}

absl::Status Channel::TakeFromRing(uint64_t sent, Packet& packet) {
  Ring& ring = in();
  if (sent - received_ > kSlots) {
    return absl::InvalidArgumentError(
        GotWant("records in the ring", Concat(sent - received_), Concat("at most ", kSlots)));
  }
  const Ring::Slot& slot = ring.slots[received_ % kSlots];
  const uint64_t size = slot.size.load(std::memory_order_relaxed);
  if (size > slot.bytes.size()) return IsTooLong(size);
  packet.size = size;
  std::copy_n(slot.bytes.begin(), size, packet.bytes.begin());
  ring.received.store(++received_, std::memory_order_release);
  return absl::OkStatus();
}

// Errors: NotFound if it was not a record.
absl::Status Channel::TakeFromSocket(Packet& packet) {
  // With MSG_TRUNC the full length of the packet is returned even if the buffer is shorter.
  const ssize_t size =
      recv(socket_.get(), packet.bytes.data(), packet.bytes.size(), MSG_TRUNC | MSG_DONTWAIT);
  if (size > static_cast<ssize_t>(packet.bytes.size())) return IsTooLong(size);
  packet.size = size > 0 ? static_cast<size_t>(size) : 0;
  const bool is_wake = size == 1 && packet.bytes[0] == kWake;
  if (size > 0 && !is_wake) return absl::OkStatus();
  const bool is_empty = size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  if (is_empty) is_socket_ready_ = false;
  is_over_ |= size <= 0 && !is_empty;
  return NoRecord();
}

absl::Status Channel::Receive(Packet& packet, int64_t spin_ns, const timespec* limit) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::nanoseconds(spin_ns);
  while (true) {
    absl::Status status = TryReceive(packet);
    if (!absl::IsNotFound(status)) return status;
    if (spin_ns > 0 && Clock::now() < until) {
      PauseProcessor();
      continue;
    }
    Sleep(limit);
    if (limit != nullptr && !HasNews()) return status;
  }
}

bool Channel::HasNews() const {
  if (memory_.matrices().empty()) return false;
  return in().sent.load(std::memory_order_acquire) != received_ || is_socket_ready_ || is_over_;
}

void Channel::Sleep(const timespec* limit, pollfd* other) {
  pollfd nobody = {.fd = -1, .events = 0, .revents = 0};
  pollfd& second = other == nullptr ? nobody : *other;
  second.revents = 0;
  // A closed socket has the number -1, which poll ignores.
  std::array<pollfd, 2> files = {pollfd{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                 second};
  if (!socket_.is_open()) {
    if (ppoll(files.data(), files.size(), limit, nullptr) > 0) second.revents = files[1].revents;
    return;
  }
  Ring& ring = in();
  ring.is_asleep.store(1, std::memory_order_seq_cst);
  if (ring.sent.load(std::memory_order_seq_cst) == received_ &&
      ppoll(files.data(), files.size(), limit, nullptr) > 0) {
    is_socket_ready_ |= files[0].revents != 0;
    second.revents = files[1].revents;
  }
  ring.is_asleep.store(0, std::memory_order_relaxed);
}

void Channel::Close() {
  socket_ = FileDescriptor();
  is_socket_ready_ = false;
  is_over_ = true;
}

absl::Status SendRates(Channel& channel, const GpuRates& rates) {
  const size_t kernels = rates.kernel_rates.size();
  for (size_t first = 0; first < kernels; first += RatesPart::kMaxRates) {
    RatesPart part;
    part.kernels = static_cast<uint32_t>(kernels);
    part.first = static_cast<uint32_t>(first);
    part.count = static_cast<uint32_t>(std::min(RatesPart::kMaxRates, kernels - first));
    std::copy_n(rates.kernel_rates.begin() + static_cast<std::ptrdiff_t>(first), part.count,
                part.kernel_rates.begin());
    part.memory_bytes_per_second = rates.memory_bytes_per_second;
    part.copied_bytes_per_second = rates.copied_bytes_per_second;
    RETURN_IF_ERROR(SendRecord(channel, part));
  }
  return absl::OkStatus();
}

}  // namespace gemmd
