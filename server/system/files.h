// SPDX-License-Identifier: Apache-2.0
//
// File descriptors, files that a user names, files of lines that another program follows, and
// sockets that listen.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/system/mutex.h"

namespace gemmd {

// A file descriptor that is closed with its owner.
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

  // Whoever calls this closes it.
  int Release() { return std::exchange(number_, -1); }

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// The number of the group that has this name on the machine, if there is one.
std::optional<uint32_t> FindGroup(const std::string& name);

// Opens a file that a user names with the flags of open(2); a new file can be read by others.
// Symbolic links are followed. A pipe or a device that is named by mistake is refused at once:
// opening or reading one may last for ever.
// Errors: InvalidArgument: "cannot open FILE: No such file or directory", "got FILE, want a regular
// file".
absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path, int flags);

// The bytes of a file, but no more than one beyond `max_bytes`. Errors: as above, and where
// reading fails.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes);

// A file of lines that another program follows. Nobody who adds a line waits: a thread of the
// file's own makes the lines and writes them, those for which there is no room are lost, and
// counted. A file that is full is renamed to PATH.1, in place of the one before.
class LineFile {
 public:
  struct Options {
    int64_t max_bytes = int64_t{64} << 20;  // A longer line has a file to itself.
    size_t max_kept = 4096;                 // Lines that may wait for the thread.
  };
  struct Counts {
    int64_t written = 0;
    int64_t lost = 0;
  };

  // Appends to the file, and makes it where it is missing.
  // Errors: InvalidArgument where it cannot be opened.
  static absl::StatusOr<std::unique_ptr<LineFile>> Open(const std::string& path,
                                                        const Options& options);

  // Writes what was added.
  ~LineFile();

  // The line that `make` gives, without its end; it counts as so many. `make` runs on the file's
  // thread, and owns what it needs. Threads: any.
  void Add(absl::AnyInvocable<std::string() &&> make, int64_t count) ABSL_LOCKS_EXCLUDED(mutex_);

  // Threads: any.
  Counts counts() const { return {.written = written_, .lost = lost_}; }

 private:
  struct Line {
    absl::AnyInvocable<std::string() &&> make;
    int64_t count = 0;
  };

  LineFile(std::string path, const Options& options, FileDescriptor file, int64_t bytes);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Write(const std::string& line);
  bool MakeRoom(int64_t bytes);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_closed_ || !kept_.empty();
  }

  const std::string path_;
  const Options options_;
  FileDescriptor file_;  // This one and the next are the thread's.
  int64_t bytes_;
  std::atomic<int64_t> written_ = 0;
  std::atomic<int64_t> lost_ = 0;
  Mutex mutex_;
  std::deque<Line> kept_ ABSL_GUARDED_BY(mutex_);
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Whether an IP address is reached from this machine alone: 127.0.0.0/8, also within IPv6, or ::1.
bool IsLoopback(const sockaddr* address);

// The port that a TCP socket is bound to.
int PortOf(int socket);

// A socket that listens, and neither blocks nor lives on in children; closed, with errno, where
// that failed. An address of IPv6 that stands for all takes IPv4 too. The file of a unix socket is
// open to its owner alone (0600).
FileDescriptor ListenOn(const sockaddr* address, socklen_t bytes);

}  // namespace gemmd
