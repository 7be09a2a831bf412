// SPDX-License-Identifier: Apache-2.0
//
// The daemon's log. Each event is one line of key=value pairs, `event=` first, and is written with
// spdlog. Only this file knows the format of a line, text or JSON. LogSink takes the lines and
// never makes a caller wait for the reader of the log. The audit log is a second log, of the calls
// and their results.
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

// Whether a text is a JSON number.
bool IsNumber(std::string_view text);

// The fields of "event=x key=word key="some text"", in their order. A line of another form, for
// example from a library, is one field: message.
std::vector<LogField> FieldsOf(std::string_view pairs);

// The value of a field; empty if there is none.
std::string_view ValueOf(const std::vector<LogField>& fields, std::string_view key);

// The whole line with its line end. In JSON, numbers are numbers, everything else is a string, and
// invalid UTF-8 becomes U+FFFD.
std::string FormatLine(LogFormat format, absl::Time time, std::string_view level,
                       std::string_view pairs);

// `value` as written in a log line: bare if it is a plain word, otherwise in double quotes with
// quotes, backslashes and control characters escaped, so that a caller's text cannot forge a line.
// A text that looks like a number is quoted too: unquoted numbers are numbers.
std::string LogValue(std::string_view value);

// The destination of log lines: a file, or standard error, with any reader, however slow.
class LogFile {
 public:
  // Appends to the file, and creates it and its folder if missing. Errors: InvalidArgument if it
  // cannot be opened.
  static absl::StatusOr<LogFile> Open(const std::string& path);

  // Standard error of any kind. Borrows it.
  static LogFile StandardError() { return Of(2); }

  // Borrows the descriptor.
  static LogFile Of(int descriptor);

  // A file written by this function, with the contract of TryWrite; it may take any time.
  using Write = std::function<std::optional<size_t>(std::string_view text)>;
  static LogFile Stalling(Write write) { return {-1, {}, Kind::kStalls, std::move(write)}; }

  // Whether a write may take any time, as on a disk, where this cannot be known beforehand.
  bool may_stall() const { return kind_ == Kind::kStalls; }

  // Writes as much of the text as possible without waiting, and returns its length: 0 if the reader
  // is stalled. nullopt if the file cannot be written: the reader is gone, or the disk is full.
  std::optional<size_t> TryWrite(std::string_view text) const;

  int descriptor() const { return descriptor_; }

  // That of Open; otherwise empty.
  const std::string& path() const { return path_; }

 private:
  enum class Kind { kNeverWaits, kSocket, kMayWait, kStalls };

  LogFile(int descriptor, FileDescriptor owned, Kind kind, Write write = nullptr)
      : descriptor_(descriptor), owned_(std::move(owned)), kind_(kind), write_(std::move(write)) {}

  int descriptor_;
  FileDescriptor owned_;
  Kind kind_;
  Write write_;  // Null: `descriptor_` is written.
  std::string path_;
};

// Limits repeated lines: the first few in each second are logged, then the number of the others.
// Lines are the same if their event and reason are the same. Not safe for threads.
class RepeatLimit {
 public:
  struct Limits {
    int64_t lines = 10;  // In each window.
    int64_t window_ns = 1'000'000'000;
    // Max kinds of lines that are distinguished; beyond that, all lines of one event are one kind.
    size_t kinds = 256;
  };
  struct Suppressed {
    std::string event;
    std::string reason;
    int64_t lines = 0;
  };

  RepeatLimit() = default;
  explicit RepeatLimit(const Limits& limits) : limits_(limits) {}

  // Whether to write a line of that kind now.
  bool Admit(std::string_view event, std::string_view reason, int64_t now_ns);

  // The suppressed lines of windows that have ended; each window once.
  std::vector<Suppressed> TakeEnded(int64_t now_ns);

  // When TakeEnded next has something; kNoDeadlineNs if nothing was suppressed.
  int64_t next_end_ns() const;

 private:
  struct Window {
    int64_t end_ns = 0;
    int64_t lines = 0;  // Including suppressed lines.
  };
  using Kind = std::pair<std::string, std::string>;

  int64_t left_out(const Window& window) const { return window.lines - limits_.lines; }

  const Limits limits_ = {};
  std::map<Kind, Window> windows_;
};

struct LogCounts {
  int64_t lost = 0;        // The reader was too slow or gone.
  int64_t suppressed = 0;  // They repeated too often.
  int64_t audit_lost = 0;  // Lines of the audit log that could not be written.
};

// Logging never waits for the reader of the log: lines are written at once if possible, otherwise
// they are kept, up to a limit, for the log's own thread. Lines beyond the limit are lost, and
// counted. Repeated warnings and errors are limited; the log reports how many were suppressed.
//
// It is unknown whether a disk takes a line at once, so that thread writes all lines of a file.
// Logging a line waits a few milliseconds for the thread, so that the line is in the file before
// its consequences are visible; after a wait that was too short, no line waits until the disk has
// taken one.
class LogSink final : public spdlog::sinks::sink {
 public:
  struct Options {
    LogFormat format = LogFormat::kText;
    size_t max_buffered_bytes = size_t{1} << 20;
    RepeatLimit::Limits repeats;
  };

  // Borrows the clock.
  LogSink(LogFile file, const Options& options, const Clock& clock);
  ~LogSink() override { Close(absl::ZeroDuration()); }

