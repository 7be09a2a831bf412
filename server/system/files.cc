// SPDX-License-Identifier: Apache-2.0
#include "server/system/files.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
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

}  // namespace gemmd
