// SPDX-License-Identifier: Apache-2.0
#include "server/system/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gemmd {
namespace {

absl::Status CannotOpen(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot open ", path, ": ", std::error_code(errno, std::generic_category()).message()));
}

}  // namespace

absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path, int flags) {
  constexpr mode_t kReadableForOthers = 0644;
  FileDescriptor file(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, kReadableForOthers));
  struct stat status = {};
  if (!file.is_open() || fstat(file.get(), &status) != 0) return CannotOpen(path);
  if (S_ISREG(status.st_mode)) return file;
  return absl::InvalidArgumentError(absl::StrCat("got ", path, ", want a regular file"));
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t most_bytes) {
  const absl::StatusOr<FileDescriptor> file = OpenRegularFile(path, O_RDONLY);
  if (!file.ok()) return file.status();
  std::string bytes(most_bytes + 1, '\0');
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

}  // namespace gemmd
