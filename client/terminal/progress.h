// SPDX-License-Identifier: Apache-2.0
//
// How far something has come, on a line of a terminal.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gemmd/tensor.h"

namespace gemmd {

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
