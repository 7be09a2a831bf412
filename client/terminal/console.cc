// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/console.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace gemmd {

namespace {

std::string JsonOf(absl::string_view code, absl::string_view message) {
  const nlohmann::ordered_json error = {
      {"error", {{"code", std::string(code)}, {"message", std::string(message)}}}};
  // Words of a server may be in no known encoding.
  return error.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

void Console::PrintError(const absl::Status& status) const {
  const std::string code = absl::StatusCodeToString(status.code());
  const std::string text = errors_are_json
                               ? absl::StrCat(JsonOf(code, status.message()), "\n")
                               : absl::StrCat(program, ": ", code, ": ", status.message(), "\n");
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
