// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "kernels/option/same_file.h"
#include "kernels/text.h"

namespace gemmd::bench {
namespace {

namespace fs = std::filesystem;

absl::Status Failed(const std::string& path) {
  const int error = errno;
  return absl::NotFoundError(
      Concat("cannot write ", path, ": ", std::generic_category().message(error)));
}

bool IsStandardOutput(const std::string& path) {
  struct stat file = {};
  struct stat output = {};
  return stat(path.c_str(), &file) == 0 && fstat(STDOUT_FILENO, &output) == 0 &&
         file.st_dev == output.st_dev && file.st_ino == output.st_ino;
}

// Writes and closes.
absl::Status WriteAll(int file, const std::string& path, std::string_view text) {
  bool is_written = true;
  while (is_written && !text.empty()) {
    const ssize_t count = write(file, text.data(), text.size());
    if (count >= 0) text.remove_prefix(static_cast<size_t>(count));
    is_written = count >= 0 || errno == EINTR;
  }
  if (is_written) return close(file) == 0 ? absl::OkStatus() : Failed(path);
  const absl::Status status = Failed(path);
  close(file);
  return status;
}

}  // namespace

bool IsStream(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && (!fs::is_regular_file(status) || IsStandardOutput(path));
}

absl::Status WriteOutputFile(const std::string& path, std::string_view text) {
  if (IsStream(path)) {
    std::cout << std::flush;
    const int file = IsStandardOutput(path) ? dup(STDOUT_FILENO)
                                            : open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    return file < 0 ? Failed(path) : WriteAll(file, path, text);
  }
  const std::string target = option::LinkTarget(path);
  if (access(target.c_str(), W_OK) != 0 && errno != ENOENT) return Failed(path);
  constexpr int kMostNames = 100;  // Processes that were killed have left some of them.
  std::string fresh;
  int file = -1;
  for (int i = 0; i < kMostNames && file < 0; ++i) {
    fresh = Concat(target, ".", std::to_string(getpid()), "_", std::to_string(i), ".part");
    file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 && errno != EEXIST) break;
  }
  if (file < 0) return Failed(path);
  absl::Status status = WriteAll(file, path, text);
  if (status.ok() && std::rename(fresh.c_str(), target.c_str()) != 0) status = Failed(path);
  if (!status.ok()) unlink(fresh.c_str());
  return status;
}

}  // namespace gemmd::bench
