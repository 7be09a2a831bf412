// SPDX-License-Identifier: Apache-2.0
//
// gemmctl top.
#include <cstdio>
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
#include "client/terminal/keys.h"
#include "client/terminal/option.h"
#include "gemmd/v1/statistics.pb.h"

namespace gemmd {
namespace {

constexpr char kTopHelp[] =
    "Shows devices, queues, kernels, owners of tensors, rates and durations of the last interval; "
    "bounds of durations are those of the server's buckets, and busy counts the product that runs. "
    "On a terminal the view fits its columns and lines, and bars show products per second of the "
    "last minutes.\n\n"
    "Keys: q quits, s sorts by the next of --sort, b, p and w by busy, products and waiting, n as "
    "the server lists them, a shows or hides idle simulators.\n\n"
    "Examples:\n"
    "  gemmctl top\n"
    "  gemmctl top --sort busy --all\n"
    "  gemmctl top --once --interval 5s\n"
    "  gemmctl top --json | jq --unbuffered '.rates[].products_per_second'";

struct TopFlags {
  bool once = false;
  std::string interval = "1s";  // In the form of GlobalFlags::timeout.
  bool all = false;
  std::string sort = "server";
};

// Moves home and clears what is below: a terminal shows one view in the place of the last.
constexpr char kClearTerminal[] = "\x1b[H\x1b[J";

// A server that needs longer is shown as one without an answer, until it has one.
constexpr absl::Duration kAnswerLimit = absl::Seconds(5);

// Whether a server that is starting anew, or is out of reach for a while, gives such a status.
bool MayAnswerLater(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

TopSort SortNamed(const std::string& name) {
  if (name == "busy") return TopSort::kBusy;
  if (name == "products") return TopSort::kProducts;
  if (name == "waiting") return TopSort::kWaiting;
  return TopSort::kServer;
}

TopSort NextSort(TopSort sort) {
  switch (sort) {
    case TopSort::kServer: return TopSort::kBusy;
    case TopSort::kBusy: return TopSort::kProducts;
    case TopSort::kProducts: return TopSort::kWaiting;
    case TopSort::kWaiting: break;
  }
  return TopSort::kServer;
}

// What is asked of the server, shown, and changed by keys.
class TopWatch {
 public:
  TopWatch(const GlobalFlags& global, const TopFlags& flags, const Console& console)
      : global_(global),
        flags_(flags),
        console_(console),
        is_terminal_(!global.json && SizeOfTerminal(console.out).has_value()),
        is_live_(is_terminal_ && !flags.once) {
    options_.all = flags.all;
    options_.sort = SortNamed(flags.sort);
  }

  bool is_live() const { return is_live_; }

  // Takes an answer in. Whether there is something to show.
  bool Take(absl::StatusOr<v1::GetStatisticsResponse> now) {
    const bool is_first = now.ok() && !before_.has_value();
    if (now.ok() && !is_first) {
      rates_ = RatesBetween(*before_, *now);
      options_.history.Add(*now, rates_);
    }
    if (now.ok()) before_ = *now;
    now_ = std::move(now);
    // Rates need two answers.
    has_view_ = !is_first;
    return has_view_;
  }

  // False where nobody reads the output any more.
  bool Show() {
    if (is_live_) console_.Print(kClearTerminal);
    console_.Print(View());
    if (std::fflush(console_.out) != 0) return false;
    if (!flags_.once && !global_.json && !is_live_) console_.Print("\n");
    return true;
  }

  // Whether there is a view that the key changes.
  bool Press(char key) {
    switch (key) {
      case 'a': options_.all = !options_.all; break;
      case 'b': options_.sort = TopSort::kBusy; break;
      case 'p': options_.sort = TopSort::kProducts; break;
      case 'w': options_.sort = TopSort::kWaiting; break;
      case 'n': options_.sort = TopSort::kServer; break;
      case 's': options_.sort = NextSort(options_.sort); break;
      default: return false;
    }
    return has_view_;
  }

 private:
  std::string View() {
    if (!now_.ok()) {
      return global_.json ? JsonLine(NoAnswerJson(now_.status()))
                          : NoAnswerText(global_.address, now_.status());
    }
    if (global_.json) return JsonLine(TopJson(*now_, rates_));
    if (is_terminal_) {
      // It may have another size than it had.
      const TerminalSize size = SizeOfTerminal(console_.out).value_or(TerminalSize{80, 24});
      options_.columns = size.columns;
      // The cursor stands on the last one.
      if (is_live_) options_.lines = size.lines - 1;
    }
    return TopText(global_.address, *now_, rates_, options_);
  }

  const GlobalFlags& global_;
  const TopFlags& flags_;
  const Console& console_;
  const bool is_terminal_;
  const bool is_live_;  // One view in the place of the last.
  TopOptions options_;
  ActivityRates rates_;
  std::optional<v1::GetStatisticsResponse> before_;
  absl::StatusOr<v1::GetStatisticsResponse> now_;
  bool has_view_ = false;
};

// Waits for the next view, or shows the last one anew at each key. False where there is no next.
bool WaitForNext(absl::Duration interval, TerminalKeys* keys, TopWatch& watch) {
  if (keys == nullptr) {
    absl::SleepFor(interval);
    return true;
  }
  const absl::Time next = absl::Now() + interval;
  while (true) {
    const std::optional<char> key = keys->Wait(next - absl::Now());
    if (!key.has_value()) return true;
    if (*key == TerminalKeys::kEnd || *key == 'q') return false;
    if (watch.Press(*key) && !watch.Show()) return false;
  }
}

ExitCode RunTop(const GlobalFlags& global, const TopFlags& flags, const Console& console) {
  const auto interval = ParseTimeout(flags.interval, "--interval");
  if (!interval.ok()) return FailLocally(console, interval.status());
  TopWatch watch(global, flags, console);
  // Ahead of the client, whose threads are not to take the signals.
  const std::unique_ptr<TerminalKeys> keys =
      watch.is_live() ? TerminalKeys::Open(console.in) : nullptr;
  auto client = Connect(global, kAnswerLimit);
  if (!client.ok()) return FailLocally(console, client.status());
  while (true) {
    auto now = client->GetStatistics();
    if (!now.ok() && (flags.once || !MayAnswerLater(now.status()))) {
      return FailCall(console, now.status());
    }
    const bool is_shown = watch.Take(std::move(now));
    // The command also ends when nobody reads its output any more.
    if (is_shown && !watch.Show()) return ExitCode::kUsage;
    if (is_shown && flags.once) return ExitCode::kOk;
    if (!WaitForNext(*interval, keys.get(), watch)) return ExitCode::kOk;
  }
}

CommandRun AddTop(CLI::App& app) {
  auto flags = std::make_unique<TopFlags>();
  SetFooter(app, kTopHelp);
  AddOption(app, "--interval", flags->interval,
            "Time between two views, which rates are taken over")
      .ShowDefault()
      .TypeName("TIME");
  AddFlag(app, "--once", flags->once, "Show one view and exit");
  AddFlag(app, "--all", flags->all, "Show simulators that have nothing to do, too");
  AddChoice(app, "--sort", flags->sort,
            "Order of the devices: the largest first, or that of the server",
            {"server", "busy", "products", "waiting"})
      .ShowDefault();
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunTop(global, *flags, console);
  };
}

}  // namespace

constexpr Command kTopCommand = {"top", "Watch the server's devices, queues and rates", AddTop};

}  // namespace gemmd
