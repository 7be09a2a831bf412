// SPDX-License-Identifier: Apache-2.0
#include "server/wire/send_watch.h"

#include <algorithm>

namespace gemmd {

void SendWatch::Begin(Call& call, int64_t bytes) {
  const double seconds =
      static_cast<double>(bytes) / static_cast<double>(limits_.least_bytes_per_second);
  const int64_t due_ns = clock_.NowNs() + absl::ToInt64Nanoseconds(absl::Seconds(seconds));
  MutexLock lock(&mutex_);
  call.due_ns_ = due_ns;
  sending_.insert(&call);
}

void SendWatch::End(Call& call) {
  MutexLock lock(&mutex_);
  sending_.erase(&call);
}

int SendWatch::EndSilent(absl::Duration timeout) {
  const int64_t patience_ns = absl::ToInt64Nanoseconds(std::min(timeout, limits_.timeout));
  const int64_t now_ns = clock_.NowNs();
  int ended = 0;
  // The lock is held while gRPC is told, because the context of a call must not end meanwhile. gRPC
  // then calls no reaction on this thread.
  MutexLock lock(&mutex_);
  for (auto next = sending_.begin(); next != sending_.end();) {
    const auto position = next++;
    if (now_ns - (*position)->due_ns_ < patience_ns) continue;
    (*position)->context_.TryCancel();
    sending_.erase(position);
    ++ended;
  }
  return ended;
}

}  // namespace gemmd
