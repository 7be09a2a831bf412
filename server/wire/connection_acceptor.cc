// SPDX-License-Identifier: Apache-2.0
#include "server/wire/connection_acceptor.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/files.h"
#include "server/system/log.h"
#include "server/system/sockets.h"
#include "server/wire/transport.h"

namespace gemmd {

namespace {

struct HostAndPort {
  std::string host;
  int port = 0;
};

absl::Status CannotListen(const std::string& address, std::string_view reason) {
  return absl::UnavailableError(Concat("listen: cannot listen on ", address, ": ", reason));
}

absl::Status NotLoopback(const std::string& address) {
  return absl::FailedPreconditionError(GotWant(
      "listen", address,
      "a loopback address, unix:PATH, tls:HOST:PORT or mtls:HOST:PORT: anybody who reaches a "
      "plain address may use and watch the daemon; --insecure-allow-remote permits it"));
}

std::string LastError() { return std::error_code(errno, std::generic_category()).message(); }

absl::string_view WithoutKind(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "tls:")) absl::ConsumePrefix(&address, "mtls:");
  return address;
}

absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& address) {
  absl::string_view rest = WithoutKind(address);
  if (absl::ConsumePrefix(&rest, "dns:")) absl::ConsumePrefix(&rest, "///");
  if (!absl::ConsumePrefix(&rest, "ipv4:")) absl::ConsumePrefix(&rest, "ipv6:");
  const size_t colon = rest.rfind(':');
  HostAndPort parsed;
  const absl::string_view digits = colon == rest.npos ? "" : rest.substr(colon + 1);
  const std::optional<uint16_t> port = ParseDecimal<uint16_t>({digits.data(), digits.size()});
  if (!port || colon == 0) {
    return Invalid("listen", address,
                   "HOST:PORT, [IPV6]:PORT, tls:HOST:PORT, mtls:HOST:PORT or unix:PATH");
  }
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) {
    return Invalid("listen", address, "[IPV6]:PORT with both brackets");
  }
  parsed.host = std::string(host);
  parsed.port = *port;
  return parsed;
}

// Whether the address is IPv4's wildcard. IPv6's wildcard accepts both IPv4 and IPv6.
bool IsWildcard(const addrinfo& info) {
  if (info.ai_family != AF_INET) return false;
  sockaddr_in v4 = {};
  std::memcpy(&v4, info.ai_addr, sizeof(v4));
  return v4.sin_addr.s_addr == htonl(INADDR_ANY);
}

void SetPort(sockaddr_storage& storage, int port) {
  // The port has the same offset in IPv4 and IPv6 addresses.
  sockaddr_in v4 = {};
  std::memcpy(&v4, &storage, sizeof(v4));
  v4.sin_port = htons(static_cast<uint16_t>(port));
  std::memcpy(&storage, &v4, sizeof(v4));
}

FileDescriptor ListenOnPort(const addrinfo& info, int port) {
  sockaddr_storage storage = {};
  if (IsWildcard(info)) {
    sockaddr_in6 both = {};
    both.sin6_family = AF_INET6;
    both.sin6_port = htons(static_cast<uint16_t>(port));
    FileDescriptor made = ListenOn(reinterpret_cast<const sockaddr*>(&both), sizeof(both));
    // A host without IPv6 listens on the IPv4 address that was asked for.
    if (made.is_open() || errno == EADDRINUSE) return made;
  }
  std::memcpy(&storage, info.ai_addr, info.ai_addrlen);
  SetPort(storage, port);
  return ListenOn(reinterpret_cast<const sockaddr*>(&storage), info.ai_addrlen);
}

absl::StatusOr<std::vector<FileDescriptor>> ListenOnHost(const std::string& address,
                                                         const HostAndPort& where,
                                                         ListeningSocket::PlainReach reach) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(where.host.c_str(), nullptr, &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  const bool must_be_loopback = ConnectionKindOf(address) == ConnectionKind::kPlain &&
                                reach != ListeningSocket::PlainReach::kAnywhere;
  for (const addrinfo* info = found; must_be_loopback && info != nullptr; info = info->ai_next) {
    if (!IsLoopback(info->ai_addr)) return NotLoopback(address);
  }
  std::vector<FileDescriptor> files;
  std::string reason;
  int port = where.port;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    FileDescriptor made = ListenOnPort(*info, port);
    if (!made.is_open()) {
      reason = LastError();
      continue;
    }
    port = PortOf(made.get());
    files.push_back(std::move(made));
  }
  if (files.empty()) return CannotListen(address, reason);
  return files;
}

