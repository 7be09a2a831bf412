// SPDX-License-Identifier: Apache-2.0
#include "client/load/open_loop.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/terminal/text.h"

namespace gemmd {

// The integral of the rate solved for time: from t + (to - from) t^2 / (2 ramp) = calls, in the
// form that does not cancel where `to` is `from` or the ramp is long.
double RateCurve::TimeOfNs(double calls) const {
  const double ramp_s = static_cast<double>(ramp_ns) * 1e-9;
  const double in_ramp = (from + to) / 2 * ramp_s;
  if (calls >= in_ramp) return (ramp_s + (calls - in_ramp) / to) * 1e9;
  const double slope = (to - from) / ramp_s;
  return 2 * calls / (from + std::sqrt(from * from + 2 * slope * calls)) * 1e9;
}

int64_t Arrivals::NextNs() {
  if (!plan_.replay_gaps_ns.empty()) {
    replay_ns_ += plan_.replay_gaps_ns[next_gap_];
    next_gap_ = (next_gap_ + 1) % plan_.replay_gaps_ns.size();
    return replay_ns_;
  }
  if (plan_.is_poisson) {
    calls_ -= std::log(random_.Unit());
  } else if (!is_first_) {
    calls_ += 1;
  }
  is_first_ = false;
  return std::llround(plan_.rate.TimeOfNs(calls_));
}

absl::StatusOr<std::vector<int64_t>> ParseGaps(absl::string_view text) {
  std::vector<int64_t> gaps;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const absl::Duration gap = ParseTime(line).value_or(absl::InfiniteDuration());
    if (!(gap >= absl::ZeroDuration() && gap <= absl::Hours(24))) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": got \"", line,
                                                     "\", want seconds or a time such as 500us"));
    }
    gaps.push_back(absl::ToInt64Nanoseconds(gap));
  }
  if (std::none_of(gaps.begin(), gaps.end(), [](int64_t gap) { return gap > 0; })) {
    return absl::InvalidArgumentError("got no gap above 0, want one a line");
  }
  return gaps;
}

namespace {

// How long to wait before checking for a stop again.
absl::Duration Patience(int64_t until_ns) {
  return absl::Nanoseconds(std::clamp<int64_t>(until_ns - SteadyNowNs(), 0, kStopPatienceNs));
}

}  // namespace

void InFlight::Enter() {
  absl::MutexLock lock(&mutex_);
  ++now_;
  max_ = std::max(max_, now_);
}

void InFlight::Leave() {
  absl::MutexLock lock(&mutex_);
  --now_;
}

bool InFlight::WaitForRoom(int64_t max_in_flight, int64_t until_ns, const StopRequests& stop) {
  absl::MutexLock lock(&mutex_);
  if (now_ < max_in_flight) return false;
  const auto has_room = [&]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return now_ < max_in_flight; };
  while (stop.load() == 0 && SteadyNowNs() < until_ns &&
         !mutex_.AwaitWithTimeout(absl::Condition(&has_room), Patience(until_ns))) {
  }
  return true;
}

bool InFlight::WaitForNone(int64_t until_ns, int stops, const StopRequests& stop) {
  absl::MutexLock lock(&mutex_);
  const auto is_none = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return now_ == 0; };
  while (!mutex_.AwaitWithTimeout(absl::Condition(&is_none), Patience(until_ns))) {
    if (stop.load() > stops || SteadyNowNs() >= until_ns) return false;
  }
  return true;
}

int64_t InFlight::now() const {
  absl::MutexLock lock(&mutex_);
  return now_;
}

int64_t InFlight::max_in_flight() const {
  absl::MutexLock lock(&mutex_);
  return max_;
}

namespace {

// How much later the second sender checks than the first: about the time that the first takes to
// wake.
constexpr int64_t kSecondSenderNs = 60'000;

}  // namespace

OpenSender::OpenSender(const OpenLoop& loop, const LoadWindow& window, const StopRequests& stop,
                       InFlight& in_flight, Send send)
    : loop_(loop),
      window_(window),
      stop_(stop),
      in_flight_(in_flight),
      send_(std::move(send)),
      arrivals_(loop.arrivals) {}

// Two threads wait for each call, and the first one awake sends it, so that a thread that wakes
// late, or is still sending the previous call, delays nothing.
void OpenSender::Run() {
  {
    absl::MutexLock lock(&mutex_);
    NextDue();
  }
  std::thread second([this] { SendWhatIsDue(kSecondSenderNs); });
  SendWhatIsDue(0);
  second.join();
  absl::MutexLock lock(&mutex_);
  CountUnsent();
  is_out_of_calls_ = !is_planned_ && due_ns_ < window_.to_ns;
  next_due_ns_ = due_ns_;
}

// Sends due calls; checks `later_ns` after each is due.
void OpenSender::SendWhatIsDue(int64_t later_ns) {
  WakeThisThreadOnTime();
  while (true) {
    mutex_.Lock();
    const int64_t due_ns = due_ns_;
    const bool is_due = is_planned_ && !is_given_up_ && due_ns <= SteadyNowNs();
    const std::optional<int64_t> admitted_ns = is_due ? Admit() : std::nullopt;
    const bool is_over = !is_planned_ || is_given_up_;
    mutex_.Unlock();
    if (admitted_ns.has_value()) {
      send_(due_ns, *admitted_ns);
    } else if (is_over || !SleepUntil(due_ns + later_ns, stop_)) {
      return;
    }
  }
}

// Waits until the limit of calls in flight admits the due call, enters it, and returns
// when; nullopt if the run ends first.
std::optional<int64_t> OpenSender::Admit() {
  if (in_flight_.WaitForRoom(loop_.max_in_flight, window_.to_ns, stop_)) {
    freed_ns_ = SteadyNowNs();
  }
  if (freed_ns_ >= window_.to_ns || stop_.load() > 0) {
    is_given_up_ = true;
    return std::nullopt;
  }
  const int64_t admitted_ns = std::max(due_ns_, freed_ns_);
  in_flight_.Enter();
  NextDue();
  return admitted_ns;
}

void OpenSender::NextDue() {
  due_ns_ = window_.start_ns + arrivals_.NextNs();
  is_planned_ = due_ns_ < window_.to_ns;
  if (due_ns_ < window_.from_ns || window_.count == 0) return;
  is_planned_ = is_planned_ && counted_ < window_.count;
  ++counted_;
}

// Counts the calls due before the end of the window, or before a stop, that were held back.
void OpenSender::CountUnsent() {
  const int64_t until_ns = std::min(SteadyNowNs(), window_.to_ns);
  // At a high rate, counting may take long: another stop request ends it.
  const int stops = stop_.load();
  while (is_planned_ && due_ns_ <= until_ns && stop_.load(std::memory_order_relaxed) <= stops) {
    unsent_ += due_ns_ >= window_.from_ns;
    NextDue();
  }
}

}  // namespace gemmd
