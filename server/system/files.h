// SPDX-License-Identifier: Apache-2.0
//
// File descriptors, files named by a user, and files of lines that other programs follow.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace gemmd {

class ThreadPool;

// A file descriptor that is closed on destruction.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor() {
    if (number_ >= 0) close(number_);
  }

  // The caller must close it.
  int Release() { return std::exchange(number_, -1); }

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// The number of the group that has this name on the machine, if there is one.
std::optional<uint32_t> FindGroup(const std::string& name);

// Opens a file named by a user with the flags of open(2); others can read a new file. Symbolic
// links are followed. A pipe or a device is refused at once: opening or reading one may never end.
// Errors: InvalidArgument: "cannot open FILE: No such file or directory", "got FILE, want a regular
// file".
absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path, int flags);

// The bytes of a file, but at most `max_bytes` + 1. Errors: as above, or if reading fails.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes);

// A file of lines that another program follows. Adding a line never waits: the file's own thread
// makes and writes the lines; lines without room are lost, counted, and reported once in the log
// (`lines_lost`) until one is written again. A full file is renamed to PATH.1, replacing the
// previous one.
class LineFile {
 public:
  struct Options {
    int64_t max_bytes = int64_t{64} << 20;  // A longer line gets its own file.
    size_t max_kept = 4096;                 // Max lines waiting for the thread.
  };
  struct Counts {
    int64_t written = 0;
    int64_t lost = 0;
  };

  // Appends to the file, and creates it if missing. Errors: InvalidArgument if it cannot be opened.
  static absl::StatusOr<std::unique_ptr<LineFile>> Open(const std::string& path,
                                                        const Options& options);

  // Writes the lines that were added.
  ~LineFile();

  // Adds the line that `make` returns, without its line end; it counts as `count` lines. `make`
  // runs on the file's thread, and must own its data. Threads: any.
  void Add(absl::AnyInvocable<std::string() &&> make, int64_t count);

  // Opens the path again, after another program has renamed the file. Lines added later are written
  // to the new file; if it cannot be opened, to the old one, as the log then says. Threads: any.
  void Reopen();

  // Threads: any.
  Counts counts() const { return {.written = written_, .lost = lost_}; }

 private:
  LineFile(std::string path, const Options& options, FileDescriptor file);
  absl::Status Write(const std::string& line);
  absl::Status MakeRoom(int64_t bytes);
  void Lose(int64_t count, const std::string& reason);

  const std::string path_;
  const Options options_;
  FileDescriptor file_;  // This one and the next are used only by the thread.
  int64_t bytes_;
  std::atomic<size_t> kept_ = 0;  // Lines that wait for the thread.
  std::atomic<int64_t> written_ = 0;
  std::atomic<int64_t> lost_ = 0;
  std::atomic<bool> is_losing_ = false;
  const std::unique_ptr<ThreadPool> thread_;  // The last member: it writes what is left.
};

}  // namespace gemmd