// The file that a path leads to now, as device and inode.
ListeningSocket::Place PlaceOf(const std::string& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

// Gives a socket's file its mode and group. The path is resolved once, so another file put there
// meanwhile is not changed.
bool OpenTo(const SocketAccess& access, const char* path) {
  const FileDescriptor file(open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat status = {};
  if (!file.is_open() || fstat(file.get(), &status) != 0) return false;
  if (!S_ISSOCK(status.st_mode) || status.st_uid != geteuid()) {
    errno = EEXIST;
    return false;
  }
  constexpr auto kSameUser = static_cast<uid_t>(-1);
  const bool has_group =
      !access.group || fchownat(file.get(), "", kSameUser, *access.group, AT_EMPTY_PATH) == 0;
  if (has_group &&
      chmod(Concat("/proc/self/fd/", file.get()).c_str(), access.mode_of_file()) == 0) {
    return true;
  }
  const int error = errno;
  unlink(path);
  errno = error;
  return false;
}

// `path` begins with a zero byte for an abstract name.
absl::StatusOr<std::vector<FileDescriptor>> ListenOnPath(const std::string& address,
                                                         std::string_view path,
                                                         const SocketAccess& access) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) {
    return Invalid("listen", address,
                   Concat("a path of 1 to ", sizeof(name.sun_path) - 1, " bytes"));
  }
  path.copy(name.sun_path, path.size());
  struct stat status = {};
  // A symbolic link is not followed: what it leads to is not ours.
  if (path.front() != '\0' && lstat(name.sun_path, &status) == 0 && S_ISSOCK(status.st_mode)) {
    unlink(name.sun_path);  // CheckAddress found no listener there.
  }
  const bool is_abstract = path.front() == '\0';
  const size_t bytes = is_abstract ? offsetof(sockaddr_un, sun_path) + path.size() : sizeof(name);
  FileDescriptor made =
      ListenOn(reinterpret_cast<const sockaddr*>(&name), static_cast<socklen_t>(bytes));
  if (!made.is_open()) return CannotListen(address, LastError());
  if (!is_abstract && !OpenTo(access, name.sun_path)) {
    return CannotListen(address, Concat("cannot give it its group and mode: ", LastError()));
  }
  std::vector<FileDescriptor> files;
  files.push_back(std::move(made));
  return files;
}

}  // namespace

ConnectionKind ConnectionKindOf(absl::string_view address) {
  if (absl::StartsWith(address, "tls:")) return ConnectionKind::kTls;
  if (absl::StartsWith(address, "mtls:")) return ConnectionKind::kMtls;
  const bool is_unix =
      absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
  return is_unix ? ConnectionKind::kUnix : ConnectionKind::kPlain;
}

absl::StatusOr<ListeningSocket> ListeningSocket::Open(const std::string& address, PlainReach reach,
                                                      const SocketAccess& access) {
  RETURN_IF_ERROR(CheckAddress(address));
  if (ConnectionKindOf(WithoutKind(address)) == ConnectionKind::kUnix &&
      ConnectionKindOf(address) != ConnectionKind::kUnix) {
    return Invalid("listen", address, "unix:PATH without TLS: its bytes never leave the machine");
  }
  ListeningSocket made;
  absl::string_view rest = address;
  if (absl::ConsumePrefix(&rest, "unix-abstract:")) {
    std::string name(1, '\0');
    name.append(rest.data(), rest.size());
    ASSIGN_OR_RETURN(made.files_, ListenOnPath(address, name, access));
    made.address_ = address;
  } else if (absl::ConsumePrefix(&rest, "unix:")) {
    absl::ConsumePrefix(&rest, "//");  // unix:///absolute/path
    ASSIGN_OR_RETURN(made.files_, ListenOnPath(address, {rest.data(), rest.size()}, access));
    made.address_ = address;
    made.path_ = std::string(rest);
    made.place_ = PlaceOf(made.path_);
  } else {
    ASSIGN_OR_RETURN(const HostAndPort where, ParseHostAndPort(address));
    ASSIGN_OR_RETURN(made.files_, ListenOnHost(address, where, reach));
    made.address_ = WithPort(address, PortOf(made.files_.front().get()));
  }
  return made;
}

ListeningSocket::~ListeningSocket() {
  // Another process may have put its socket there.
  if (!path_.empty() && !files_.empty() && PlaceOf(path_) == place_) unlink(path_.c_str());
}

namespace {

constexpr int64_t kMinPauseNs = 10'000'000;
constexpr int64_t kPausePerSweep = 10;

}  // namespace

bool ConnectionTable::Connection::IsOf(int descriptor) const {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 && status.st_ino == inode && status.st_dev == device;
}

ConnectionTable::Verdict ConnectionTable::Admit(int descriptor, const std::string& peer) {
  const auto before = connections_.find(descriptor);
  if (before != connections_.end()) Forget(before);  // The kernel has reused its number.
  Verdict verdict = Judge(peer);
  if (verdict != Verdict::kAdmitted) {
    Sweep();
    verdict = Judge(peer);
  }
  struct stat status = {};
  if (verdict != Verdict::kAdmitted || fstat(descriptor, &status) != 0) return verdict;
  const auto entry = peers_.try_emplace(peer, 0).first;
  ++entry->second;
  connections_.insert({descriptor, {status.st_dev, status.st_ino, entry}});
  return verdict;
}

