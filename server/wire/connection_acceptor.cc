// SPDX-License-Identifier: Apache-2.0
#include "server/wire/connection_acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "kernels/text.h"
#include "server/system/log.h"

namespace gemmd {
namespace {

// The pause before the next try where nothing can be accepted at all.
constexpr int64_t kAcceptPauseNs = 50'000'000;

// Where an address of IPv4 lies in one of IPv6.
constexpr size_t kMappedAt = 12;

// So many of one socket before it is the next one's turn.
constexpr int kAcceptedAtOnce = 64;

FileDescriptor OpenSpare() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

std::string TextOf(int family, const void* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const char* const written =
      inet_ntop(family, address, text.data(), static_cast<socklen_t>(text.size()));
  return written == nullptr ? "" : written;
}

void LogRefusal(const std::string& peer, std::string_view reason) {
  spdlog::warn("event=connection_refused reason={} peer={}", LogValue(reason), LogValue(peer));
}

void Prepare(int descriptor, absl::Duration unacknowledged) {
  // For a unix socket these fail, and nothing is lost.
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const auto milliseconds = static_cast<int>(absl::ToInt64Milliseconds(unacknowledged));
  setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
}

}  // namespace

std::string PeerOf(int descriptor, const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4 = {};
    std::memcpy(&v4, &address, sizeof(v4));
    return TextOf(AF_INET, &v4.sin_addr);
  }
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 v6 = {};
    std::memcpy(&v6, &address, sizeof(v6));
    constexpr size_t kHost = 8;
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      return TextOf(AF_INET, v6.sin6_addr.s6_addr + kMappedAt);
    }
    std::memset(v6.sin6_addr.s6_addr + kHost, 0, kHost);
    return Concat(TextOf(AF_INET6, &v6.sin6_addr), "/64");
  }
  ucred user = {};
  socklen_t bytes = sizeof(user);
  getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &user, &bytes);
  return Concat("user ", user.uid);
}

std::string GrpcNameOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4 = {};
    std::memcpy(&v4, &address, sizeof(v4));
    return Concat("ipv4:", TextOf(AF_INET, &v4.sin_addr), ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  sockaddr_in6 v6 = {};
  std::memcpy(&v6, &address, sizeof(v6));
  const int port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    return Concat("ipv4:", TextOf(AF_INET, v6.sin6_addr.s6_addr + kMappedAt), ":", port);
  }
  // gRPC writes brackets as URIs have them. A scope, which it adds, makes it another name.
  return Concat("ipv6:%5B", TextOf(AF_INET6, &v6.sin6_addr), "%5D:", port);
}

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Start(
    std::vector<ListeningSocket> sockets, const ConnectionLimits& limits,
    absl::Duration unacknowledged, Take take, const Clock& clock) {
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_open()) return absl::UnavailableError("listen: no file descriptor is left");
  return std::unique_ptr<ConnectionAcceptor>(new ConnectionAcceptor(
      std::move(sockets), limits, unacknowledged, std::move(take), std::move(wake), clock));
}

ConnectionAcceptor::ConnectionAcceptor(std::vector<ListeningSocket> sockets,
                                       const ConnectionLimits& limits,
                                       absl::Duration unacknowledged, Take take,
                                       FileDescriptor wake, const Clock& clock)
    : sockets_(std::move(sockets)),
      limits_(limits),
      unacknowledged_(unacknowledged),
      take_(std::move(take)),
      wake_(std::move(wake)),
      clock_(clock),
      spare_(OpenSpare()),
      table_(limits, clock),
      thread_([this] { Run(); }) {}

ConnectionAcceptor::~ConnectionAcceptor() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

ConnectionCounts ConnectionAcceptor::counts() {
  ConnectionCounts counts;
  {
    MutexLock lock(&mutex_);
    counts.open = table_.CountOpen();
  }
  counts.limit = limits_.all;
  counts.limit_of_peer = limits_.of_peer;
  counts.accepted = accepted_;
  counts.refused_of_all = refused_of_all_;
  counts.refused_of_peer = refused_of_peer_;
  counts.refused_for_files = refused_for_files_;
  return counts;
}

