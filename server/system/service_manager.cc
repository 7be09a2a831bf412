// SPDX-License-Identifier: Apache-2.0
#include "server/system/service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/system/files.h"

namespace gemmd {

namespace {

std::optional<int64_t> PositiveNumber(std::string_view digits) {
  int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [parsed, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || parsed != end || number < 1) return std::nullopt;
  return number;
}

}  // namespace

ServiceManager::ServiceManager(std::string_view address) : address_(address) {
  const bool is_usable = (address.starts_with('/') || address.starts_with('@')) &&
                         address.size() < sizeof(sockaddr_un::sun_path);
  if (!is_usable) return;
  if (address_.front() == '@') address_.front() = '\0';
  socket_ = FileDescriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

void ServiceManager::Tell(std::string_view lines) const {
  if (!socket_.is_open()) return;
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  address_.copy(name.sun_path, address_.size());
  const size_t bytes = offsetof(sockaddr_un, sun_path) + address_.size();
  sendto(socket_.get(), lines.data(), lines.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
         reinterpret_cast<const sockaddr*>(&name), static_cast<socklen_t>(bytes));
}

absl::Duration WatchdogTime(std::string_view microseconds, std::string_view pid) {
  const std::optional<int64_t> time = PositiveNumber(microseconds);
  const bool is_meant = pid.empty() || PositiveNumber(pid) == int64_t{getpid()};
  return time && is_meant ? std::max(absl::Microseconds(*time), kMinWatchdogTime)
                          : absl::InfiniteDuration();
}

namespace {

constexpr off_t kMaxBytes = 1 << 16;

bool IsAddress(std::string_view line) {
  if (!std::all_of(line.begin(), line.end(), [](unsigned char c) { return c > ' '; })) return false;
  for (const std::string_view scheme : {"unix:", "unix-abstract:"}) {
    if (line.substr(0, scheme.size()) == scheme) return true;
  }
  const size_t colon = line.rfind(':');
  return colon != line.npos && colon > 0 && colon + 1 < line.size() &&
         std::all_of(line.begin() + colon + 1, line.end(), absl::ascii_isdigit);
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The kind of file at the path that gemmd did not write; empty if there is none or gemmd wrote it.
std::string_view WhatIsAt(const std::string& path) {
  struct stat facts = {};
  if (lstat(path.c_str(), &facts) != 0) return "";
  if (S_ISLNK(facts.st_mode)) return "a symbolic link";
  if (S_ISDIR(facts.st_mode)) return "a folder";
  if (!S_ISREG(facts.st_mode)) return "a device, a pipe or a socket";
  const bool is_ours = facts.st_size <= kMaxBytes && IsOfAddresses(TextOf(path));
  return is_ours ? "" : "a file with text other than addresses";
}

bool WriteNew(const std::string& path, const std::string& text, struct stat& facts) {
  constexpr mode_t kReadableForOthers = 0644;
  const FileDescriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kReadableForOthers));
  if (!file.is_open()) return false;
  // A disk that becomes full takes a part, and gives the reason at the next attempt.
  for (std::string_view left = text; !left.empty();) {
    const ssize_t written = write(file.get(), left.data(), left.size());
    if (written <= 0) return false;
    left.remove_prefix(static_cast<size_t>(written));
  }
  return fstat(file.get(), &facts) == 0;
}

}  // namespace

bool IsOfAddresses(const std::string& text) {
  if (text.empty()) return true;
  if (text.back() != '\n') return false;
  const std::vector<std::string> lines = absl::StrSplit(text.substr(0, text.size() - 1), '\n');
  return std::all_of(lines.begin(), lines.end(), IsAddress);
}

absl::Status ReadyFile::Check() const {
  const std::string_view other = path_.empty() ? "" : WhatIsAt(path_);
  if (other.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ready-file: got ", path_, ", ", std::string(other),
                   ", want a new file, or one that gemmd has written"));
}

absl::Status ReadyFile::Write(const std::vector<std::string>& addresses) {
  if (path_.empty()) return absl::OkStatus();
  if (absl::Status status = Check(); !status.ok()) return status;
  const std::string unfinished = absl::StrCat(path_, ".", getpid(), ".part");
  struct stat facts = {};
  if (!WriteNew(unfinished, absl::StrCat(absl::StrJoin(addresses, "\n"), "\n"), facts) ||
      std::rename(unfinished.c_str(), path_.c_str()) != 0) {
    const std::string why = std::generic_category().message(errno);
    unlink(unfinished.c_str());
    return absl::UnavailableError(absl::StrCat("ready-file: cannot write ", path_, ": ", why));
  }
  is_written_ = true;
  device_ = facts.st_dev;
  number_ = facts.st_ino;
  return absl::OkStatus();
}

void ReadyFile::Remove() {
  struct stat facts = {};
  const bool is_there = is_written_ && lstat(path_.c_str(), &facts) == 0 &&
                        facts.st_dev == device_ && facts.st_ino == number_;
  if (is_there) unlink(path_.c_str());
  is_written_ = false;
}

}  // namespace gemmd
