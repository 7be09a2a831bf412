// SPDX-License-Identifier: Apache-2.0
#include "client/output_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/matrix/status.h"
#include "kernels/option/resources.h"

namespace gemmd {
namespace {

namespace fs = std::filesystem;

constexpr int kPollMs = 50;  // Polling interval for a pipe and for signals.

// The descriptor of standard output or error, if it is this file; else -1.
int StandardStream(const struct stat& file) {
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat facts = {};
    if (fstat(descriptor, &facts) == 0 && facts.st_dev == file.st_dev &&
        facts.st_ino == file.st_ino) {
      return descriptor;
    }
  }
  return -1;
}

bool IsSameFile(const std::string& a, const std::string& b) {
  if (a == "-" || b == "-") return a == b;
  return option::IsSameFile(a, b);
}

}  // namespace

bool OutputFile::IsStream(const std::string& path) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) return false;
  return !S_ISREG(facts.st_mode) || StandardStream(facts) >= 0;
}

absl::Status OutputFile::Check(const std::string& path) {
  OutputFile file;
  std::error_code error;
  if (fs::is_directory(path, error) || !IsStream(path)) return file.Open(path, 0);
  file.path_ = path;
  return access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : file.Failed(errno);
}

OutputFile::~OutputFile() {
  if (!fresh_.empty()) unlink(fresh_.c_str());
  if (old_bytes_ >= 0) [[maybe_unused]]
    const int cut = ftruncate(old_, old_bytes_);
  if (old_ >= 0 && !is_in_place()) close(old_);
  if (file_ >= 0) close(file_);
}

