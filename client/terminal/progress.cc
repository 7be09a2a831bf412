// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/progress.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

constexpr absl::Duration kQuiet = absl::Seconds(1);
constexpr int kBarCells = 10;
constexpr char kTakeLineAway[] = "\r\x1b[K";
constexpr absl::Duration kShowEvery = absl::Milliseconds(100);

bool IsTerminal(std::FILE* file) { return isatty(fileno(file)) == 1; }

std::string Bar(double share) {
  const auto full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kBarCells);
  return "[" + std::string(full, '#') + std::string(kBarCells - full, ' ') + "]";
}

// Beyond a day nobody reads digits.
std::string Left(double seconds) {
  return FormatNanoseconds(static_cast<int64_t>(std::clamp(seconds, 0.0, 86400.0) * 1e9)) + " left";
}

}  // namespace

std::string ProgressText(const std::string& what, const TransferProgress& progress) {
  const double seconds = std::max(absl::ToDoubleSeconds(progress.elapsed), 1e-3);
  const double rate = static_cast<double>(progress.bytes_done) / seconds;
  const double share = progress.bytes_total > 0 ? static_cast<double>(progress.bytes_done) /
                                                      static_cast<double>(progress.bytes_total)
                                                : 1;
  std::string text =
      absl::StrFormat("%s  %s  %3.0f %%  %s of %s  %s/s", what, Bar(share), 100 * share,
                      FormatBytes(progress.bytes_done), FormatBytes(progress.bytes_total),
                      FormatBytes(static_cast<int64_t>(rate)));
  if (progress.bytes_done >= progress.bytes_total) return text + "  waiting for the server";
  if (rate >= 1) {
    const double left = static_cast<double>(progress.bytes_total - progress.bytes_done) / rate;
    absl::StrAppend(&text, "  ", Left(left));
  }
  return text;
}

std::string CallsText(const std::string& what, const CallCount& calls) {
  const auto done = static_cast<double>(calls.done);
  const auto total = static_cast<double>(calls.total);
  std::string text = absl::StrFormat("%s  %s  call %d of %d  %s", what, Bar(done / total),
                                     std::min(calls.done + 1, calls.total), calls.total,
                                     FormatNanoseconds(absl::ToInt64Nanoseconds(calls.elapsed)));
  if (calls.done == 0 || calls.done >= calls.total) return text;
  return absl::StrCat(text, "  ",
                      Left(absl::ToDoubleSeconds(calls.elapsed) * (total - done) / done));
}

ProgressLine::ProgressLine(std::FILE* err, std::string what)
    : err_(err), what_(std::move(what)), is_terminal_(IsTerminal(err)) {}

ProgressLine::~ProgressLine() {
  if (!is_shown_) return;
  std::fputs(kTakeLineAway, err_);
  std::fflush(err_);
}

void ProgressLine::Show(const TransferProgress& progress) {
  if (!is_terminal_ || progress.elapsed < kQuiet) return;
  is_shown_ = true;
  std::fputs((kTakeLineAway + ProgressText(what_, progress)).c_str(), err_);
  std::fflush(err_);
}

CallProgress::CallProgress(std::FILE* err, std::string what, int64_t total)
    : err_(err), what_(std::move(what)), begin_(absl::Now()), calls_{.total = total} {
  if (IsTerminal(err)) thread_ = std::thread([this] { Show(); });
}

CallProgress::~CallProgress() {
  {
    absl::MutexLock lock(&mutex_);
    is_over_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void CallProgress::EndCall() {
  absl::MutexLock lock(&mutex_);
  ++calls_.done;
}

void CallProgress::Show() {
  bool is_shown = false;
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&is_over_), kShowEvery)) {
    calls_.elapsed = absl::Now() - begin_;
    if (calls_.elapsed < kQuiet) continue;
    is_shown = true;
    std::fputs((kTakeLineAway + CallsText(what_, calls_)).c_str(), err_);
    std::fflush(err_);
  }
  if (!is_shown) return;
  std::fputs(kTakeLineAway, err_);
  std::fflush(err_);
}

}  // namespace gemmd
