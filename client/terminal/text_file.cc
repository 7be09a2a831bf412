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
#include "client/output_path.h"

namespace gemmd {
namespace {

namespace fs = std::filesystem;

std::string Why(int error) { return std::generic_category().message(error); }

absl::Status CannotBeWritten(const std::string& path, int error) {
  return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written: ", Why(error)));
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
  const OutputPath output(path);
  if (const absl::Status written = WriteAll(output.fresh(), text);
      output.is_stream() || (written.ok() && output.Commit())) {
    return written;
  }
  output.Discard();
  // A file may be writable in a folder that is not.
  return WriteAll(output.target(), text);
}

}  // namespace gemmd
