// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/server_check.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/terminal/text_table.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {
namespace {

constexpr std::pair<absl::string_view, v1::VerifyMode> kModes[] = {
    {"none", v1::VERIFY_MODE_NONE},
    {"sampled", v1::VERIFY_MODE_SAMPLED},
    {"checksum", v1::VERIFY_MODE_CHECKSUM},
    {"duplicate", v1::VERIFY_MODE_DUPLICATE}};

absl::string_view NameOfMode(v1::VerifyMode mode) {
  for (const auto& [name, value] : kModes) {
    if (value == mode) return name;
  }
  return "unknown";
}

}  // namespace

absl::StatusOr<ServerCheck> ParseServerCheck(absl::string_view text) {
  if (text.empty()) return ServerCheck();
  for (const auto& [name, mode] : kModes) {
    if (text == name) return ServerCheck{.mode = mode};
  }
  absl::string_view rate_text = text;
  ServerCheck check = {.mode = v1::VERIFY_MODE_SAMPLED};
  if (absl::ConsumePrefix(&rate_text, "sampled:") && absl::SimpleAtod(rate_text, &check.rate) &&
      check.rate > 0 && check.rate <= 1) {
    return check;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--server-verify: got ", text,
                   ", want none, sampled, sampled:RATE with a rate above 0 and at most 1, checksum "
                   "or duplicate"));
}

CommandOption AddServerCheck(CLI::App& app, std::string& text) {
  return AddOption(app, "--server-verify", text,
                   "Have the server check D before it answers: sampled[:RATE], by elements drawn "
                   "at random that it computes again; checksum, by sums of all rows; duplicate, by "
                   "computing D twice; or none (default: what the server does by itself). A wrong "
                   "D is not answered: exit code 4")
      .TypeName("MODE")
      .Check([](const std::string& value) {
        const auto check = ParseServerCheck(value);
        return check.ok() ? std::string() : std::string(check.status().message());
      });
}

std::string ServerCheckText(const v1::Verification& check, int64_t total_ns) {
  const absl::string_view mode = NameOfMode(check.mode());
  if (check.outcome() != v1::VERIFY_OUTCOME_PASSED) {
    return absl::StrCat("\nchecked   not by the server (", mode, "): ", check.reason(), "\n");
  }
  std::string text = absl::StrFormat("\nchecked   by the server, %s: %s elements are right", mode,
                                     FormatCount(check.elements_checked()));
  if (!check.kernel().empty()) {
    absl::StrAppend(&text, ", again by ", check.kernel(), " on ", check.device());
  }
  absl::StrAppendFormat(
      &text, "; a wrong one%s is missed with probability %.6g\n",
      check.least_error() > 0 ? absl::StrFormat(" (by more than %.3g)", check.least_error()) : "",
      check.miss_probability());
  absl::StrAppendFormat(&text, "          cost %.4g of the product's operations, %s of %s",
                        check.cost(), FormatNanoseconds(check.verify_ns()),
                        FormatNanoseconds(total_ns));
  if (check.wrong_answers() > 0) {
    absl::StrAppend(&text, "; ", check.wrong_answers(), " wrong answers before it");
  }
  return text + "\n";
}

}  // namespace gemmd
