// SPDX-License-Identifier: Apache-2.0
#include "client/load/in_flight.h"

#include <algorithm>

#include "absl/time/time.h"

namespace gemmd {
namespace {

constexpr int64_t kPatienceNs = 20'000'000;  // How late a stop may be noticed.

// How long to wait before the next look for a stop.
absl::Duration Patience(int64_t until_ns) {
  return absl::Nanoseconds(std::clamp<int64_t>(until_ns - SteadyNowNs(), 0, kPatienceNs));
}

}  // namespace

void InFlight::Enter() {
  absl::MutexLock lock(&mutex_);
  ++now_;
  most_ = std::max(most_, now_);
}

void InFlight::Leave() {
  absl::MutexLock lock(&mutex_);
  --now_;
}

bool InFlight::WaitForRoom(int64_t most, int64_t until_ns, const StopRequests& stop) {
  absl::MutexLock lock(&mutex_);
  if (now_ < most) return false;
  const auto has_room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return now_ < most; };
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

int64_t InFlight::most() const {
  absl::MutexLock lock(&mutex_);
  return most_;
}

}  // namespace gemmd
