// SPDX-License-Identifier: Apache-2.0
//
// How far something has come, on a line of a terminal.
#pragma once

#include <cstdio>
#include <string>

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

}  // namespace gemmd
