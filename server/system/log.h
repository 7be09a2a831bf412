// SPDX-License-Identifier: Apache-2.0
//
// The daemon's log. Each event is one line of key=value pairs, `event=` first, and is written with
// spdlog; a line's form, as text or as JSON, is known here alone. LogSink takes the lines and never
// makes a caller wait for whoever reads them. The audit log is a second log, of what callers asked
// for and got.
#pragma once

#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/system/clock.h"
#include "server/system/files.h"
#include "server/system/mutex.h"

namespace gemmd {

enum class LogFormat : uint8_t {
  kText,  // time=2026-11-22T10:00:00.000000+01:00 level=info event=serving
  kJson   // {"time":"2026-11-22T10:00:00.000000+01:00","level":"info","event":"serving"}
};

struct LogField {
  std::string_view key;
  std::string value;  // Unescaped.
  bool is_number = false;
};

// Whether a text is a number as JSON writes them.
bool IsNumber(std::string_view text);

// The fields of "event=x key=word key="some text"", in their order. A line of any other form, as a
// library may log it, is one field: message.
std::vector<LogField> FieldsOf(std::string_view pairs);

// The value of a field; empty where there is none.
std::string_view ValueOf(const std::vector<LogField>& fields, std::string_view key);

// The whole line with its end. In JSON, numbers are numbers, everything else is a string, and what
// is no UTF-8 becomes U+FFFD.
std::string FormatLine(LogFormat format, absl::Time time, std::string_view level,
                       std::string_view pairs);

// `value` as it stands in a log line: bare where it is a plain word, otherwise in double quotes
// with quotes, backslashes and control characters escaped, so that a caller's text cannot forge a
// line. A text that reads like a number is quoted too: bare numbers are numbers.
std::string LogValue(std::string_view value);

// Where log lines go: a file, or standard error, whoever reads it and however slowly.
class LogFile {
 public:
  // Appends to the file, and makes it and its folder where they are missing.
  // Errors: InvalidArgument where it cannot be opened.
  static absl::StatusOr<LogFile> Open(const std::string& path);

  // Whatever standard error is. Borrows it.
  static LogFile StandardError() { return Of(2); }

  // Borrows the descriptor.
  static LogFile Of(int descriptor);

  // One that is written by this function, as TryWrite is, which may take any time.
  using Write = std::function<std::optional<size_t>(std::string_view text)>;
  static LogFile Stalling(Write write) { return {-1, {}, Kind::kStalls, std::move(write)}; }

  // Whether a write may take any time: that of a disk does, and nothing tells beforehand.
  bool may_stall() const { return kind_ == Kind::kStalls; }

  // Writes as much of the text as is taken at once, and returns how much that is: 0 where whoever
  // reads stands still. Nothing where the file cannot be written: the reader has gone, no space is
  // left on the disk.
  std::optional<size_t> TryWrite(std::string_view text) const;

  int descriptor() const { return descriptor_; }

 private:
  enum class Kind { kNeverWaits, kSocket, kMayWait, kStalls };

  LogFile(int descriptor, FileDescriptor owned, Kind kind, Write write = nullptr)
      : descriptor_(descriptor), owned_(std::move(owned)), kind_(kind), write_(std::move(write)) {}

  int descriptor_;
  FileDescriptor owned_;
  Kind kind_;
  Write write_;  // Null: `descriptor_` is written.
};

// How often a line that repeats is logged: the first few in each second, then how many there were.
// Lines are the same if event and reason are. Not safe for threads.
class RepeatLimit {
 public:
  struct Limits {
    int64_t lines = 10;  // In each window.
    int64_t window_ns = 1'000'000'000;
    // How many kinds of lines are told apart; beyond, all of one event count as one.
    size_t kinds = 256;
  };
  struct Suppressed {
    std::string event;
    std::string reason;
    int64_t lines = 0;
  };

  RepeatLimit() = default;
  explicit RepeatLimit(const Limits& limits) : limits_(limits) {}

  // Whether a line of that kind is to be written now.
  bool Admit(std::string_view event, std::string_view reason, int64_t now_ns);

  // What was left out in windows that have ended; each window once.
  std::vector<Suppressed> TakeEnded(int64_t now_ns);

  // When TakeEnded next has something; kNoDeadlineNs where nothing was left out.
  int64_t next_end_ns() const;

 private:
  struct Window {
    int64_t end_ns = 0;
    int64_t lines = 0;  // Those left out included.
  };
  using Kind = std::pair<std::string, std::string>;

  int64_t left_out(const Window& window) const { return window.lines - limits_.lines; }

  const Limits limits_ = {};
  std::map<Kind, Window> windows_;
};

struct LogCounts {
  int64_t lost = 0;        // The reader was too slow, or had gone.
  int64_t suppressed = 0;  // They repeated too often.
  int64_t audit_lost = 0;  // Lines of the audit log, for whatever reason.
};

// Nothing that logs ever waits for whoever reads the log: lines are
// written at once where they are taken at once, otherwise they are kept, up to a bound, for a
// thread of the log's own. Lines beyond the bound are lost, and counted. Warnings and errors that
// repeat are limited; the log says how many were left out.
//
// Nobody knows whether a disk takes a line at once, so that thread writes all lines of a file. A
// line waits for it for a few milliseconds, so that it is there when what follows it is seen; once
// a wait was too short, no line waits until the disk has taken one.
class LogSink final : public spdlog::sinks::sink {
 public:
  struct Options {
    LogFormat format = LogFormat::kText;
    size_t max_kept_bytes = size_t{1} << 20;
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

// The audit log: JSON, a line for each product, for each call of another kind that has ended, and
// for each that was refused. It has no operands and no tokens.
//
// The sink bounds how many lines a second are written of what was done, and as many of what was
// refused, so that refusals never take the place of what was done; the next second's first line
// says how many were not. Of the refusals of one peer, or of one identity where the peer is not
// known, the first of each second are written, and a later line has the sum of the others. What was
// lost for any reason, as on a full disk, the daemon's own log says, once a second at most.
class AuditSink final : public spdlog::sinks::sink {
 public:
  // Borrows the clock.
  AuditSink(LogFile file, int64_t lines_per_second, const Clock& clock);

  void Close(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

  // Lines that were not written, for whatever reason. Threads: any.
  int64_t lost() const { return left_out_ + sink_.counts().lost; }

  void log(const spdlog::details::log_msg& message) override ABSL_LOCKS_EXCLUDED(mutex_);
  void flush() override {}
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

 private:
  void Tell(const std::string& pairs);
  void TellSums(const std::vector<RepeatLimit::Suppressed>& sums);

  const int64_t lines_per_second_;
  const Clock& clock_;
  LogSink sink_;
  std::atomic<int64_t> left_out_ = 0;
  Mutex mutex_;
  int64_t second_ends_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;     // Lines of this second.
  int64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;  // Likewise.
  RepeatLimit refusals_ ABSL_GUARDED_BY(mutex_);
  int64_t untold_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t warned_of_ ABSL_GUARDED_BY(mutex_) = 0;  // How much of lost().
};

// Makes the sink the audit log of the process, until the sink is given back with null.
void SetAuditLog(std::shared_ptr<AuditSink> sink);

// Null where there is no audit log. Threads: any.
std::shared_ptr<spdlog::logger> AuditLog();

}  // namespace gemmd