  // Reports suppressed lines, and waits at most `patience` until everything is written; the rest is
  // lost. Later lines are written only if possible at once, without a limit on repeats; the clock
  // may be destroyed then.
  void Close(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

  // Opens the path of the file again, if it has one, after another program has renamed the file.
  // The sink's own thread does that as soon as it can, between two lines; if the path cannot be
  // opened, the old file stays, as the process's log then says. Threads: any.
  void Reopen() ABSL_LOCKS_EXCLUDED(mutex_);

  // Threads: any.
  LogCounts counts() const { return {.lost = lost_, .suppressed = suppressed_}; }

  // Threads: any.
  void log(const spdlog::details::log_msg& message) override ABSL_LOCKS_EXCLUDED(mutex_);

  // No line waits for a flush, and the format of lines is that of FormatLine.
  void flush() override {}
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Add(std::string line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Buffer(std::string line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteBuffered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For the thread: releases the lock while it writes.
  void WriteUnlocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OpenAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeWritten(std::optional<size_t> written) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitWritten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndCutLine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellLost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellSuppressed(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropBuffered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string OwnLine(const std::string& pairs) const;
  void Wake() const;
  void Rest(int64_t until_ns, int awaited_file) const;

  const Options options_;
  const Clock& clock_;
  const FileDescriptor wake_;
  std::atomic<int64_t> lost_ = 0;
  std::atomic<int64_t> suppressed_ = 0;

  Mutex mutex_;
  LogFile file_ ABSL_GUARDED_BY(mutex_);             // Replaced by the thread alone.
  bool is_renamed_ ABSL_GUARDED_BY(mutex_) = false;  // Reopen was called.
  RepeatLimit repeats_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> buffered_ ABSL_GUARDED_BY(mutex_);  // The first without its written part.
  size_t buffered_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Lines that have been added to the buffer, and lines that have been removed from it.
  int64_t added_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t removed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_stalled_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t lost_untold_ ABSL_GUARDED_BY(mutex_) = 0;
  // Buffered lines that report lost ones: their number in `added_`, and how many lines each
  // reports.
  std::deque<std::pair<int64_t, int64_t>> reports_ ABSL_GUARDED_BY(mutex_);
  bool is_begun_ ABSL_GUARDED_BY(mutex_) = false;  // A part of the first line is written.
  bool is_cut_ ABSL_GUARDED_BY(mutex_) = false;    // The rest of the last written line is lost.
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t end_ns_ ABSL_GUARDED_BY(mutex_) = kNoDeadlineNs;  // Latest end of the thread.

  std::thread thread_;
};

// The audit log: a line of JSON for each product, for each other call that has ended, and for each
// refused call. It contains no operands and no tokens.
//
// The sink limits the lines per second for work done, and separately, with the same limit, for
// refusals, so that refusals never displace work done. A caller, or the peer of refused calls, has
// at most as many lines as are left in that second, so that one alone has half, and others find
// room. Of the refusals of one peer, the first of each second are written. All other lines are
// summed by caller or peer, and a line of the next second has the sum. The daemon's own log reports
// lines that could not be written, as on a full disk, at most once a second.
class AuditSink final : public spdlog::sinks::sink {
 public:
  // Borrows the clock.
  AuditSink(LogFile file, int64_t lines_per_second, const Clock& clock);

  void Close(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

  // As LogSink::Reopen.
  void Reopen() { sink_.Reopen(); }

  // Lines that could not be written. Threads: any.
  int64_t lost() const { return sink_.counts().lost; }

  void log(const spdlog::details::log_msg& message) override ABSL_LOCKS_EXCLUDED(mutex_);
  void flush() override {}
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

 private:
  // The lines of a second, by who caused them. Not safe for threads.
  class Budget {
   public:
    // `of_one`: at most so many lines of one caller or peer.
    Budget(int64_t lines, int64_t of_one) : lines_(lines), of_one_(of_one) {}

    // Whether to write another line of `who` in this second.
    bool Admit(const std::string& who);

    // Begins a second. Returns how many lines of whom were not written in the last.
    std::vector<std::pair<std::string, int64_t>> TakeSums();

   private:
    struct Part {
      int64_t written = 0;
      int64_t summed = 0;
    };
    // Beyond so many callers or peers in a second, the others have one part together, of no name.
    static constexpr size_t kMaxParts = 256;

    const int64_t lines_;
    const int64_t of_one_;
    int64_t written_ = 0;
    std::map<std::string, Part> parts_;
  };

  // The lines that sum up a second. Begins the next.
  std::vector<std::string> TakeSums() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(const std::vector<std::string>& lines);

  const Clock& clock_;
  LogSink sink_;
  Mutex mutex_;
  int64_t second_ends_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  Budget done_ ABSL_GUARDED_BY(mutex_);
  Budget refused_ ABSL_GUARDED_BY(mutex_);
  int64_t warned_of_ ABSL_GUARDED_BY(mutex_) = 0;  // The part of lost() that was reported.
};

// Makes the sink the audit log of the process, until a call with null.
void SetAuditLog(std::shared_ptr<AuditSink> sink);

// Null if there is no audit log. Threads: any.
std::shared_ptr<spdlog::logger> AuditLog();

}  // namespace gemmd
