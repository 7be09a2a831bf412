// SPDX-License-Identifier: Apache-2.0
//
// gemmctl top.
#include <unistd.h>

#include <string>

#include "absl/time/clock.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/top_view.h"

namespace gemmd {
namespace {

// Home, and nothing below: a terminal shows one view in the place of the last.
constexpr char kClearTerminal[] = "\x1b[H\x1b[J";

}  // namespace

ExitCode RunTop(const GlobalFlags& global, const TopFlags& flags, const Console& console) {
  const auto interval = ParseTimeout(flags.interval, "--interval");
  if (!interval.ok()) return FailLocally(console, interval.status());
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const bool is_terminal = isatty(fileno(console.out)) == 1;
  auto before = client->GetStatistics();
  if (!before.ok()) return FailCall(console, before.status());
  while (true) {
    absl::SleepFor(*interval);
    auto now = client->GetStatistics();
    if (!now.ok()) return FailCall(console, now.status());
    const Rates rates = RatesBetween(*before, *now);
    if (global.json) {
      console.Print(JsonLine(TopJson(*now, rates)));
    } else {
      if (is_terminal && !flags.once) console.Print(kClearTerminal);
      console.Print(TopText(global.address, *now, rates));
    }
    // Also ends where nobody reads any more.
    if (std::fflush(console.out) != 0) return ExitCode::kUsage;
    if (flags.once) return ExitCode::kOk;
    if (!global.json && !is_terminal) console.Print("\n");
    before = std::move(now);
  }
}

}  // namespace gemmd