std::optional<int64_t> ConnectionAcceptor::AcknowledgedBytes(const std::string& name) {
  MutexLock lock(&mutex_);
  return table_.AcknowledgedBytes(name);
}

void ConnectionAcceptor::Run() {
  pthread_setname_np(pthread_self(), "gemmd-accept");
  std::vector<pollfd> files = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  std::vector<ConnectionKind> kinds = {
      ConnectionKind::kPlain};  // That of each file; the first has none.
  for (const ListeningSocket& socket : sockets_) {
    for (const FileDescriptor& file : socket.files()) {
      files.push_back({.fd = file.get(), .events = POLLIN, .revents = 0});
      kinds.push_back(socket.kind());
    }
  }
  while (true) {
    const int64_t pause_ns = std::max(accept_again_ns_ - clock_.NowNs(), int64_t{0});
    const timespec limit = {.tv_sec = 0, .tv_nsec = std::min(pause_ns, kAcceptPauseNs)};
    // While there is a pause, only the end is waited for.
    ppoll(files.data(), pause_ns > 0 ? 1 : files.size(), pause_ns > 0 ? &limit : nullptr, nullptr);
    if (files[0].revents != 0) return;
    if (pause_ns > 0) continue;
    for (size_t i = 1; i < files.size(); ++i) {
      if (files[i].revents == 0) continue;
      for (int count = 0; count < kAcceptedAtOnce && AcceptOne(kinds[i], files[i].fd); ++count) {
      }
    }
  }
}

// Whether there may be another one to accept.
bool ConnectionAcceptor::AcceptOne(ConnectionKind kind, int listener) {
  if (!spare_.is_open()) spare_ = OpenSpare();
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  FileDescriptor accepted(accept4(listener, reinterpret_cast<sockaddr*>(&address), &bytes,
                                  SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted.is_open()) {
    Give(kind, std::move(accepted), address);
    return true;
  }
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK) return false;
  if (error == EMFILE || error == ENFILE) return ShedOne(listener);
  if (error != EINTR && error != ECONNABORTED && error != EPROTO) {
    spdlog::warn("event=accept_failed reason={}",
                 LogValue(std::error_code(error, std::generic_category()).message()));
    accept_again_ns_ = clock_.NowNs() + kAcceptPauseNs;
    return false;
  }
  return true;
}

// No file descriptor is left: the peer is told so, by a connection that ends at once.
bool ConnectionAcceptor::ShedOne(int listener) {
  bool was_shed = false;
  if (spare_.is_open()) {
    spare_ = FileDescriptor();
    const FileDescriptor accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    was_shed = accepted.is_open();
  }
  spare_ = OpenSpare();
  if (was_shed) {
    ++refused_for_files_;
    LogRefusal("", "no file descriptor is left");
  } else {
    accept_again_ns_ = clock_.NowNs() + kAcceptPauseNs;
  }
  return was_shed;
}

void ConnectionAcceptor::Give(ConnectionKind kind, FileDescriptor accepted,
                              const sockaddr_storage& address) {
  const std::string peer = PeerOf(accepted.get(), address);
  ConnectionTable::Verdict verdict;
  {
    MutexLock lock(&mutex_);
    verdict = table_.Admit(accepted.get(), peer, GrpcNameOf(address));
  }
  switch (verdict) {
    case ConnectionTable::Verdict::kTooMany:
      ++refused_of_all_;
      return LogRefusal(peer, "as many as --max-connections");
    case ConnectionTable::Verdict::kTooManyOfPeer:
      ++refused_of_peer_;
      return LogRefusal(peer, "as many as --max-connections-per-peer");
    case ConnectionTable::Verdict::kAdmitted: break;
  }
  ++accepted_;
  Prepare(accepted.get(), unacknowledged_);
  take_(kind, accepted.Release());
}

}  // namespace gemmd
