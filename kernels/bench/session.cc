// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/session.h"

#include <ctime>
#include <iostream>
#include <utility>

#include "kernels/bench/report.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd::bench {
namespace {

constexpr char kClearLine[] = "\r\033[K";

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[16] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%d", &utc);
  return text;
}

}  // namespace

Session::Session(const Options& options, std::vector<Column> columns, Fields facts, size_t total)
    : options_(options), columns_(std::move(columns)), total_(total) {
  report_.facts = std::move(facts);
  report_.facts.push_back({"commit", std::string(BuildCommit())});
  report_.facts.push_back({"date", Today()});
  report_.facts.push_back({"command", options.command});
  if (prints_table()) std::cout << TableHeader(columns_);
}

void Session::Begin(std::string_view kernel, const Shape& shape) const {
  if (!options_.shows_progress) return;
  std::cerr << kClearLine << done_ + 1 << " of " << total_ << ": " << kernel << " " << NameOf(shape)
            << " ..." << std::flush;
}

void Session::Say(std::string_view text) const {
  if (options_.shows_progress) std::cerr << kClearLine;
  std::cerr << text << "\n";
}

void Session::Keep(Entry entry) {
  if (options_.shows_progress) std::cerr << kClearLine << std::flush;
  ++done_;
  is_right_ &= entry.is_right;
  if (prints_table()) std::cout << TableLine(columns_, entry.cells) << std::flush;
  report_.measurements.push_back(std::move(entry.fields));
}

void Session::Skip(std::string_view kernel, const Shape& shape, const absl::Status& why) {
  ++done_;
  Say(Concat(kernel, " ", NameOf(shape), ": ", std::string(why.message())));
}

void Session::Fail(std::string_view kernel, const Shape& shape, const absl::Status& why) {
  Skip(kernel, shape, why);
  is_right_ = false;
}

absl::Status Session::Write(bool is_whole) const {
  absl::Status status;
  const auto put = [&](const std::string& path, std::string (*text_of)(const Report&)) {
    if (path.empty() || (!is_whole && IsStream(path))) return;
    status.Update(WriteOutputFile(path, text_of(report_)));
  };
  put(options_.save, ToJson);
  put(options_.csv, ToCsv);
  if (prints_table()) put(options_.json, ToJson);
  return status;
}

absl::Status Session::End() const {
  RETURN_IF_ERROR(Write(true));
  if (!prints_table()) std::cout << ToJson(report_);
  return absl::OkStatus();
}

}  // namespace gemmd::bench
