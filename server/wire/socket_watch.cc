// SPDX-License-Identifier: Apache-2.0
#include "server/wire/socket_watch.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "server/system/clock.h"
#include "server/system/files.h"
#include "server/system/log.h"
#include "server/system/mutex.h"

namespace gemmd {

namespace {

using SocketBytes = std::span<const uint8_t>;

int64_t NowNs() {
  static const SteadyClock clock;
  return clock.NowNs();
}

// Calls `see` with the parts of a message's first bytes.
template <typename See>
void ForEachPart(const msghdr& message, size_t count, See see) {
  for (size_t i = 0; i < message.msg_iovlen && count > 0; ++i) {
    const size_t part = std::min(count, message.msg_iov[i].iov_len);
    see(SocketBytes(static_cast<const uint8_t*>(message.msg_iov[i].iov_base), part));
    count -= part;
  }
}

// The frames of one connection. gRPC reads and writes it on several threads.
struct Frames {
  Frames(std::shared_ptr<TokenBucket> resets, std::shared_ptr<QuestionBytes> questions,
         size_t max_calls)
      : meter(std::move(resets), std::move(questions), max_calls) {}

  Mutex mutex;
  FrameMeter meter ABSL_GUARDED_BY(mutex);

  FrameFault Receive(SocketBytes bytes) {
    MutexLock lock(&mutex);
    return meter.Receive(bytes, NowNs());
  }
  FrameFault ReceiveMore(SocketBytes bytes) {
    MutexLock lock(&mutex);
    return meter.ReceiveMore(bytes);
  }
  FrameFault Receive(const msghdr& message, size_t count) {
    MutexLock lock(&mutex);
    FrameFault fault = meter.Receive({}, NowNs());
    ForEachPart(message, count, [&](SocketBytes part) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      fault = meter.ReceiveMore(part);
    });
    return fault;
  }
  void Send(SocketBytes bytes) {
    MutexLock lock(&mutex);
    meter.Send(bytes, NowNs());
  }
  void Send(const msghdr& message, size_t count) {
    MutexLock lock(&mutex);
    const int64_t now_ns = NowNs();
    ForEachPart(message, count,
                [&](SocketBytes part) ABSL_NO_THREAD_SAFETY_ANALYSIS { meter.Send(part, now_ns); });
  }
};

// A number that no other socket of this machine has or gets; 0 for what is none.
uint64_t CookieOf(int descriptor) {
  uint64_t cookie = 0;
  socklen_t bytes = sizeof(cookie);
  const bool is_known = getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &cookie, &bytes) == 0;
  return is_known ? cookie : 0;
}

}  // namespace

struct SocketWatch::Connection {
  int descriptor = -1;
  uint64_t cookie = 0;
  std::string peer;
  std::string name;
  Encryption encryption = Encryption::kNone;
  std::shared_ptr<TokenBucket> resets;
  std::shared_ptr<QuestionBytes> questions;
  size_t max_calls = 0;

  std::atomic<int64_t> sent_bytes = 0;
  std::atomic<bool> is_blocked = false;  // gRPC has more, and waits for the socket.
  std::atomic<bool> is_closed = false;
  std::atomic<int64_t> received_bytes = 0;

  Mutex mutex;
  std::shared_ptr<Frames> frames ABSL_GUARDED_BY(mutex);

  // Of CloseSlow alone:
  int64_t looked_ns = 0;
  int64_t age_ns = 0;
  int64_t data_bytes = 0;    // As of the last progress of unfinished messages,
  int64_t stalled_ns = 0;    // which was so long ago, or there were none.
  int64_t looked_bytes = 0;  // Taken by the peer at the last look,
  int64_t unread_bytes = 0;  // and when it was last seen to take some, or nothing waited,
  int64_t unread_ns = 0;     // which was so long ago.
  double owed_bytes = 0;

  std::shared_ptr<Frames> TheFrames() {
    MutexLock lock(&mutex);
    return frames;
  }
};

