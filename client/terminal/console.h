// SPDX-License-Identifier: Apache-2.0
//
// Where a program of the command line reads and writes, what its exit codes mean, and, on a
// terminal, its keys and the progress of what takes long.
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
  kUnreachable = 3,   // No server, a server that takes no requests now, or no answer in time.
  kVerification = 4,  // The server's result is wrong.
  kInconclusive = 5,  // The measurement says too little.
};

struct Console {
  std::FILE* in;
  std::FILE* out;       // Results.
  std::FILE* err;       // Messages; results too where a matrix goes to `out`.
  const char* program;  // "gemmctl".
  bool errors_are_json = false;

  void Print(absl::string_view text) const { std::fwrite(text.data(), 1, text.size(), out); }

  // "gemmctl: INVALID_ARGUMENT: a.data: got ...", or {"error": {"code", "message"}} in a line.
  void PrintError(const absl::Status& status) const;
};

// The status with "PREFIX: " before its message. OK stays OK.
absl::Status Prefixed(absl::string_view prefix, const absl::Status& status);

// Prints the status of a call to the server and says what it means.
ExitCode FailCall(const Console& console, const absl::Status& status);

// Prints the status of something done here and says kUsage.
ExitCode FailLocally(const Console& console, const absl::Status& status);

// Columns and lines of a terminal; absent where `file` is none.
struct TerminalSize {
  int columns = 0;
  int lines = 0;
};
std::optional<TerminalSize> SizeOfTerminal(std::FILE* file);

// Keys without an end of line and without an echo. The signals that end a program are read here
// too, in the threads that are started while this is there as well, so that the terminal gets its
// settings back before the program ends.
class TerminalKeys {
 public:
  // Null where `in` is no terminal.
  static std::unique_ptr<TerminalKeys> Open(std::FILE* in);
  ~TerminalKeys();  // Gives the terminal its settings back.
  TerminalKeys(const TerminalKeys&) = delete;
  TerminalKeys& operator=(const TerminalKeys&) = delete;

  // The next key; kEnd for a signal and where no key will come any more; absent after `limit`.
  static constexpr char kEnd = 0;
  std::optional<char> Wait(absl::Duration limit);

 private:
  TerminalKeys(int in, const termios& settings);

  const int in_;
  const termios settings_;  // As they were.
  sigset_t blocked_ = {};   // As it was.
  int signals_ = -1;
};

// "put w.npy  [####      ]   45 %  1.2 GiB of 2.7 GiB  1.1 GiB/s  1.4 s left".
std::string ProgressText(const std::string& what, const TransferProgress& progress);

// One line that is written over, from the first second on; nothing where `err` is no terminal.
class ProgressLine {
 public:
  ProgressLine(std::FILE* err, std::string what);
  ~ProgressLine();  // Takes the line away.
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(const TransferProgress& progress);

 private:
  std::FILE* const err_;
  const std::string what_;
  const bool is_terminal_;
  bool is_shown_ = false;
};

// Calls of one kind, one after the other, and for how long the first of them has been under way.
struct CallCount {
  int64_t done = 0;
  int64_t total = 1;
  absl::Duration elapsed = {};
};

// "multiply  [####      ]  call 5 of 10  4.1 s  5.2 s left"; of the first call, how long it takes.
std::string CallsText(const std::string& what, const CallCount& calls);

// The same line for calls, which take long without a word: it is written again ten times a second,
// by a thread of its own.
class CallProgress {
 public:
  CallProgress(std::FILE* err, std::string what, int64_t total);
  ~CallProgress();  // Takes the line away.
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
  std::thread thread_;  // Where `err` is a terminal.
};

}  // namespace gemmd
