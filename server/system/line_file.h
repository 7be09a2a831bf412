// SPDX-License-Identifier: Apache-2.0
//
// A file of lines that another program follows. Nobody who adds a line waits: a thread of the
// file's own makes the lines and writes them, those for which there is no room are lost, and
// counted. A file that is full is renamed to PATH.1, in place of the one before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/system/file_descriptor.h"
#include "server/system/mutex.h"

namespace gemmd {

class LineFile {
 public:
  struct Options {
    int64_t most_bytes = int64_t{64} << 20;  // A longer line has a file to itself.
    size_t most_kept = 4096;                 // Lines that may wait for the thread.
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

}  // namespace gemmd
