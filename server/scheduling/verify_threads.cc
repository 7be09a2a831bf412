// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/verify_threads.h"

#include <algorithm>
#include <array>
#include <new>
#include <random>
#include <system_error>
#include <utility>

#include "kernels/cpu/host.h"
#include "server/system/processors.h"

namespace gemmd {
namespace {

// Seeded from the system's randomness: no device knows what is drawn.
verify::Draw MakeDraw() {
  std::random_device device;
  std::array<uint32_t, 8> words;
  for (uint32_t& word : words) word = device();
  std::seed_seq seed(words.begin(), words.end());
  return verify::Draw(seed);
}

int ThreadsOf(int asked) {
  if (asked > 0) return asked;
  return std::max(1, UsableProcessors() / 4);
}

}  // namespace

VerifyThreads::VerifyThreads(int threads) : most_threads_(ThreadsOf(threads)) {
  MutexLock lock(&mutex_);
  threads_.emplace_back([this] { Run(); });
}

VerifyThreads::~VerifyThreads() {
  Stop();
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mutex_);
    is_over_ = true;
    threads = std::move(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void VerifyThreads::Submit(JobId id, Work work) {
  MutexLock lock(&mutex_);
  Task& task = waiting_.emplace_back();
  task.id = id;
  task.work = std::move(work);
  task.abort = is_stopped_;
  const bool is_enough = waiting_.size() + running_.size() <= threads_.size();
  if (is_enough || static_cast<int>(threads_.size()) == most_threads_) return;
  try {
    threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error&) {  // Those that run do it, later.
  } catch (const std::bad_alloc&) {
  }
}

void VerifyThreads::Cancel(absl::Span<const JobId> ids) {
  MutexLock lock(&mutex_);
  for (std::list<Task>* const tasks : {&waiting_, &running_}) {
    for (Task& task : *tasks) {
      if (std::find(ids.begin(), ids.end(), task.id) != ids.end()) task.abort = true;
    }
  }
}

void VerifyThreads::Stop() {
  MutexLock lock(&mutex_);
  is_stopped_ = true;
  for (std::list<Task>* const tasks : {&waiting_, &running_}) {
    for (Task& task : *tasks) task.abort = true;
  }
}

void VerifyThreads::Run() {
  SetThreads(1);
  verify::Draw draw = MakeDraw();
  while (true) {
    std::list<Task>::iterator task;
    {
      MutexLock lock(&mutex_);
      mutex_.Await(
          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_over_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      task = waiting_.begin();
      running_.splice(running_.end(), waiting_, task);
    }
    std::move(task->work)(draw, &task->abort);
    MutexLock lock(&mutex_);
    running_.erase(task);
  }
}

}  // namespace gemmd