namespace {

using Connection = SocketWatch::Connection;

// All connections by descriptor. Those that have ended stay until their number is used again, or
// CloseSlow finds them.
class Table {
 public:
  void Add(const std::shared_ptr<Connection>& connection) {
    std::shared_ptr<Connection> before;
    {
      Shard& shard = ShardOf(connection->descriptor);
      MutexLock lock(&shard.mutex);
      before = std::exchange(shard.connections[connection->descriptor], connection);
    }
    if (before != nullptr) RemoveName(*before);
    if (connection->name.empty()) return;
    MutexLock lock(&names_mutex_);
    names_[connection->name] = connection;
  }
  void Remove(const Connection& connection) {
    RemoveName(connection);
    Shard& shard = ShardOf(connection.descriptor);
    MutexLock lock(&shard.mutex);
    const auto entry = shard.connections.find(connection.descriptor);
    if (entry != shard.connections.end() && entry->second.get() == &connection) {
      shard.connections.erase(entry);
    }
  }
  // Null where none is watched.
  std::shared_ptr<Connection> Find(const std::string& name) {
    std::shared_ptr<Connection> found;
    {
      MutexLock lock(&names_mutex_);
      const auto entry = names_.find(name);
      if (entry == names_.end()) return nullptr;
      found = entry->second;
    }
    return CookieOf(found->descriptor) == found->cookie ? found : nullptr;
  }
  // Null where none is watched.
  std::shared_ptr<Connection> Find(int descriptor) {
    Shard& shard = ShardOf(descriptor);
    std::shared_ptr<Connection> found;
    {
      MutexLock lock(&shard.mutex);
      const auto entry = shard.connections.find(descriptor);
      if (entry == shard.connections.end()) return nullptr;
      found = entry->second;
    }
    // The number may stand for another socket by now, since gRPC closes sockets without notice.
    // This is a system call, of 0.9 us beside the 17 us of a message's two over loopback.
    return CookieOf(descriptor) == found->cookie ? found : nullptr;
  }
  std::vector<std::shared_ptr<Connection>> All() {
    std::vector<std::shared_ptr<Connection>> all;
    for (Shard& shard : shards_) {
      MutexLock lock(&shard.mutex);
      for (const auto& [descriptor, connection] : shard.connections) all.push_back(connection);
    }
    return all;
  }

 private:
  struct Shard {
    Mutex mutex;
    absl::flat_hash_map<int, std::shared_ptr<Connection>> connections ABSL_GUARDED_BY(mutex);
  };
  Shard& ShardOf(int descriptor) {
    return shards_[static_cast<unsigned>(descriptor) % shards_.size()];
  }
  void RemoveName(const Connection& connection) ABSL_LOCKS_EXCLUDED(names_mutex_) {
    MutexLock lock(&names_mutex_);
    const auto entry = names_.find(connection.name);
    // A later connection may have the name now.
    if (entry != names_.end() && entry->second.get() == &connection) names_.erase(entry);
  }

