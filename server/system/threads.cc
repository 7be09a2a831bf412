// SPDX-License-Identifier: Apache-2.0
#include "server/system/threads.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/system/log.h"

namespace gemmd {

ThreadPool::ThreadPool(const char* name, int threads, Start start)
    : name_(name), max_threads_(threads) {
  MutexLock lock(&mutex_);
  for (int i = 0; i < threads && (i == 0 || start == Start::kAtOnce); ++i) StartThread();
}

ThreadPool::ThreadPool(const char* name, absl::Duration pause, std::function<void()> now_and_then)
    : name_(name), max_threads_(1), pause_(pause), now_and_then_(std::move(now_and_then)) {
  MutexLock lock(&mutex_);
  StartThread();
}

void ThreadPool::StartThread() {
  threads_.emplace_back([this] { Serve(); });
}

void ThreadPool::Run(Work work) {
  {
    MutexLock lock(&mutex_);
    if (!is_over_) {
      waiting_.push_back(std::move(work));
      const bool is_enough = waiting_.size() + busy_ <= threads_.size();
      if (is_enough || is_stopping_ || static_cast<int>(threads_.size()) == max_threads_) return;
      try {
        StartThread();
      } catch (const std::system_error&) {  // The running threads do it later.
      } catch (const std::bad_alloc&) {
      }
      return;
    }
  }
  std::move(work)();
}

void ThreadPool::Stop() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
    threads = std::move(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void ThreadPool::Serve() {
  pthread_setname_np(pthread_self(), name_);
  auto last = std::chrono::steady_clock::now();
  while (true) {
    Work work;
    {
      MutexLock lock(&mutex_);
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return is_stopping_ || !waiting_.empty();
      };
      mutex_.AwaitWithTimeout(has_work, pause_);
      if (!waiting_.empty()) {
        work = std::move(waiting_.front());
        waiting_.pop_front();
        ++busy_;
      } else if (is_stopping_) {
        is_over_ = true;
        return;
      }
    }
    if (work) {
      std::move(work)();
      work = nullptr;
      --busy_;  // Without the lock, because unlocking would wake every idle thread.
    }
    if (now_and_then_ == nullptr) continue;
    const auto now = std::chrono::steady_clock::now();
    if (now - last < absl::ToChronoNanoseconds(pause_)) continue;
    last = now;
    now_and_then_();
  }
}

namespace {

thread_local Deferral* outermost = nullptr;

}  // namespace

Deferral::Deferral() {
  if (outermost != nullptr) return;
  is_outermost_ = true;
  outermost = this;
}

Deferral::~Deferral() {
  if (!is_outermost_) return;
  outermost = nullptr;
  for (size_t i = 0; i < count_; ++i) waiting_[i]->RunDeferred();
}

bool Deferral::PutOff(std::shared_ptr<Deferred> work) {
  if (outermost == nullptr) return false;
  auto& waiting = outermost->waiting_;
  size_t& count = outermost->count_;
  const auto end = waiting.begin() + count;
  if (std::find(waiting.begin(), end, work) != end) return true;
  if (count == waiting.size()) return false;
  waiting[count++] = std::move(work);
  return true;
}

LifeCheck::LifeCheck(Options options, std::function<absl::Status()> check, const Clock& clock)
    : options_(std::move(options)),
      check_(std::move(check)),
      clock_(clock),
      alive_ns_(clock.NowNs()),
      thread_("gemmd-life", options_.interval, [this] { Check(); }) {
  thread_.Run([this] { Check(); });
}

absl::Status LifeCheck::status() const {
  MutexLock lock(&mutex_);
  const absl::Duration silence = absl::Nanoseconds(clock_.NowNs() - alive_ns_);
  if (silence <= options_.longest_silence) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("no liveness check has passed for ",
                   absl::FormatDuration(absl::Trunc(silence, absl::Seconds(1))), ": ",
                   last_.ok() ? "the last one is still running" : last_.message()));
}

void LifeCheck::Check() {
  const absl::Status status = check_();
  if (status.ok()) {
    options_.on_alive();
  } else {
    spdlog::error("event=life_check_failed reason={}", LogValue(std::string(status.message())));
  }
  MutexLock lock(&mutex_);
  last_ = status;
  if (status.ok()) alive_ns_ = clock_.NowNs();
}

}  // namespace gemmd
