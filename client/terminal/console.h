// SPDX-License-Identifier: Apache-2.0
//
// Input, output and exit codes of a command-line program; on a terminal, also its keys and progress
// lines.
#pragma once

#include <termios.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gemmd/tensor.h"

namespace gemmd {

enum class ExitCode {
  kOk = 0,
  kRefused = 1,       // The server refused or failed; health: not serving.
  kUsage = 2,         // Bad usage, or a local file that cannot be used.
  kUnreachable = 3,   // No server, a server that is not serving now, or no answer in time.
  kVerification = 4,  // The server's result is wrong.
  kInconclusive = 5,  // The measurement is inconclusive.
};

struct Console {
  std::FILE* in;
  std::FILE* out;       // Results.
  std::FILE* err;       // Messages; also results if a matrix goes to `out`.
  const char* program;  // "gemmctl".
  bool errors_are_json = false;

  void Print(absl::string_view text) const { std::fwrite(text.data(), 1, text.size(), out); }

  // "gemmctl: INVALID_ARGUMENT: a.data: got ...", or {"error": {"code", "message"}} on one line.
  void PrintError(const absl::Status& status) const;
};

// The value of an environment variable, or `otherwise` if it is unset or empty. Call it while there
// is only one thread.
std::string Variable(const char* name, const char* otherwise = "");

// The exit code of a program whose results on standard output are complete: `code`, or kUsage if
// they could not be written, for example because the disk is full.
ExitCode EndOutput(ExitCode code);

// The status with "PREFIX: " before its message. OK stays OK.
absl::Status Prefixed(absl::string_view prefix, const absl::Status& status);

// Prints the status of a call to the server and returns its exit code.
ExitCode FailCall(const Console& console, const absl::Status& status);

// Prints the status of a local operation and returns kUsage.
ExitCode FailLocally(const Console& console, const absl::Status& status);

// Size of a terminal; absent if `file` is not a terminal.
struct TerminalSize {
  int columns = 0;
  int lines = 0;
};
std::optional<TerminalSize> SizeOfTerminal(std::FILE* file);

// Reads single keys without echo. Also blocks the signals that end a program, in this thread and
// threads started during its lifetime, and reads them here, so that the terminal's settings are
// restored before the program ends.
class TerminalKeys {
 public:
  // Null if `in` is not a terminal.
  static std::unique_ptr<TerminalKeys> Open(std::FILE* in);
  ~TerminalKeys();  // Restores the terminal's settings.
  TerminalKeys(const TerminalKeys&) = delete;
  TerminalKeys& operator=(const TerminalKeys&) = delete;

  // The next key; kEnd for a signal or the end of input; absent after `limit`.
  static constexpr char kEnd = 0;
  std::optional<char> Wait(absl::Duration limit);

 private:
  TerminalKeys(int in, const termios& settings);

  const int in_;
  const termios settings_;  // The original settings.
  sigset_t blocked_ = {};   // The original signal mask.
  int signals_ = -1;
};

// "put w.npy  [####      ]   45 %  1.2 GiB of 2.7 GiB  1.1 GiB/s  1.4 s left".
std::string ProgressText(const std::string& what, const TransferProgress& progress);

// One line that is rewritten, shown after the first second; shows nothing if `err` is not a
// terminal.
class ProgressLine {
 public:
  ProgressLine(std::FILE* err, std::string what);
  ~ProgressLine();  // Erases the line.
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(const TransferProgress& progress);

 private:
  std::FILE* const err_;
  const std::string what_;
  const bool is_terminal_;
  bool is_shown_ = false;
};

// Consecutive calls of one kind, and the time since the first began.
struct CallCount {
  int64_t done = 0;
  int64_t total = 1;
  absl::Duration elapsed = {};
};

// "multiply  [####      ]  call 5 of 10  4.1 s  5.2 s left"; during the first call, only its
// elapsed time.
std::string CallsText(const std::string& what, const CallCount& calls);

// A progress line for calls, which report no progress themselves: a separate thread rewrites it ten
// times a second.
class CallProgress {
 public:
  CallProgress(std::FILE* err, std::string what, int64_t total);
  ~CallProgress();  // Erases the line.
  CallProgress(const CallProgress&) = delete;
  CallProgress& operator=(const CallProgress&) = delete;

  void EndCall() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Show() ABSL_LOCKS_EXCLUDED(mutex_);

  std::FILE* const err_;
  const std::string what_;
  const absl::Time begin_;
  absl::Mutex mutex_;
  CallCount calls_ ABSL_GUARDED_BY(mutex_);
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Runs if `err` is a terminal.
};

}  // namespace gemmd