absl::Status OutputFile::Failed(int error) const {
  const std::string message =
      absl::StrCat(path_, ": cannot be written: ", std::generic_category().message(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::InternalError(message);
}

absl::Status OutputFile::Open(const std::string& path, std::optional<int64_t> bytes,
                              const std::atomic<int>* stops) {
  path_ = path;
  stops_ = stops;
  struct stat facts = {};
  const bool is_there = stat(path.c_str(), &facts) == 0;
  if (!is_there && errno != ENOENT) return Failed(errno);
  if (const int standard = is_there ? StandardStream(facts) : -1; standard >= 0) {
    std::fflush(standard == STDOUT_FILENO ? stdout : stderr);
    file_ = fcntl(standard, F_DUPFD_CLOEXEC, 0);
    if (file_ < 0) return Failed(errno);
  } else if (is_there && !S_ISREG(facts.st_mode)) {
    RETURN_IF_ERROR(OpenStream(S_ISFIFO(facts.st_mode)));
  } else
    RETURN_IF_ERROR(OpenBeside(is_there, bytes));
  if (stops_ != nullptr) past_stops_ = *stops_;
  return absl::OkStatus();
}

// A signal does not interrupt open() of a pipe, and no event reports its reader, so poll.
absl::Status OutputFile::OpenStream(bool is_pipe) {
  const bool looks = is_pipe && stops_ != nullptr;
  constexpr int kFlags = O_WRONLY | O_CLOEXEC | O_NOCTTY;
  while (true) {
    file_ = open(path_.c_str(), looks ? kFlags | O_NONBLOCK : kFlags);
    if (file_ >= 0) return absl::OkStatus();
    if (!looks || errno != ENXIO) return Failed(errno);
    if (*stops_ > 0) {
      return absl::InternalError(
          absl::StrCat(path_, ": cannot be written: no process reads the pipe, and a signal came"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
  }
}

absl::Status OutputFile::OpenBeside(bool is_there, std::optional<int64_t> bytes) {
  constexpr int kMaxNames = 100;  // Killed processes may have left some of these files.
  constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  target_ = option::LinkTarget(path_);
  if (is_there) old_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
  if (is_there && old_ < 0) return Failed(errno);
  std::string fresh;
  for (int i = 0; i < kMaxNames && file_ < 0; ++i) {
    fresh = absl::StrCat(target_, ".", getpid(), i == 0 ? "" : absl::StrCat("_", i), ".part");
    file_ = open(fresh.c_str(), kNew, 0666);
    if (file_ < 0 && errno != EEXIST) break;
  }
  if (file_ >= 0) {
    fresh_ = std::move(fresh);
    struct stat facts = {};
    if (!is_there || fstat(old_, &facts) != 0) return absl::OkStatus();
    [[maybe_unused]] const int ignored =
        fchown(file_, facts.st_uid, facts.st_gid) + fchmod(file_, facts.st_mode & 0777);
    return absl::OkStatus();
  }
  const int error = errno;
  if (!is_there) {  // The name may be too long for a temporary name beside it.
    file_ = open(target_.c_str(), kNew, 0666);
    if (file_ < 0) return Failed(error);
    fresh_ = target_;
    return absl::OkStatus();
  }
  if (!bytes.has_value()) return Failed(error);
  file_ = old_;
  return Reserve(*bytes);
}

// Extends the old file to `bytes`, so that a full disk is detected before any byte is lost.
absl::Status OutputFile::Reserve(int64_t bytes) {
  struct stat facts = {};
  if (fstat(old_, &facts) != 0) return Failed(errno);
  if (bytes == 0) return absl::OkStatus();
  old_bytes_ = facts.st_size;
  if (fallocate(old_, 0, 0, bytes) == 0 || errno == EOPNOTSUPP) return absl::OkStatus();
  return Failed(errno);
}

absl::Status OutputFile::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(file_, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
      position_ += count;
    } else if (errno == EAGAIN && (stops_ == nullptr || *stops_ == past_stops_)) {
      pollfd pipe = {.fd = file_, .events = POLLOUT, .revents = 0};
      poll(&pipe, 1, kPollMs);
    } else if (errno != EINTR) {
      return Failed(errno);
    }
  }
  return absl::OkStatus();
}

absl::Status OutputFile::WriteAt(int64_t offset, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(file_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed(errno);
    offset += count;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  if (is_in_place() && ftruncate(file_, position_) != 0) return Failed(errno);
  old_bytes_ = -1;
  if (is_in_place()) old_ = -1;
  if (close(std::exchange(file_, -1)) != 0) return Failed(errno);
  if (fresh_.empty()) return absl::OkStatus();
  if (std::rename(fresh_.c_str(), target_.c_str()) != 0) return Overwrite();
  fresh_.clear();
  return absl::OkStatus();
}

// A bind-mounted file, or another user's file in /tmp, can be written but not replaced.
absl::Status OutputFile::Overwrite() {
  const int error = errno;
  if (old_ < 0) return Failed(error);
  file_ = open(fresh_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat facts = {};
  if (file_ < 0 || fstat(file_, &facts) != 0) return Failed(error);
  RETURN_IF_ERROR(Reserve(facts.st_size));
  off_t done = 0;
  while (done < facts.st_size) {
    if (sendfile(old_, file_, &done, static_cast<size_t>(facts.st_size - done)) <= 0) {
      return Failed(errno);
    }
  }
  old_bytes_ = -1;
  if (ftruncate(old_, done) != 0 || close(std::exchange(old_, -1)) != 0) return Failed(errno);
  return absl::OkStatus();
}

absl::Status CheckOutputs(const std::vector<NamedFile>& outputs,
                          const std::vector<NamedFile>& inputs) {
  std::vector<NamedFile> others;
  for (const NamedFile& input : inputs) {
    if (input.path != "-") others.push_back(input);
  }
  for (const NamedFile& output : outputs) {
    if (output.path.empty()) continue;
    for (const NamedFile& other : others) {
      if (other.path.empty() || !IsSameFile(output.path, other.path)) continue;
      return absl::InvalidArgumentError(absl::StrCat(output.option, ": got \"", output.path,
                                                     "\", want another file than that of ",
                                                     other.option));
    }
    others.push_back(output);
  }
  return absl::OkStatus();
}

namespace {

absl::Status AsDenied(const absl::Status& status) {
  return status.ok() ? status : absl::PermissionDeniedError(status.message());
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file && (file.peek() == std::ifstream::traits_type::eof() || text << file.rdbuf())) {
    if (!file.bad()) return text.str();
  }
  return absl::NotFoundError(
      absl::StrCat(path, ": cannot be read: ", std::generic_category().message(errno)));
}

absl::Status CheckWritable(const std::string& path) { return AsDenied(OutputFile::Check(path)); }

absl::Status WriteTextFile(const std::string& path, const std::string& text,
                           const std::atomic<int>* stops) {
  OutputFile file;
  absl::Status status = file.Open(path, static_cast<int64_t>(text.size()), stops);
  if (status.ok()) status = file.Write(text);
  if (status.ok()) status = file.Commit();
  return AsDenied(status);
}

}  // namespace gemmd
