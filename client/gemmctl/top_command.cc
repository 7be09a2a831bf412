// SPDX-License-Identifier: Apache-2.0
//
// gemmctl top.
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/top_view.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kHelp[] =
    "Shows devices, queues, rates and durations of the last interval until Ctrl-C; bounds of "
    "durations are those of the server's buckets.\n\n"
    "Examples:\n"
    "  gemmctl top\n"
    "  gemmctl top --once --interval 5s\n"
    "  gemmctl top --json | jq --unbuffered '.rates[].products_per_second'";

struct TopFlags {
  bool once = false;
  std::string interval = "1s";  // In the form of GlobalFlags::timeout.
};

// Moves home and clears what is below: a terminal shows one view in the place of the last.
constexpr char kClearTerminal[] = "\x1b[H\x1b[J";

// A server that needs longer is shown as one without an answer, until it has one.
constexpr absl::Duration kAnswerLimit = absl::Seconds(5);

// Whether a server that is starting anew, or is out of reach for a while, gives such a status.
bool MayAnswerLater(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// Precondition: `before` has a value where `now` is OK.
std::string Show(const GlobalFlags& global, const std::optional<v1::GetStatisticsResponse>& before,
                 const absl::StatusOr<v1::GetStatisticsResponse>& now) {
  if (!now.ok()) {
    return global.json ? JsonLine(NoAnswerJson(now.status()))
                       : NoAnswerText(global.address, now.status());
  }
  const ActivityRates rates = RatesBetween(*before, *now);
  return global.json ? JsonLine(TopJson(*now, rates)) : TopText(global.address, *now, rates);
}

ExitCode RunTop(const GlobalFlags& global, const TopFlags& flags, const Console& console) {
  const auto interval = ParseTimeout(flags.interval, "--interval");
  if (!interval.ok()) return FailLocally(console, interval.status());
  auto client = Connect(global, kAnswerLimit);
  if (!client.ok()) return FailLocally(console, client.status());
  const bool is_terminal = isatty(fileno(console.out)) == 1;
  std::optional<v1::GetStatisticsResponse> before;
  while (true) {
    auto now = client->GetStatistics();
    if (!now.ok() && (flags.once || !MayAnswerLater(now.status()))) {
      return FailCall(console, now.status());
    }
    if (!now.ok() || before.has_value()) {
      if (is_terminal && !global.json && !flags.once) console.Print(kClearTerminal);
      console.Print(Show(global, before, now));
      // The command also ends when nobody reads its output any more.
      if (std::fflush(console.out) != 0) return ExitCode::kUsage;
      if (flags.once) return ExitCode::kOk;
      if (!global.json && !is_terminal) console.Print("\n");
    }
    if (now.ok()) before = *std::move(now);
    absl::SleepFor(*interval);
  }
}

CommandRun AddTop(CLI::App& app) {
  auto flags = std::make_unique<TopFlags>();
  SetFooter(app, kHelp);
  AddOption(app, "--interval", flags->interval,
            "Time between two views, which rates are taken over")
      .ShowDefault()
      .TypeName("TIME");
  AddFlag(app, "--once", flags->once, "Show one view and exit");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunTop(global, *flags, console);
  };
}

}  // namespace

constexpr Command kTopCommand = {"top", "Watch the server's devices, queues and rates", AddTop};

}  // namespace gemmd
