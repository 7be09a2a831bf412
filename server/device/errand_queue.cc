// SPDX-License-Identifier: Apache-2.0
#include "server/device/errand_queue.h"

#include <algorithm>
#include <utility>

namespace gemmd {
namespace {

// So many are looked at for one that may begin: what waits for a block seldom waits long.
constexpr size_t kMostLookedAt = 64;

}  // namespace

void ErrandQueue::Enter(const Errand& errand) {
  for (const BlockUse& use : errand.uses) {
    turns_[use.block].push_back({.errand = &errand, .is_write = use.is_write});
  }
}

void ErrandQueue::Leave(const Errand& errand) {
  for (const BlockUse& use : errand.uses) {
    const auto found = turns_.find(use.block);
    if (found == turns_.end()) continue;
    std::erase_if(found->second, [&errand](const Turn& turn) { return turn.errand == &errand; });
    if (found->second.empty()) turns_.erase(found);
  }
}

void ErrandQueue::Add(std::unique_ptr<Errand> errand) {
  Enter(*errand);
  (errand->kind == Errand::Kind::kJob ? jobs_ : memory_).push_back(std::move(errand));
}

bool ErrandQueue::HasTurn(const Errand& errand) const {
  return std::all_of(errand.uses.begin(), errand.uses.end(), [&](const BlockUse& use) {
    const auto found = turns_.find(use.block);
    if (found == turns_.end()) return true;
    for (const Turn& turn : found->second) {
      if (turn.errand == &errand) return true;
      const bool are_one = errand.group != 0 && turn.errand->group == errand.group;
      if (!are_one && (turn.is_write || use.is_write)) return false;
    }
    return true;
  });
}

std::unique_ptr<Errand> ErrandQueue::TakeNextOf(Waiting& waiting, const TakeRoom& take_room,
                                                Room& room) {
  const size_t count = std::min(waiting.size(), kMostLookedAt);
  for (size_t i = 0; i < count; ++i) {
    Errand& errand = *waiting[i];
    if (!errand.verdict) {
      if (!HasTurn(errand)) continue;
      room = take_room(errand);
      if (room != Room::kTaken) return nullptr;
    }
    std::unique_ptr<Errand> taken = std::move(waiting[i]);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    return taken;
  }
  return nullptr;
}

std::unique_ptr<Errand> ErrandQueue::TakeNext(const TakeRoom& take_room) {
  const bool is_turn_of_memory = is_turn_of_memory_;
  for (const bool is_memory : {is_turn_of_memory, !is_turn_of_memory}) {
    Room room = Room::kTaken;
    std::unique_ptr<Errand> taken = TakeNextOf(is_memory ? memory_ : jobs_, take_room, room);
    if (taken != nullptr) is_turn_of_memory_ = !is_memory;
    if (taken != nullptr || room == Room::kNoStaging) return taken;
  }
  return nullptr;
}

std::unique_ptr<Errand> ErrandQueue::TakeJob(JobId id) {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(),
                   [id](const std::unique_ptr<Errand>& one) { return one->job_id == id; });
  if (found == jobs_.end()) return nullptr;
  std::unique_ptr<Errand> taken = std::move(*found);
  jobs_.erase(found);
  Leave(*taken);
  return taken;
}

std::unique_ptr<Errand> ErrandQueue::TakeAny() {
  Waiting& waiting = jobs_.empty() ? memory_ : jobs_;
  if (waiting.empty()) return nullptr;
  std::unique_ptr<Errand> taken = std::move(waiting.front());
  waiting.pop_front();
  Leave(*taken);
  return taken;
}

}  // namespace gemmd
