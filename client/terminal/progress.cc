// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/progress.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

constexpr absl::Duration kQuiet = absl::Seconds(1);
constexpr int kBarCells = 10;
constexpr char kTakeLineAway[] = "\r\x1b[K";

}  // namespace

std::string ProgressText(const std::string& what, const TransferProgress& progress) {
  const double seconds = std::max(absl::ToDoubleSeconds(progress.elapsed), 1e-3);
  const double rate = static_cast<double>(progress.bytes_done) / seconds;
  const double share = progress.bytes_total > 0 ? static_cast<double>(progress.bytes_done) /
                                                      static_cast<double>(progress.bytes_total)
                                                : 1;
  const auto full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kBarCells);
  const std::string bar = std::string(full, '#') + std::string(kBarCells - full, ' ');
  std::string text =
      absl::StrFormat("%s  [%s]  %3.0f %%  %s of %s  %s/s", what, bar, 100 * share,
                      FormatBytes(progress.bytes_done), FormatBytes(progress.bytes_total),
                      FormatBytes(static_cast<int64_t>(rate)));
  if (rate >= 1) {
    const double left = static_cast<double>(progress.bytes_total - progress.bytes_done) / rate;
    // Beyond a day nobody reads digits.
    absl::StrAppend(&text, "  ",
                    FormatNanoseconds(static_cast<int64_t>(std::min(left, 86400.0) * 1e9)),
                    " left");
  }
  return text;
}

ProgressLine::ProgressLine(std::FILE* err, std::string what)
    : err_(err), what_(std::move(what)), is_terminal_(isatty(fileno(err)) == 1) {}

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

}  // namespace gemmd