  std::array<Shard, 64> shards_;
  Mutex names_mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Connection>> names_
      ABSL_GUARDED_BY(names_mutex_);
};

Table& TheTable() {
  static Table* const table = new Table;
  return *table;
}

PeerBudgets<FrameBudget>& TheBudgets() {
  static auto* const budgets = new PeerBudgets<FrameBudget>;
  return *budgets;
}

std::array<std::atomic<int64_t>, kCloseReasons>& CloseCounts() {
  static std::array<std::atomic<int64_t>, kCloseReasons> counts = {};
  return counts;
}

// The socket ends for both sides, and gRPC closes it as if the peer had, with what it holds for the
// peer. Its number may stand for another one, unless a second number was the same connection's.
// Whether it did.
bool Shut(const Connection& connection) {
  const FileDescriptor same(fcntl(connection.descriptor, F_DUPFD_CLOEXEC, 0));
  if (!same.is_open() || CookieOf(same.get()) != connection.cookie) return false;
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(same.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  shutdown(same.get(), SHUT_RDWR);
  return true;
}

// Where no descriptor is left, the next look tries again.
void Close(Connection& connection, CloseReason reason, std::string_view why) {
  if (connection.is_closed || !Shut(connection) || connection.is_closed.exchange(true)) return;
  ++CloseCounts()[static_cast<size_t>(reason)];
  spdlog::warn("event=connection_closed reason={} peer={} why={}", NameOf(reason),
               LogValue(connection.peer), LogValue(why));
}

// What the thread read last from a watched socket that is encrypted: what it decrypts next is of
// that, except for what came with the end of a handshake. A thread that reads no more keeps no
// connection.
thread_local std::weak_ptr<Connection> read_last;

// What was read last from another socket is not what this thread decrypts next.
void ForgetOthers(int descriptor) {
  const std::shared_ptr<Connection> last = read_last.lock();
  if (last != nullptr && last->descriptor != descriptor) read_last.reset();
}

// Whether gRPC may have the bytes.
bool Received(int descriptor, const msghdr& message, size_t count) {
  const std::shared_ptr<Connection> connection = TheTable().Find(descriptor);
  if (connection == nullptr) return true;
  connection->received_bytes += static_cast<int64_t>(count);
  if (connection->encryption == SocketWatch::Encryption::kTls) {
    read_last = connection;
    return true;
  }
  const FrameFault fault = connection->TheFrames()->Receive(message, count);
  if (fault == FrameFault::kNone) return true;
  Close(*connection, CloseReason::kFrames, NameOf(fault));
  return false;
}

void Sent(int descriptor, const msghdr& message, ssize_t outcome, int error) {
  const std::shared_ptr<Connection> connection = TheTable().Find(descriptor);
  if (connection == nullptr) return;
  size_t wanted = 0;
  for (size_t i = 0; i < message.msg_iovlen; ++i) wanted += message.msg_iov[i].iov_len;
  const auto sent = static_cast<size_t>(std::max<ssize_t>(outcome, 0));
  connection->sent_bytes += static_cast<int64_t>(sent);
  connection->is_blocked = sent < wanted && (outcome >= 0 || error == EAGAIN || error == ENOBUFS);
  if (connection->encryption == SocketWatch::Encryption::kTls || sent == 0) return;
  connection->TheFrames()->Send(message, sent);
}

// The frames within an encrypted connection, for as long as OpenSSL has it, and the connection once
// that is known.
struct Decrypted {
  // Until the connection is known it has a budget of its own, and any number of calls.
  static constexpr size_t kUnknownCalls = size_t{1} << 20;
  const std::shared_ptr<Frames> frames = std::make_shared<Frames>(
      std::make_shared<TokenBucket>(),
      std::make_shared<QuestionBytes>(QuestionBytes::kMaxBytesOfPeer, nullptr), kUnknownCalls);
  std::shared_ptr<Connection> connection;
};

void FreeDecrypted(void* /*ssl*/, void* data, CRYPTO_EX_DATA* /*all*/, int /*index*/,
                   long /*number*/, void* /*argument*/) {
  delete static_cast<Decrypted*>(data);
}

// Null for a client's.
Decrypted* DecryptedOf(ssl_st* ssl) {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, FreeDecrypted);
  if (index < 0 || SSL_is_server(ssl) == 0) return nullptr;
  auto* known = static_cast<Decrypted*>(SSL_get_ex_data(ssl, index));
  if (known == nullptr) {
    known = new Decrypted;
    SSL_set_ex_data(ssl, index, known);
  }
  return known;
}

// Whether gRPC may have the bytes. There are none if a record is incomplete.
bool ReceivedWithin(ssl_st* ssl, SocketBytes bytes) {
  Decrypted* const decrypted = DecryptedOf(ssl);
  if (decrypted == nullptr) return true;
  const std::shared_ptr<Connection> connection = std::exchange(read_last, {}).lock();
  if (connection != nullptr) {
    {
      MutexLock lock(&decrypted->frames->mutex);
      decrypted->frames->meter.BindTo(connection->resets, connection->questions,
                                      connection->max_calls);
    }
    MutexLock lock(&connection->mutex);
    connection->frames = decrypted->frames;
    decrypted->connection = connection;
  }
  // What one read of the socket brought is decrypted in many pieces.
  const bool is_same_read = connection == nullptr && decrypted->connection != nullptr;
  const FrameFault fault =
      is_same_read ? decrypted->frames->ReceiveMore(bytes) : decrypted->frames->Receive(bytes);
  if (fault == FrameFault::kNone) return true;
  if (decrypted->connection != nullptr) {
    Close(*decrypted->connection, CloseReason::kFrames, NameOf(fault));
  }
  return false;
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// What a meter says at a look.
struct Metered {
  FrameFault fault = FrameFault::kNone;
  int64_t data_bytes = 0;
  int64_t unfinished_bytes = 0;
  bool may_send = false;
};

Metered MeteredOn(Connection& connection) {
  const std::shared_ptr<Frames> frames = connection.TheFrames();
  if (frames == nullptr) return {};
  MutexLock lock(&frames->mutex);
  return {.fault = frames->meter.fault(),
          .data_bytes = frames->meter.data_bytes(),
          .unfinished_bytes = frames->meter.unfinished_bytes(),
          .may_send = frames->meter.may_send()};
}

// What gRPC does not read, short of memory, is no fault of the peer's.
bool IsRead(const Connection& connection) {
  int unread = 0;
  return ioctl(connection.descriptor, FIONREAD, &unread) != 0 || unread == 0;
}

// Whether a peer that may send more of a message has not for too long.
bool IsStalled(Connection& connection, const Metered& now, absl::Duration timeout,
               int64_t look_ns) {
  const bool is_waited_for =
      now.unfinished_bytes > SocketWatch::kFreeUnfinishedBytes && now.may_send;
  const bool has_progress = now.data_bytes - connection.data_bytes >=
                            std::max(SocketWatch::kMinProgressBytes,
                                     now.unfinished_bytes / SocketWatch::kMinProgressPart);
  connection.stalled_ns += look_ns;
  if (!is_waited_for || has_progress || !IsRead(connection)) {
    connection.data_bytes = now.data_bytes;
    connection.stalled_ns = 0;
  }
  return connection.stalled_ns >= absl::ToInt64Nanoseconds(timeout);
}

// Whether gRPC, which has more, waits for the peer to read, not the peer for gRPC to write.
bool HasNoRoom(const Connection& connection) {
  pollfd socket = {.fd = connection.descriptor, .events = POLLOUT, .revents = 0};
  return poll(&socket, 1, 0) == 0;
}

// What the peer has taken of what was sent: the rest waits in the socket. A unix socket counts more
// than the bytes that wait, so this may be negative, and fall when more is sent.
int64_t TakenBytes(const Connection& connection) {
  int waiting = 0;
  // The number of SIOCOUTQ.
  if (ioctl(connection.descriptor, TIOCOUTQ, &waiting) != 0) waiting = 0;
  return connection.sent_bytes - waiting;
}

// Whether bytes wait for a peer that takes none, or fewer than it must. What it owes grows by the
// rate while they wait, and falls by what it takes and, in between, by the rate. It is nothing once
// all that gRPC had is in the socket; what the peer takes from then on is seen when gRPC has more
// again, and counts for the peer.
bool IsUnread(Connection& connection, const SocketWatch::Limits& limits, int64_t look_ns) {
  if (!connection.is_blocked) {
    connection.owed_bytes = 0;
    connection.unread_ns = 0;
    return false;
  }
  const bool is_blocked = HasNoRoom(connection);
  const int64_t all_taken = TakenBytes(connection);
  const auto rate = static_cast<double>(limits.min_bytes_per_second);
  const double due = rate * static_cast<double>(look_ns) / 1e9;
  const auto taken = static_cast<double>(std::max(all_taken - connection.looked_bytes, int64_t{0}));
  connection.owed_bytes = std::max(connection.owed_bytes + (is_blocked ? due : -due) - taken, 0.0);
  connection.looked_bytes = all_taken;
  connection.unread_bytes = std::min(connection.unread_bytes, all_taken);
  connection.unread_ns += look_ns;
  if (!is_blocked || all_taken - connection.unread_bytes >= SocketWatch::kMinProgressBytes) {
    connection.unread_bytes = all_taken;
    connection.unread_ns = 0;
  }
  return connection.unread_ns >= absl::ToInt64Nanoseconds(limits.patience) ||
         connection.owed_bytes > rate * absl::ToDoubleSeconds(limits.timeout);
}

// The time since the last look, as far as it counts.
int64_t Look(Connection& connection, int64_t now_ns) {
  const int64_t gap_ns = connection.looked_ns == 0 ? 0 : now_ns - connection.looked_ns;
  connection.looked_ns = now_ns;
  const int64_t look_ns = std::clamp(gap_ns, int64_t{0}, SocketWatch::kMaxLookNs);
  connection.age_ns += look_ns;
  return look_ns;
}

// gRPC sends its settings as a connection begins, and a handshake has fewer bytes than this.
bool IsUnwatched(Connection& connection) {
  constexpr int64_t kMinAgeNs = 5'000'000'000;
  constexpr int64_t kMaxHandshakeBytes = int64_t{32} << 10;
  if (connection.age_ns < kMinAgeNs) return false;
  const int64_t received = connection.received_bytes;
  if (connection.encryption == SocketWatch::Encryption::kNone) {
    return received == 0 && connection.sent_bytes == 0;
  }
  return connection.TheFrames() == nullptr && received > kMaxHandshakeBytes;
}

void WarnUnwatched(std::string_view why) {
  static std::atomic<bool> is_known = false;
  if (is_known.exchange(true)) return;
  spdlog::warn("event=connections_unwatched why={}", LogValue(why));
}

}  // namespace

std::string_view NameOf(CloseReason reason) {
  switch (reason) {
    case CloseReason::kFrames: return "frames";
    case CloseReason::kStalled: return "stalled";
    case CloseReason::kUnread: return "unread";
  }
  return "";
}

QuestionBytes& FrameBudget::OfAllPeers() {
  static auto* const all = new QuestionBytes(QuestionBytes::kMaxBytes, nullptr);
  return *all;
}

SocketWatch& SocketWatch::Get() {
  static SocketWatch watch;
  return watch;
}

void SocketWatch::Add(int descriptor, const std::string& peer, const std::string& name,
                      size_t max_calls, Encryption encryption) {
  auto connection = std::make_shared<Connection>();
  connection->descriptor = descriptor;
  connection->cookie = CookieOf(descriptor);
  connection->peer = peer;
  connection->name = name;
  connection->encryption = encryption;
  connection->max_calls = max_calls;
  const std::shared_ptr<FrameBudget> budget = TheBudgets().Of(peer, NowNs());
  connection->resets = {budget, &budget->resets};
  connection->questions = {budget, &budget->questions};
  if (connection->cookie == 0) return WarnUnwatched("the system has no SO_COOKIE");
  if (encryption == Encryption::kNone) {
    MutexLock lock(&connection->mutex);
    connection->frames =
        std::make_shared<Frames>(connection->resets, connection->questions, max_calls);
  }
  TheTable().Add(connection);
}

std::optional<int64_t> SocketWatch::TakenBytes(const std::string& name) const {
  const std::shared_ptr<Connection> connection = TheTable().Find(name);
  if (connection == nullptr || connection->sent_bytes == 0) return std::nullopt;
  return gemmd::TakenBytes(*connection);
}

std::map<uint64_t, int64_t> SocketWatch::ReceivedBytes() const {
  std::map<uint64_t, int64_t> received;
  for (const std::shared_ptr<Connection>& connection : TheTable().All()) {
    received[connection->cookie] = connection->received_bytes;
  }
  return received;
}

void SocketWatch::CloseSlow(const Limits& limits, int64_t now_ns) {
  looks_ = (looks_ + 1) % kLooksToForgetAll;
  for (const std::shared_ptr<Connection>& connection : TheTable().All()) {
    const Metered metered = MeteredOn(*connection);
    const int64_t look_ns = Look(*connection, now_ns);
    const bool is_unwatched = IsUnwatched(*connection);
    const bool is_busy = connection->is_blocked || metered.unfinished_bytes > 0;
    const bool is_due = connection->descriptor % kLooksToForgetAll == looks_;
    // gRPC closes sockets without notice.
    if ((is_busy || is_due || is_unwatched) &&
        CookieOf(connection->descriptor) != connection->cookie) {
      TheTable().Remove(*connection);
      continue;
    }
    if (connection->is_closed) continue;
    if (is_unwatched) WarnUnwatched("gRPC reads or writes by other functions");
    // Each look counts for both.
    const bool is_unread = IsUnread(*connection, limits, look_ns);
    const bool is_stalled = IsStalled(*connection, metered, limits.stall, look_ns);
    if (metered.fault != FrameFault::kNone) {
      Close(*connection, CloseReason::kFrames, NameOf(metered.fault));
    } else if (is_unread) {
      Close(*connection, CloseReason::kUnread, "reads too slowly what it is sent");
    } else if (is_stalled) {
      Close(*connection, CloseReason::kStalled, "holds back the rest of a message");
    }
  }
}

int64_t SocketWatch::closed(CloseReason reason) const {
  return CloseCounts()[static_cast<size_t>(reason)];
}

void SocketWatch::CheckEffective() {
  if (dlsym(RTLD_DEFAULT, "recvmsg") == reinterpret_cast<void*>(&::recvmsg)) return;
  WarnUnwatched("calls of recvmsg go elsewhere");
}

}  // namespace gemmd

