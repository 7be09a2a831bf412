// SPDX-License-Identifier: Apache-2.0
#include "server/system/files.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/system/log.h"
#include "server/system/threads.h"

namespace gemmd {

namespace {

std::string SystemError() { return std::error_code(errno, std::generic_category()).message(); }

absl::Status CannotOpen(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat("cannot open ", path, ": ", SystemError()));
}

}  // namespace

std::optional<uint32_t> FindGroup(const std::string& name) {
  std::vector<char> text(size_t{1} << 16);
  group entry = {};
  group* found = nullptr;
  const int error = getgrnam_r(name.c_str(), &entry, text.data(), text.size(), &found);
  return error == 0 && found != nullptr ? std::optional(entry.gr_gid) : std::nullopt;
}

absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path, int flags) {
  constexpr mode_t kReadableForOthers = 0644;
  const auto refuse = [&path] {
    return absl::InvalidArgumentError(absl::StrCat("got ", path, ", want a regular file"));
  };
  struct stat status = {};
  // Opening a device may have an effect; opening a pipe wakes a process that waits for a reader.
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) return refuse();
  FileDescriptor file(
      open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, kReadableForOthers));
  if (!file.is_open() || fstat(file.get(), &status) != 0) return CannotOpen(path);
  if (!S_ISREG(status.st_mode)) return refuse();  // It was replaced meanwhile.
  return file;
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes) {
  const absl::StatusOr<FileDescriptor> file = OpenRegularFile(path, O_RDONLY);
  if (!file.ok()) return file.status();
  std::string bytes(max_bytes + 1, '\0');
  size_t length = 0;
  while (length < bytes.size()) {
    const ssize_t count = read(file->get(), bytes.data() + length, bytes.size() - length);
    if (count < 0) return CannotOpen(path);
    if (count == 0) break;
    length += static_cast<size_t>(count);
  }
  bytes.resize(length);
  return bytes;
}

namespace {

absl::StatusOr<FileDescriptor> OpenToAppend(const std::string& path) {
  return OpenRegularFile(path, O_WRONLY | O_CREAT | O_APPEND);
}

int64_t SizeOf(const FileDescriptor& file) {
  return std::max<int64_t>(lseek(file.get(), 0, SEEK_END), 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Open(const std::string& path,
                                                         const Options& options) {
  absl::StatusOr<FileDescriptor> file = OpenToAppend(path);
  if (!file.ok()) return file.status();
  return std::unique_ptr<LineFile>(new LineFile(path, options, *std::move(file)));
}

LineFile::LineFile(std::string path, const Options& options, FileDescriptor file)
    : path_(std::move(path)),
      options_(options),
      file_(std::move(file)),
      bytes_(SizeOf(file_)),
      thread_(std::make_unique<ThreadPool>("gemmd-lines", 1)) {}

LineFile::~LineFile() = default;

void LineFile::Add(absl::AnyInvocable<std::string() &&> make, int64_t count) {
  if (kept_.fetch_add(1) >= options_.max_kept) {
    --kept_;
    return Lose(count, "too many lines wait");
  }
  thread_->Run([this, make = std::move(make), count]() mutable {
    --kept_;
    const absl::Status status = Write(absl::StrCat(std::move(make)(), "\n"));
    if (!status.ok()) return Lose(count, std::string(status.message()));
    written_ += count;
    is_losing_ = false;
  });
}

void LineFile::Reopen() {
  thread_->Run([this] {
    absl::StatusOr<FileDescriptor> file = OpenToAppend(path_);
    if (!file.ok()) {
      spdlog::warn("event=file_kept file={} reason={}", LogValue(path_),
                   LogValue(std::string(file.status().message())));
      return;
    }
    file_ = *std::move(file);
    bytes_ = SizeOf(file_);
    spdlog::info("event=file_opened_again file={}", LogValue(path_));
  });
}

void LineFile::Lose(int64_t count, const std::string& reason) {
  lost_ += count;
  if (is_losing_.exchange(true)) return;
  spdlog::warn("event=lines_lost file={} reason={}", LogValue(path_), LogValue(reason));
}

// Writes all of the line or nothing: programs that follow the file read line by line.
absl::Status LineFile::Write(const std::string& line) {
  const absl::Status room = MakeRoom(static_cast<int64_t>(line.size()));
  if (!room.ok()) return room;
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t written = write(file_.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      // For example, the disk is full. If this fails too, the next line ends the partial one.
      const absl::Status status = absl::UnavailableError(SystemError());
      [[maybe_unused]] const int cut = ftruncate(file_.get(), bytes_);
      return status;
    }
    left.remove_prefix(static_cast<size_t>(written));
  }
  bytes_ += static_cast<int64_t>(line.size());
  return absl::OkStatus();
}

// Starts a new file if this one has no room.
absl::Status LineFile::MakeRoom(int64_t bytes) {
  if (file_.is_open() && (bytes_ == 0 || bytes_ + bytes <= options_.max_bytes)) {
    return absl::OkStatus();
  }
  if (file_.is_open() && std::rename(path_.c_str(), absl::StrCat(path_, ".1").c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot be renamed: ", SystemError()));
  }
  absl::StatusOr<FileDescriptor> file = OpenToAppend(path_);
  file_ = file.ok() ? *std::move(file) : FileDescriptor();
  bytes_ = 0;
  return file.status();
}

namespace {

bool IsLoopback(const in_addr& address) {
  constexpr int kLoopbackNet = 127;
  constexpr int kNetShift = 24;
  return ntohl(address.s_addr) >> kNetShift == kLoopbackNet;
}

// The offset of an IPv4 address inside an IPv6 address.
constexpr size_t kMappedAt = 12;

bool IsLoopback(const in6_addr& address) {
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return IN6_IS_ADDR_LOOPBACK(&address);
  in_addr v4 = {};
  std::memcpy(&v4, address.s6_addr + kMappedAt, sizeof(v4));
  return IsLoopback(v4);
}

}  // namespace

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in v4 = {};
    std::memcpy(&v4, address, sizeof(v4));
    return IsLoopback(v4.sin_addr);
  }
  if (address->sa_family != AF_INET6) return false;
  sockaddr_in6 v6 = {};
  std::memcpy(&v6, address, sizeof(v6));
  return IsLoopback(v6.sin6_addr);
}

namespace {

std::string TextOf(int family, const void* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const char* const written =
      inet_ntop(family, address, text.data(), static_cast<socklen_t>(text.size()));
  return written == nullptr ? "" : written;
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
    return absl::StrCat(TextOf(AF_INET6, &v6.sin6_addr), "/64");
  }
  ucred user = {};
  socklen_t bytes = sizeof(user);
  getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &user, &bytes);
  return absl::StrCat("user ", user.uid);
}

