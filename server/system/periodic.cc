// SPDX-License-Identifier: Apache-2.0
#include "server/system/periodic.h"

#include <pthread.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/system/log.h"

namespace gemmd {

LifeCheck::LifeCheck(Options options, std::function<absl::Status()> check, const Clock& clock)
    : options_(std::move(options)),
      check_(std::move(check)),
      clock_(clock),
      alive_ns_(clock.NowNs()),
      thread_([this] { Run(); }) {}

LifeCheck::~LifeCheck() {
  {
    MutexLock lock(&mutex_);
    is_ending_ = true;
  }
  thread_.join();
}

absl::Status LifeCheck::status() const {
  MutexLock lock(&mutex_);
  const absl::Duration silence = absl::Nanoseconds(clock_.NowNs() - alive_ns_);
  if (silence <= options_.longest_silence) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("no check of life has passed for ",
                   absl::FormatDuration(absl::Trunc(silence, absl::Seconds(1))), ": ",
                   last_.ok() ? "the last one goes on" : last_.message()));
}

void LifeCheck::Run() {
  pthread_setname_np(pthread_self(), "gemmd-life");
  MutexLock lock(&mutex_);
  const auto is_ending = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_ending_; };
  do {
    mutex_.Unlock();
    const absl::Status status = check_();
    if (status.ok()) {
      options_.on_alive();
    } else {
      spdlog::error("event=life_check_failed reason={}", LogValue(std::string(status.message())));
    }
    mutex_.Lock();
    last_ = status;
    if (status.ok()) alive_ns_ = clock_.NowNs();
  } while (!mutex_.AwaitWithTimeout(is_ending, options_.interval));
}

}  // namespace gemmd
