// SPDX-License-Identifier: Apache-2.0
#include "server/wire/connection_table.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>

namespace gemmd {
namespace {

constexpr int64_t kLeastPauseNs = 10'000'000;
constexpr int64_t kPausePerSweep = 10;

// What the kernel tells since Linux 4.1, in the order of linux/tcp.h, which cannot be included
// beside the C library's own.
struct TcpInfo {
  tcp_info older;
  uint64_t pacing_rate;
  uint64_t max_pacing_rate;
  uint64_t bytes_acked;
};
static_assert(offsetof(TcpInfo, bytes_acked) == 120);

}  // namespace

bool ConnectionTable::Connection::IsOf(int descriptor) const {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 && status.st_ino == inode && status.st_dev == device;
}

ConnectionTable::Verdict ConnectionTable::Admit(int descriptor, const std::string& peer,
                                                const std::string& name) {
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
  connections_.insert({descriptor, {status.st_dev, status.st_ino, entry, name}});
  if (!name.empty()) descriptors_[name] = descriptor;
  return verdict;
}

int64_t ConnectionTable::CountOpen() {
  Sweep();
  return static_cast<int64_t>(connections_.size());
}

std::optional<int64_t> ConnectionTable::AcknowledgedBytes(const std::string& name) const {
  const auto named = descriptors_.find(name);
  if (named == descriptors_.end()) return std::nullopt;
  const int descriptor = named->second;
  TcpInfo info = {};
  socklen_t bytes = sizeof(info);
  const bool is_told =
      getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && bytes == sizeof(info);
  // gRPC may have closed it, and its number may stand for another one by now.
  if (!is_told || !connections_.at(descriptor).IsOf(descriptor)) return std::nullopt;
  return static_cast<int64_t>(info.bytes_acked);
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
    const bool is_open = connection->second.IsOf(connection->first);
    connection = is_open ? std::next(connection) : Forget(connection);
  }
  const int64_t end_ns = clock_.NowNs();
  sweep_again_ns_ = end_ns + std::max(kLeastPauseNs, kPausePerSweep * (end_ns - begin_ns));
}

ConnectionTable::Connections::iterator ConnectionTable::Forget(Connections::iterator connection) {
  const auto named = descriptors_.find(connection->second.name);
  // A later connection may have the name now.
  if (named != descriptors_.end() && named->second == connection->first) descriptors_.erase(named);
  const auto peer = connection->second.peer;
  if (--peer->second == 0) peers_.erase(peer);
  return connections_.erase(connection);
}

}  // namespace gemmd
