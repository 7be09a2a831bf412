// SPDX-License-Identifier: Apache-2.0
#include "server/wire/send_watch.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

namespace gemmd {

void SendWatch::Begin(Call& call, int64_t bytes) {
  const double seconds =
      static_cast<double>(bytes) / static_cast<double>(limits_.least_bytes_per_second);
  const int64_t now_ns = clock_.NowNs();
  MutexLock lock(&mutex_);
  call.begun_ns_ = call.moved_ns_ = now_ns;
  call.due_ns_ = now_ns + absl::ToInt64Nanoseconds(absl::Seconds(seconds));
  call.taken_bytes_ = -1;
  sending_.insert(&call);
}

void SendWatch::End(Call& call) {
  MutexLock lock(&mutex_);
  sending_.erase(&call);
}

bool SendWatch::IsSilent(Call& call, std::optional<int64_t> taken_bytes, int64_t patience_ns,
                         int64_t now_ns) const {
  const int64_t timeout_ns = absl::ToInt64Nanoseconds(limits_.timeout);
  if (now_ns - call.due_ns_ >= timeout_ns) return true;
  if (!taken_bytes) return patience_ns < timeout_ns && now_ns - call.begun_ns_ >= patience_ns;
  if (call.taken_bytes_ < 0) call.taken_bytes_ = *taken_bytes;
  if (*taken_bytes - call.taken_bytes_ >= kLeastProgressBytes) {
    call.taken_bytes_ = *taken_bytes;
    call.moved_ns_ = now_ns;
  }
  return now_ns - call.moved_ns_ >= patience_ns;
}

int SendWatch::EndSilent(absl::Duration timeout) {
  const int64_t patience_ns = absl::ToInt64Nanoseconds(std::min(timeout, limits_.timeout));
  const int64_t now_ns = clock_.NowNs();
  absl::flat_hash_map<std::string, std::optional<int64_t>> taken;
  int ended = 0;
  // The lock is held while gRPC is told, because the context of a call must not end meanwhile. gRPC
  // then calls no reaction on this thread.
  MutexLock lock(&mutex_);
  for (auto next = sending_.begin(); next != sending_.end();) {
    const auto position = next++;
    Call& call = **position;
    const auto [peer, is_new] = taken.try_emplace(call.peer());
    if (is_new) peer->second = taken_(peer->first);
    if (!IsSilent(call, peer->second, patience_ns, now_ns)) continue;
    call.Cancel();
    sending_.erase(position);
    ++ended;
  }
  return ended;
}

}  // namespace gemmd
