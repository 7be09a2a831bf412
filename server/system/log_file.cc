// SPDX-License-Identifier: Apache-2.0
#include "server/system/log_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gemmd {
namespace {

constexpr mode_t kReadableForOthers = 0644;

bool IsRegular(int descriptor) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

bool HasRoom(int descriptor) {
  pollfd file = {.fd = descriptor, .events = POLLOUT, .revents = 0};
  return poll(&file, 1, 0) > 0;  // An error is for the write to find.
}

}  // namespace

absl::StatusOr<LogFile> LogFile::Open(const std::string& path) {
  std::error_code ignored;  // The open says what is wrong.
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK,
                           kReadableForOthers));
  if (!file.is_open()) {
    return absl::InvalidArgumentError(
        absl::StrCat("log-file: cannot open ", path, ": ",
                     std::error_code(errno, std::generic_category()).message()));
  }
  const int descriptor = file.get();
  return LogFile(descriptor, std::move(file),
                 IsRegular(descriptor) ? Kind::kStalls : Kind::kNeverWaits);
}

LogFile LogFile::Of(int descriptor) {
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) return {descriptor, {}, Kind::kMayWait};
  if (S_ISREG(status.st_mode)) return {descriptor, {}, Kind::kStalls};
  if (S_ISSOCK(status.st_mode)) return {descriptor, {}, Kind::kSocket};
  if (S_ISFIFO(status.st_mode)) {
    // Opened once more, because O_NONBLOCK would otherwise hold for all processes that share the
    // pipe. Another user's pipe cannot be opened.
    FileDescriptor again(open(absl::StrCat("/proc/self/fd/", descriptor).c_str(),
                              O_WRONLY | O_CLOEXEC | O_NONBLOCK));
    if (again.is_open()) {
      const int number = again.get();
      return {number, std::move(again), Kind::kNeverWaits};
    }
  }
  return {descriptor, {}, Kind::kMayWait};
}

std::optional<size_t> LogFile::TryWrite(std::string_view text) const {
  if (write_) return write_(text);
  ssize_t written = 0;
  if (kind_ == Kind::kSocket) {
    written = send(descriptor_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } else if (kind_ != Kind::kMayWait) {
    written = write(descriptor_, text.data(), text.size());
  } else if (HasRoom(descriptor_)) {
    // Where poll sees room in a pipe, there is room for so much.
    written = write(descriptor_, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
  }
  if (written >= 0) return static_cast<size_t>(written);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  return std::nullopt;
}

}  // namespace gemmd