// In place of those of the C library and of OpenSSL, which they call. A C library that is linked
// statically has none to find, and an OpenSSL that is has its own instead of these.
#define GEMMD_IN_FRONT extern "C" __attribute__((visibility("default"), used))

GEMMD_IN_FRONT ssize_t recvmsg(int descriptor, msghdr* message, int flags) {
  static const auto next = gemmd::Next<ssize_t(int, msghdr*, int)>("recvmsg");
  gemmd::ForgetOthers(descriptor);
  const ssize_t count = next != nullptr ? next(descriptor, message, flags)
                                        : syscall(SYS_recvmsg, descriptor, message, flags);
  if (count <= 0 || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) return count;
  if (gemmd::Received(descriptor, *message, static_cast<size_t>(count))) return count;
  errno = ECONNRESET;
  return -1;
}

GEMMD_IN_FRONT ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
  static const auto next = gemmd::Next<ssize_t(int, const msghdr*, int)>("sendmsg");
  const ssize_t count = next != nullptr ? next(descriptor, message, flags)
                                        : syscall(SYS_sendmsg, descriptor, message, flags);
  const int error = errno;
  gemmd::Sent(descriptor, *message, count, error);
  errno = error;
  return count;
}

GEMMD_IN_FRONT __attribute__((weak)) int SSL_read(SSL* ssl, void* buffer, int size) {
  static const auto next = gemmd::Next<int(SSL*, void*, int)>("SSL_read");
  const int count = next(ssl, buffer, size);
  const auto* const bytes = static_cast<const uint8_t*>(buffer);
  const bool may_have =
      gemmd::ReceivedWithin(ssl, {bytes, static_cast<size_t>(std::max(count, 0))});
  if (count <= 0 || may_have) return count;
  ERR_raise(ERR_LIB_SSL, SSL_R_APPLICATION_DATA_AFTER_CLOSE_NOTIFY);
  return -1;
}

GEMMD_IN_FRONT __attribute__((weak)) int SSL_write(SSL* ssl, const void* buffer, int size) {
  static const auto next = gemmd::Next<int(SSL*, const void*, int)>("SSL_write");
  const int count = next(ssl, buffer, size);
  gemmd::Decrypted* const decrypted = count > 0 ? gemmd::DecryptedOf(ssl) : nullptr;
  if (decrypted == nullptr) return count;
  const auto* const bytes = static_cast<const uint8_t*>(buffer);
  decrypted->frames->Send({bytes, static_cast<size_t>(count)});
  return count;
}
