// SPDX-License-Identifier: Apache-2.0
#include "client/load/live_view.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/terminal/text_table.h"

namespace gemmd {

std::string LiveLine(const LoadInterval& interval, const CallsByCode& calls_by_code) {
  const double seconds = static_cast<double>(interval.to_ns - interval.from_ns) * 1e-9;
  const double rate = seconds > 0 ? static_cast<double>(interval.ok) / seconds : 0;
  CallsByCode errors = calls_by_code;
  errors[0] = 0;
  const std::string codes = CodesText(errors);
  return absl::StrFormat("%8.1f s  %10.1f/s  in flight %-6d  p50 %-9s  p99 %-9s%s%s",
                         static_cast<double>(interval.to_ns) * 1e-9, rate, interval.in_flight,
                         FormatNanoseconds(interval.p50_ns), FormatNanoseconds(interval.p99_ns),
                         interval.to_ns <= 0 ? "  warm-up" : "",
                         codes.empty() ? "" : absl::StrCat("  ", codes));
}

void LiveView::BeginStep(const std::string& name) {
  calls_by_code_ = {};
  if (out_ != nullptr) absl::FPrintF(out_, "%s\n", name);
}

void LiveView::Show(const LoadInterval& interval, const CallsByCode& calls_by_code) {
  if (out_ == nullptr) return;
  for (size_t i = 0; i < calls_by_code_.size(); ++i) {
    calls_by_code_[i] += calls_by_code[i];
  }
  const std::string line = LiveLine(interval, calls_by_code_);
  // Goes back to the beginning of the line, and clears what the last text left after this one.
  absl::FPrintF(out_, "%s%s%s", is_terminal_ ? "\r" : "", line, is_terminal_ ? "\x1b[K" : "\n");
  std::fflush(out_);
}

void LiveView::EndStep() {
  if (out_ != nullptr && is_terminal_) absl::FPrintF(out_, "\r\x1b[K");
}

}  // namespace gemmd
