// SPDX-License-Identifier: Apache-2.0
#include "server/wire/connection_table.h"

#include <sys/stat.h>

#include <algorithm>

namespace gemmd {
namespace {

constexpr int64_t kLeastPauseNs = 10'000'000;
constexpr int64_t kPausePerSweep = 10;

}  // namespace

ConnectionTable::Verdict ConnectionTable::Admit(int descriptor, const std::string& peer) {
  const auto before = connections_.find(descriptor);
  if (before != connections_.end()) Forget(before);  // Its number was free again.
  Verdict verdict = Judge(peer);
  if (verdict != Verdict::kAdmitted) {
    Sweep();
    verdict = Judge(peer);
  }
  struct stat status = {};
  if (verdict != Verdict::kAdmitted || fstat(descriptor, &status) != 0) return verdict;
  const auto entry = peers_.try_emplace(peer, 0).first;
  ++entry->second;
  connections_.insert({descriptor, {status.st_dev, status.st_ino, entry}});
  return verdict;
}

int64_t ConnectionTable::CountOpen() {
  Sweep();
  return static_cast<int64_t>(connections_.size());
}

ConnectionTable::Verdict ConnectionTable::Judge(const std::string& peer) const {
  if (static_cast<int64_t>(connections_.size()) >= limits_.all) return Verdict::kTooMany;
  const auto entry = peers_.find(peer);
  const bool is_full = entry != peers_.end() && entry->second >= limits_.of_peer;
  return is_full ? Verdict::kTooManyOfPeer : Verdict::kAdmitted;
}

void ConnectionTable::Sweep() {
  const int64_t begin_ns = clock_.NowNs();
  if (begin_ns < sweep_again_ns_) return;
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    struct stat status = {};
    const bool is_open = fstat(connection->first, &status) == 0 &&
                         status.st_ino == connection->second.inode &&
                         status.st_dev == connection->second.device;
    connection = is_open ? std::next(connection) : Forget(connection);
  }
  const int64_t end_ns = clock_.NowNs();
  sweep_again_ns_ = end_ns + std::max(kLeastPauseNs, kPausePerSweep * (end_ns - begin_ns));
}

ConnectionTable::Connections::iterator ConnectionTable::Forget(Connections::iterator connection) {
  const auto peer = connection->second.peer;
  if (--peer->second == 0) peers_.erase(peer);
  return connections_.erase(connection);
}

}  // namespace gemmd
