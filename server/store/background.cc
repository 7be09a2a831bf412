// SPDX-License-Identifier: Apache-2.0
#include "server/store/background.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace gemmd {

Background::Background(const char* thread, absl::Duration pause, std::function<void()> now_and_then)
    : name_(thread),
      pause_(pause),
      now_and_then_(std::move(now_and_then)),
      thread_([this] { Run(); }) {}

void Background::Post(Task task) {
  {
    MutexLock lock(&mutex_);
    if (!is_stopped_) {
      tasks_.push_back(std::move(task));
      return;
    }
  }
  std::move(task)();
}

void Background::Stop() {
  {
    MutexLock lock(&mutex_);
    is_over_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Background::Run() {
  pthread_setname_np(pthread_self(), name_);
  auto last = std::chrono::steady_clock::now();
  while (true) {
    Task task;
    {
      MutexLock lock(&mutex_);
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return is_over_ || !tasks_.empty();
      };
      mutex_.AwaitWithTimeout(has_work, pause_);
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      } else if (is_over_) {
        is_stopped_ = true;
        return;
      }
    }
    if (task) std::move(task)();
    const auto now = std::chrono::steady_clock::now();
    if (now - last < absl::ToChronoNanoseconds(pause_)) continue;
    last = now;
    now_and_then_();
  }
}

}  // namespace gemmd
