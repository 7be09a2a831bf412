// SPDX-License-Identifier: Apache-2.0
#include "server/system/thread_pool.h"

#include <pthread.h>

#include <utility>

namespace gemmd {

ThreadPool::ThreadPool(const char* name, int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, name] {
      pthread_setname_np(pthread_self(), name);
      Serve();
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(Work work) {
  MutexLock lock(&mutex_);
  waiting_.push_back(std::move(work));
}

void ThreadPool::Serve() {
  while (true) {
    Work work;
    {
      MutexLock lock(&mutex_);
      mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return is_stopping_ || !waiting_.empty();
      });
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    std::move(work)();
  }
}

}  // namespace gemmd
