// SPDX-License-Identifier: Apache-2.0
#include "client/load/open_loop.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace gemmd {
namespace {

// How much later than the first sender the second one looks: about the time for the first to wake.
constexpr int64_t kSecondSenderNs = 60'000;

}  // namespace

OpenSender::OpenSender(const OpenLoop& loop, const LoadWindow& window, const StopRequests& stop,
                       InFlight& in_flight, std::function<void(const Due&)> send)
    : loop_(loop),
      window_(window),
      stop_(stop),
      in_flight_(in_flight),
      send_(std::move(send)),
      arrivals_(loop.arrivals) {}

// Two threads wait for each call, and the first one awake sends it: a thread that the machine
// wakes late, or that still sends the call before, delays nothing.
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

// Looks for a call `later_ns` after the time at which it is due.
void OpenSender::SendWhatIsDue(int64_t later_ns) {
  WakeThisThreadOnTime();
  while (true) {
    mutex_.Lock();
    const int64_t due_ns = due_ns_;
    const bool is_due = is_planned_ && !is_given_up_ && due_ns <= SteadyNowNs();
    const std::optional<Due> call = is_due ? Admit() : std::nullopt;
    const bool is_over = !is_planned_ || is_given_up_;
    mutex_.Unlock();
    if (call.has_value()) {
      send_(*call);
    } else if (is_over || !SleepUntil(due_ns + later_ns, stop_)) {
      return;
    }
  }
}

// The call that is due, entered, once the limit of calls in flight lets it pass; none where the
// run ends before.
std::optional<OpenSender::Due> OpenSender::Admit() {
  if (in_flight_.WaitForRoom(loop_.most_in_flight, window_.to_ns, stop_)) {
    freed_ns_ = SteadyNowNs();
  }
  if (freed_ns_ >= window_.to_ns || stop_.load() > 0) {
    is_given_up_ = true;
    return std::nullopt;
  }
  const Due call = {due_ns_, std::max(due_ns_, freed_ns_)};
  in_flight_.Enter();
  NextDue();
  return call;
}

void OpenSender::NextDue() {
  due_ns_ = window_.start_ns + arrivals_.NextNs();
  is_planned_ = due_ns_ < window_.to_ns;
  if (due_ns_ < window_.from_ns || window_.count == 0) return;
  is_planned_ = is_planned_ && counted_ < window_.count;
  ++counted_;
}

// Whether the window has ended or a stop has cut it short: what was due by then was held back.
void OpenSender::CountUnsent() {
  const int64_t until_ns = std::min(SteadyNowNs(), window_.to_ns);
  // At a high rate that may be many calls: one more stop ends the count.
  const int stops = stop_.load();
  while (is_planned_ && due_ns_ <= until_ns && stop_.load(std::memory_order_relaxed) <= stops) {
    unsent_ += due_ns_ >= window_.from_ns;
    NextDue();
  }
}

}  // namespace gemmd
