// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/console.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace gemmd {

void Console::PrintError(const absl::Status& status) const {
  const std::string text = absl::StrCat(program, ": ", absl::StatusCodeToString(status.code()),
                                        ": ", status.message(), "\n");
  std::fwrite(text.data(), 1, text.size(), err);
}

ExitCode FailCall(const Console& console, const absl::Status& status) {
  console.PrintError(status);
  const bool is_unreachable = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return is_unreachable ? ExitCode::kUnreachable : ExitCode::kRefused;
}

ExitCode FailLocally(const Console& console, const absl::Status& status) {
  console.PrintError(status);
  return ExitCode::kUsage;
}

}  // namespace gemmd
