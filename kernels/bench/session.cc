// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/session.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <utility>

#include "kernels/bench/build_commit.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

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

// In one step, so that a run that is stopped leaves a whole file.
absl::Status WriteFile(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  std::error_code error;
  if (std::ofstream(partial) << text) {
    std::filesystem::rename(partial, path, error);
  } else {
    error = std::make_error_code(std::errc::io_error);
  }
  if (!error) return absl::OkStatus();
  return absl::NotFoundError(Concat("cannot write ", path, ": ", error.message()));
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

absl::Status Session::WriteFiles() const {
  if (!options_.save.empty()) RETURN_IF_ERROR(WriteFile(options_.save, ToJson(report_)));
  if (!options_.csv.empty()) RETURN_IF_ERROR(WriteFile(options_.csv, ToCsv(report_)));
  if (options_.json.empty() || !prints_table()) return absl::OkStatus();
  return WriteFile(options_.json, ToJson(report_));
}

absl::Status Session::End() const {
  RETURN_IF_ERROR(WriteFiles());
  if (!prints_table()) std::cout << ToJson(report_);
  return absl::OkStatus();
}

}  // namespace gemmd::bench
