// SPDX-License-Identifier: Apache-2.0
#include "server/device/copy_threads.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/system/processors.h"

namespace gemmd {
namespace {

// Copying so much takes half a millisecond.
constexpr size_t kCopiedAtOnce = size_t{2} << 20;

}  // namespace

void CopyAll(const std::vector<CopiedBytes>& copies) {
  for (const CopiedBytes& copy : copies) {
    if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
  }
}

// Parts that several threads take one after the other; the last one that is copied ends it.
struct CopyThreads::Copying {
  // Some whole copies, or a range of a long one.
  struct Part {
    size_t first = 0;
    size_t count = 1;
    size_t begin = 0;
    size_t bytes = 0;
    bool is_whole = true;
  };

  Copying(std::vector<CopiedBytes> all, const std::atomic<bool>& aborted, Work last)
      : copies(std::move(all)), is_aborted(aborted), done(std::move(last)) {
    for (size_t i = 0; i < copies.size(); ++i) Add(i);
  }

  void Add(size_t index) {
    const size_t bytes = copies[index].bytes;
    if (bytes > kCopiedAtOnce) {
      for (size_t at = 0; at < bytes; at += kCopiedAtOnce) {
        parts.push_back({.first = index,
                         .begin = at,
                         .bytes = std::min(kCopiedAtOnce, bytes - at),
                         .is_whole = false});
      }
      return;
    }
    const bool is_joined =
        !parts.empty() && parts.back().is_whole && parts.back().bytes + bytes <= kCopiedAtOnce;
    if (!is_joined) parts.push_back({.first = index, .count = 0});
    ++parts.back().count;
    parts.back().bytes += bytes;
  }

  void CopyPart(const Part& part) const {
    if (!part.is_whole) {
      const CopiedBytes& copy = copies[part.first];
      std::memcpy(copy.to + part.begin, copy.from + part.begin, part.bytes);
      return;
    }
    for (size_t i = part.first; i < part.first + part.count; ++i) {
      const CopiedBytes& copy = copies[i];
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
      if (copy.keeper != nullptr) copy.keeper->LetGo(copy.piece, 1);
    }
  }

  const std::vector<CopiedBytes> copies;
  const std::atomic<bool>& is_aborted;
  std::vector<Part> parts;
  std::atomic<size_t> next = 0;
  std::atomic<size_t> copied = 0;
  Work done;
};

int CopyThreads::DefaultThreads() { return std::clamp(UsableProcessors() / 4, 1, 4); }

CopyThreads::CopyThreads(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "gemmd-copy");
      Serve();
    });
  }
}

CopyThreads::~CopyThreads() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void CopyThreads::Run(Work work) {
  MutexLock lock(&mutex_);
  tasks_.push_back({.work = std::move(work), .copying = nullptr});
}

void CopyThreads::Copy(std::vector<CopiedBytes> copies, const std::atomic<bool>& is_aborted,
                       Work done) {
  auto copying = std::make_shared<Copying>(std::move(copies), is_aborted, std::move(done));
  if (copying->parts.empty()) return Run(std::move(copying->done));
  MutexLock lock(&mutex_);
  tasks_.push_back({.work = nullptr, .copying = std::move(copying)});
}

void CopyThreads::Serve() {
  while (true) {
    Task task;
    {
      MutexLock lock(&mutex_);
      mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return is_stopping_ || !tasks_.empty();
      });
      if (tasks_.empty()) return;
      // A copy stays for the other threads until all of its parts are taken.
      if (tasks_.front().copying != nullptr) {
        task.copying = tasks_.front().copying;
        if (task.copying->next.load() >= task.copying->parts.size()) {
          tasks_.pop_front();
          continue;
        }
      } else {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
    }
    if (task.work) std::move(task.work)();
    if (task.copying != nullptr) Share(*task.copying);
  }
}

void CopyThreads::Share(Copying& copying) {
  const size_t count = copying.parts.size();
  for (size_t i = copying.next++; i < count; i = copying.next++) {
    if (!copying.is_aborted.load(std::memory_order_relaxed)) copying.CopyPart(copying.parts[i]);
    if (++copying.copied == count) std::move(copying.done)();
  }
}

}  // namespace gemmd