int64_t ConnectionTable::CountOpen() {
  Sweep();
  return static_cast<int64_t>(connections_.size());
}

ConnectionTable::Verdict ConnectionTable::Judge(const std::string& peer) const {
  if (static_cast<int64_t>(connections_.size()) >= limits_.all) return Verdict::kTooMany;
  const auto entry = peers_.find(peer);
  const bool is_full = entry != peers_.end() && entry->second >= limits_.of_peer;
  return is_full ? Verdict::kTooManyOfPeer : Verdict::kAdmitted;
}

void ConnectionTable::Sweep() {
  const int64_t begin_ns = clock_.NowNs();
  if (begin_ns < sweep_again_ns_) return;
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    const bool is_open = connection->second.IsOf(connection->first);
    connection = is_open ? std::next(connection) : Forget(connection);
  }
  const int64_t end_ns = clock_.NowNs();
  sweep_again_ns_ = end_ns + std::max(kMinPauseNs, kPausePerSweep * (end_ns - begin_ns));
}

ConnectionTable::Connections::iterator ConnectionTable::Forget(Connections::iterator connection) {
  const auto peer = connection->second.peer;
  if (--peer->second == 0) peers_.erase(peer);
  return connections_.erase(connection);
}

namespace {

// The pause before the next attempt if nothing can be accepted at all.
constexpr int64_t kAcceptPauseNs = 50'000'000;

// The maximum number of connections accepted from one socket before the next socket's turn.
constexpr int kAcceptedAtOnce = 64;

FileDescriptor OpenSpare() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

void LogRefusal(const std::string& peer, std::string_view reason) {
  spdlog::warn("event=connection_refused reason={} peer={}", LogValue(reason), LogValue(peer));
}

void Prepare(int descriptor, absl::Duration unacknowledged) {
  // For a unix socket these calls fail, which does no harm.
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const auto milliseconds = static_cast<int>(absl::ToInt64Milliseconds(unacknowledged));
  setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
}

}  // namespace

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
  counts.refused_for_rate = refused_for_rate_;
  counts.refused_for_files = refused_for_files_;
  counts.closed_for_frames = SocketWatch::Get().closed(CloseReason::kFrames);
  counts.closed_stalled = SocketWatch::Get().closed(CloseReason::kStalled);
  counts.closed_unread = SocketWatch::Get().closed(CloseReason::kUnread);
  return counts;
}

void ConnectionAcceptor::Run() {
  pthread_setname_np(pthread_self(), "gemmd-accept");
  std::vector<pollfd> files = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  std::vector<ConnectionKind> kinds = {
      ConnectionKind::kPlain};  // One per file; the first file is not a listener.
  for (const ListeningSocket& socket : sockets_) {
    for (const FileDescriptor& file : socket.files()) {
      files.push_back({.fd = file.get(), .events = POLLIN, .revents = 0});
      kinds.push_back(socket.kind());
    }
  }
  while (true) {
    const int64_t pause_ns = std::max(accept_again_ns_ - clock_.NowNs(), int64_t{0});
    const timespec limit = {.tv_sec = 0, .tv_nsec = std::min(pause_ns, kAcceptPauseNs)};
    // During a pause, wait only for the acceptor's end.
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

// Returns whether there may be another connection to accept.
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

// No file descriptor is left: accepts a connection and closes it at once, so that its peer knows.
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
  constexpr TokenBucket::Rate kRate = TokenBucket::EachSecond(kMaxAccepts);
  const int64_t now_ns = clock_.NowNs();
  if (!budgets_.Of(peer, now_ns)->Take(1, kRate, now_ns)) {
    ++refused_for_rate_;
    return LogRefusal(peer, "limit of new connections of one peer in a second reached");
  }
  ConnectionTable::Verdict verdict;
  {
    MutexLock lock(&mutex_);
    verdict = table_.Admit(accepted.get(), peer);
  }
  switch (verdict) {
    case ConnectionTable::Verdict::kTooMany:
      ++refused_of_all_;
      return LogRefusal(peer, "--max-connections reached");
    case ConnectionTable::Verdict::kTooManyOfPeer:
      ++refused_of_peer_;
      return LogRefusal(peer, "limit of one peer reached, half of --max-connections");
    case ConnectionTable::Verdict::kAdmitted: break;
  }
  ++accepted_;
  Prepare(accepted.get(), unacknowledged_);
  const bool is_tls = kind == ConnectionKind::kTls || kind == ConnectionKind::kMtls;
  SocketWatch::Get().Add(accepted.get(), peer, GrpcNameOf(address),
                         static_cast<size_t>(limits_.calls),
                         is_tls ? SocketWatch::Encryption::kTls : SocketWatch::Encryption::kNone);
  take_(kind, accepted.Release());
}

}  // namespace gemmd