std::string GrpcNameOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4 = {};
    std::memcpy(&v4, &address, sizeof(v4));
    return absl::StrCat("ipv4:", TextOf(AF_INET, &v4.sin_addr), ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  sockaddr_in6 v6 = {};
  std::memcpy(&v6, &address, sizeof(v6));
  const int port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    return absl::StrCat("ipv4:", TextOf(AF_INET, v6.sin6_addr.s6_addr + kMappedAt), ":", port);
  }
  // gRPC percent-encodes the brackets, as in URIs. It also adds an address's scope, so a name with
  // a scope never matches this one.
  return absl::StrCat("ipv6:%5B", TextOf(AF_INET6, &v6.sin6_addr), "%5D:", port);
}

namespace {

// The length of the part of an IPv6 address that stands for its first four groups.
size_t NetworkLength(std::string_view address) {
  constexpr size_t kGroups = 8;
  constexpr size_t kOfNetwork = 4;
  const auto groups_in = [](std::string_view text) -> size_t {
    return text.empty() ? 0 : 1 + static_cast<size_t>(std::count(text.begin(), text.end(), ':'));
  };
  const auto end_of_groups = [](std::string_view text, size_t count) {
    size_t end = text.find(':');
    for (; count > 1 && end != std::string_view::npos; --count) end = text.find(':', end + 1);
    return std::min(end, text.size());
  };
  const size_t zeros_at = address.find("::");
  const size_t before = groups_in(address.substr(0, zeros_at));
  if (zeros_at == std::string_view::npos || before >= kOfNetwork) {
    return end_of_groups(address, kOfNetwork);
  }
  const size_t after_at = zeros_at + 2;
  const std::string_view after = address.substr(after_at);
  const size_t abbreviated = kGroups - std::min(kGroups, before + groups_in(after));
  if (before + abbreviated >= kOfNetwork) return after_at;
  return after_at + end_of_groups(after, kOfNetwork - before - abbreviated);
}

}  // namespace

std::string_view HostOf(std::string_view peer) {
  constexpr std::string_view kUnix = "unix:";
  if (peer == kUnix) return "unix";
  if (peer.starts_with(kUnix)) return peer.substr(kUnix.size());
  const std::string_view host = peer.substr(0, peer.rfind(':'));
  for (const auto& [begin, end] :
       {std::pair<std::string_view, std::string_view>{"ipv6:%5B", "%5D"}, {"ipv6:[", "]"}}) {
    if (!host.starts_with(begin)) continue;
    const std::string_view address = host.substr(begin.size(), host.find(end) - begin.size());
    return host.substr(0, begin.size() + NetworkLength(address));
  }
  return host;
}

int PortOf(int socket) {
  sockaddr_storage storage = {};
  socklen_t bytes = sizeof(storage);
  getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &bytes);
  // The port has the same offset in IPv4 and IPv6 addresses.
  sockaddr_in v4 = {};
  std::memcpy(&v4, &storage, sizeof(v4));
  return ntohs(v4.sin_port);
}

FileDescriptor ListenOn(const sockaddr* address, socklen_t bytes) {
  FileDescriptor made(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.is_open()) return {};
  const int on = 1;
  const int off = 0;
  // A restarted daemon need not wait for the end of old connections. SO_REUSEPORT stays off: with
  // it, a second daemon would share the port silently.
  if (address->sa_family != AF_UNIX) {
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (address->sa_family == AF_INET6) {
    setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  // The file of a unix socket has the mode of the socket, less the umask: this makes it private to
  // its owner from the start.
  if (address->sa_family == AF_UNIX) fchmod(made.get(), S_IRUSR | S_IWUSR);
  if (bind(made.get(), address, bytes) != 0 || listen(made.get(), SOMAXCONN) != 0) return {};
  return made;
}

}  // namespace gemmd
