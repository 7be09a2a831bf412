// SPDX-License-Identifier: Apache-2.0
//
// Where a program of the command line reads and writes, and what its exit codes mean.
#pragma once

#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

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

// Prints the status of a call to the server and says what it means.
ExitCode FailCall(const Console& console, const absl::Status& status);

// Prints the status of something done here and says kUsage.
ExitCode FailLocally(const Console& console, const absl::Status& status);

}  // namespace gemmd
