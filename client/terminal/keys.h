// SPDX-License-Identifier: Apache-2.0
//
// A terminal whose keys are read one by one, and how large it is.
#pragma once

#include <termios.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include "absl/time/time.h"

namespace gemmd {

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

}  // namespace gemmd
