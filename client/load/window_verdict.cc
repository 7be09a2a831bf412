// SPDX-License-Identifier: Apache-2.0
#include "client/load/window_verdict.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

// Share of the calls offered in a window that need not end within it. Calls that are due less than
// the objective's latency before its end, and one more at its edge, need not either.
constexpr double kMostShortfall = 0.01;

// What a server answers whatever its load.
bool IsOfAnyLoad(absl::StatusCode code) {
  constexpr std::array kCodes = {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
                                 absl::StatusCode::kPermissionDenied,
                                 absl::StatusCode::kUnimplemented,
                                 absl::StatusCode::kUnauthenticated};
  return std::find(kCodes.begin(), kCodes.end(), code) != kCodes.end();
}

std::string FailuresText(const StepResult& window) {
  std::string text = absl::StrCat("failed calls: ", FailedCodesText(window.tally.calls_by_code));
  if (!window.first_messages.empty()) {
    absl::StrAppend(&text, "; ", window.first_messages.begin()->second);
  }
  return text;
}

// Why no other rate would hold either; empty where one may.
std::string WhyHopeless(const StepResult& window, const VerifierCounts& verified) {
  if (verified.wrong > 0) {
    return absl::StrCat("wrong answers: ", verified.wrong, " of ", verified.checked, " checked");
  }
  const CallsByCode& codes = window.tally.calls_by_code;
  int64_t of_any_load = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    if (IsOfAnyLoad(static_cast<absl::StatusCode>(i))) of_any_load += codes[i];
  }
  return window.tally.ok() == 0 && of_any_load > 0 ? FailuresText(window) : "";
}

// Why the window breaks the rule; empty where it does not.
std::string WhyFails(const SloObjective& objective, const StepResult& window) {
  const Tally& tally = window.tally;
  if (tally.failed() > 0) return FailuresText(window);
  if (window.unsent > 0) return absl::StrCat(FormatCount(window.unsent), " calls never sent");
  if (tally.ok() == 0) return "no call";
  const int64_t got_ns = tally.latency.ValueAt(objective.fraction);
  if (got_ns > objective.limit_ns) {
    return absl::StrCat(FormatNanoseconds(got_ns), " where ", FormatNanoseconds(objective.limit_ns),
                        " is allowed");
  }
  if (tally.ok() < LeastCalls(objective)) {
    return absl::StrCat("only ", tally.ok(), " calls, ", LeastCalls(objective), " are needed");
  }
  const double limit_s = static_cast<double>(objective.limit_ns) * 1e-9;
  const double forgiven =
      std::max(kMostShortfall * window.offered * window.window_s, window.offered * limit_s + 1);
  if (!((window.offered - window.rate) * window.window_s <= forgiven)) {
    return absl::StrFormat("%.1f/s of %.1f/s offered", window.rate, window.offered);
  }
  return "";
}

// Why a window that fails is the client's fault; empty where it is not.
std::string WhyClient(const SloObjective& objective, const StepResult& window) {
  if (window.IsClientBusy()) {
    return absl::StrFormat("the client kept %.1f of %.3g cores busy", window.client_cores,
                           window.usable_cores);
  }
  const Tally& tally = window.tally;
  if (tally.latency.ValueAt(objective.fraction) <= objective.limit_ns) return "";
  // Latencies would keep to the limit if every call had been sent as soon as it could be; or so
  // many calls were late by half of the limit that the server got bursts of them.
  const int64_t late_ns = tally.send_error.ValueAt(objective.fraction);
  const bool would_hold = tally.punctual.ValueAt(objective.fraction) <= objective.limit_ns;
  if (!would_hold && 2 * late_ns <= objective.limit_ns) return "";
  return absl::StrCat("the client sent calls up to ", FormatNanoseconds(late_ns), " late");
}

}  // namespace

absl::string_view WindowVerdictName(WindowVerdict verdict) {
  switch (verdict) {
    case WindowVerdict::kHolds: return "holds";
    case WindowVerdict::kFails: return "fails";
    case WindowVerdict::kDiscarded: return "discarded";
    case WindowVerdict::kHopeless: return "hopeless";
  }
  return "";
}

SloWindow JudgeWindow(const SloObjective& objective, double rate, const StepResult& window,
                      const VerifierCounts& verified) {
  if (const std::string why = WhyHopeless(window, verified); !why.empty()) {
    return {rate, WindowVerdict::kHopeless, why};
  }
  const std::string why = WhyFails(objective, window);
  if (why.empty()) {
    return {rate, WindowVerdict::kHolds,
            FormatNanoseconds(window.tally.latency.ValueAt(objective.fraction))};
  }
  const std::string client = WhyClient(objective, window);
  if (client.empty()) return {rate, WindowVerdict::kFails, why};
  return {rate, WindowVerdict::kDiscarded, absl::StrCat("the client is the limit: ", client)};
}

std::string WindowRule(const SloObjective& objective) {
  return absl::StrFormat(
      "a window holds when it has at least %d calls, the latency from the intended send meets %s, "
      "no call fails or stays unsent, no answer is wrong, and all that was offered has ended but "
      "for %.0f %% or what is due within the allowed latency; a window that fails where the client "
      "is the limit (over %.0f %% of its cores busy, or calls sent late) is discarded",
      LeastCalls(objective), objective.text, 100 * kMostShortfall, 100 * kMostClientShare);
}

}  // namespace gemmd
