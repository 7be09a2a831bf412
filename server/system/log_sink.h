// SPDX-License-Identifier: Apache-2.0
//
// What becomes of log lines. Nothing that logs ever waits for whoever reads the log: lines are
// written at once where they are taken at once, otherwise they are kept, up to a bound, for a
// thread of the log's own. Lines beyond the bound are lost, and counted. Warnings and errors that
// repeat are limited; the log says how many were left out.
//
// Whether a disk takes a line at once nobody knows: that thread writes them all. A line waits for
// it for a few milliseconds, so that it is there where what follows it is seen; once one has waited
// in vain, none waits until the disk has taken a line.
#pragma once

#include <spdlog/sinks/sink.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/system/clock.h"
#include "server/system/file_descriptor.h"
#include "server/system/log_file.h"
#include "server/system/log_line.h"
#include "server/system/mutex.h"
#include "server/system/repeat_limit.h"

namespace gemmd {

struct LogCounts {
  int64_t lost = 0;        // The reader was too slow, or had gone.
  int64_t suppressed = 0;  // They repeated too often.
  int64_t audit_lost = 0;  // Lines of the audit log, for whatever reason.
};

class LogSink final : public spdlog::sinks::sink {
 public:
  struct Options {
    LogFormat format = LogFormat::kText;
    size_t most_kept_bytes = size_t{1} << 20;
    RepeatLimit::Limits repeats;
  };

  // Borrows the clock.
  LogSink(LogFile file, const Options& options, const Clock& clock);
  ~LogSink() override { Close(absl::ZeroDuration()); }

  // Tells what was left out, and waits at most for `patience` until everything is written; what is
  // left then is lost. Later lines are written only where they are taken at once, without limit;
  // the clock may be gone then.
  void Close(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

  // Threads: any.
  LogCounts counts() const { return {.lost = lost_, .suppressed = suppressed_}; }

  // Threads: any.
  void log(const spdlog::details::log_msg& message) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Lines are never held back, and their form is that of FormatLine.
  void flush() override {}
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Add(std::string line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(std::string line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteKept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For the thread: lets go of the lock while it writes.
  void WriteApart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeWritten(std::optional<size_t> written) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitWritten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellLost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellSuppressed(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoseKept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string OwnLine(const std::string& pairs) const;
  void Wake() const;
  void Rest(int64_t until_ns, bool is_room_awaited) const;

  const LogFile file_;
  const Options options_;
  const Clock& clock_;
  const FileDescriptor wake_;
  std::atomic<int64_t> lost_ = 0;
  std::atomic<int64_t> suppressed_ = 0;

  Mutex mutex_;
  RepeatLimit repeats_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> kept_ ABSL_GUARDED_BY(mutex_);  // The first without what was written.
  size_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t added_ ABSL_GUARDED_BY(mutex_) = 0;  // Lines that were kept, and those of them that are
  int64_t gone_ ABSL_GUARDED_BY(mutex_) = 0;   //   kept no more.
  bool is_stalled_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t lost_untold_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t end_ns_ ABSL_GUARDED_BY(mutex_) = kNoDeadlineNs;  // When the thread ends at the latest.

  std::thread thread_;
};

}  // namespace gemmd
