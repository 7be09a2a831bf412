// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/terminal/text.h"

namespace gemmd {
namespace {

std::string JsonOf(absl::string_view code, absl::string_view message) {
  const nlohmann::ordered_json error = {
      {"error", {{"code", std::string(code)}, {"message", std::string(message)}}}};
  // Text from a server may not be UTF-8.
  return error.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

void Console::PrintError(const absl::Status& status) const {
  const std::string code = absl::StatusCodeToString(status.code());
  const std::string text = errors_are_json
                               ? absl::StrCat(JsonOf(code, status.message()), "\n")
                               : absl::StrCat(program, ": ", code, ": ", status.message(), "\n");
  std::fwrite(text.data(), 1, text.size(), err);
}

std::string Variable(const char* name, const char* otherwise) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is only one thread yet.
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

ExitCode EndOutput(ExitCode code) {
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  return is_written || code != ExitCode::kOk ? code : ExitCode::kUsage;
}

absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(prefix, ": ", status.message()));
}

ExitCode FailCall(const Console& console, const absl::Status& status) {
  console.PrintError(status);
  const bool is_unreachable = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return is_unreachable ? ExitCode::kUnreachable : ExitCode::kRefused;
}

ExitCode FailLocally(const Console& console, const absl::Status& status) {
  console.PrintError(status);
  return ExitCode::kUsage;
}

std::optional<TerminalSize> SizeOfTerminal(std::FILE* file) {
  winsize size = {};
  if (ioctl(fileno(file), TIOCGWINSZ, &size) != 0) return std::nullopt;
  // A terminal of unknown size reports 0.
  return TerminalSize{.columns = size.ws_col == 0 ? 80 : size.ws_col,
                      .lines = size.ws_row == 0 ? 24 : size.ws_row};
}

std::unique_ptr<TerminalKeys> TerminalKeys::Open(std::FILE* in) {
  termios settings = {};
  const int descriptor = fileno(in);
  // In the background, changing the terminal would stop the program.
  const bool is_ours = tcgetattr(descriptor, &settings) == 0 && tcgetpgrp(descriptor) == getpgrp();
  if (!is_ours) return nullptr;
  return std::unique_ptr<TerminalKeys>(new TerminalKeys(descriptor, settings));
}

TerminalKeys::TerminalKeys(int in, const termios& settings) : in_(in), settings_(settings) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, &blocked_);
  signals_ = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
  termios keys = settings;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  tcsetattr(in_, TCSADRAIN, &keys);
}

TerminalKeys::~TerminalKeys() {
  tcsetattr(in_, TCSADRAIN, &settings_);
  if (signals_ >= 0) {
    // Consumes the signal, so that it does not end the program again.
    signalfd_siginfo seen;
    while (read(signals_, &seen, sizeof(seen)) > 0) continue;
    close(signals_);
  }
  pthread_sigmask(SIG_SETMASK, &blocked_, nullptr);
}

std::optional<char> TerminalKeys::Wait(absl::Duration limit) {
  pollfd files[] = {{.fd = in_, .events = POLLIN, .revents = 0},
                    {.fd = signals_, .events = POLLIN, .revents = 0}};
  constexpr int64_t kMaxMilliseconds = 1'000'000;
  const int64_t milliseconds = std::clamp<int64_t>(
      absl::ToInt64Milliseconds(limit + absl::Milliseconds(1)), 0, kMaxMilliseconds);
  if (poll(files, 2, static_cast<int>(milliseconds)) <= 0) return std::nullopt;
  if (files[1].revents != 0) return kEnd;
  char key = kEnd;
  if (read(in_, &key, 1) != 1) return kEnd;
  return key;
}

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

// Above a day, exact digits are useless.
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
