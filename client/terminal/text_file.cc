// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace gemmd {
namespace {

namespace fs = std::filesystem;

std::string Why(int error) { return std::generic_category().message(error); }

absl::Status CannotBeWritten(const std::string& path, int error) {
  return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written: ", Why(error)));
}

// The file itself if the path is a link to it.
std::string TargetOf(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  return error ? path : target.string();
}

bool IsOther(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status);
}

// A name in the same folder, so that the file can be renamed.
std::string TemporaryOf(const std::string& path) {
  return absl::StrCat(path, ".", getpid(), ".part");
}

absl::Status WriteAll(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? absl::OkStatus() : CannotBeWritten(path, errno);
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file && (file.peek() == std::ifstream::traits_type::eof() || text << file.rdbuf())) {
    if (!file.bad()) return text.str();
  }
  return absl::NotFoundError(absl::StrCat(path, ": cannot be read: ", Why(errno)));
}

absl::Status CheckWritable(const std::string& path) {
  std::error_code ignored;
  const bool was_there = fs::exists(path, ignored);
  // Opens the file without reading or truncating it, and without waiting for the reader of a pipe.
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file < 0) {
    // The reader of a pipe may come later.
    return errno == ENXIO && was_there ? absl::OkStatus() : CannotBeWritten(path, errno);
  }
  close(file);
  if (!was_there) unlink(path.c_str());
  return absl::OkStatus();
}

absl::Status WriteTextFile(const std::string& path, const std::string& text) {
  if (IsOther(path)) return WriteAll(path, text);
  const std::string target = TargetOf(path);
  const std::string temporary = TemporaryOf(target);
  std::error_code error;
  if (WriteAll(temporary, text).ok()) {
    fs::rename(temporary, target, error);
    if (!error) return absl::OkStatus();
  }
  fs::remove(temporary, error);
  // A file may be writable in a folder that is not.
  return WriteAll(target, text);
}

}  // namespace gemmd
