// SPDX-License-Identifier: Apache-2.0
//
// Errands that wait for their turn. What uses a block that an earlier one writes, or writes one
// that an earlier one uses, is not begun before that was sent; others overtake. Knows no lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "server/device/errand.h"

namespace gemmd {

class ErrandQueue {
 public:
  // Waits. Its turns with its blocks begin.
  void Add(std::unique_ptr<Errand> errand);

  // Whether one that is added now could begin at once: nothing is before it.
  bool MayBegin(const Errand& errand) const { return is_empty() && HasTurn(errand); }
  // Its turns begin although it does not wait.
  void Enter(const Errand& errand);
  // It was sent, or will never be: its turns are over.
  void Leave(const Errand& errand);

  // Whether an errand has what it needs to begin: a slot and its ranges of the staging area.
  enum class Room : uint8_t { kTaken, kNoSlot, kNoStaging };
  using TakeRoom = std::function<Room(Errand&)>;

  // The next errand that may begin and for which there is room; null where there is none. Jobs and
  // others take turns, and nothing overtakes an errand that waits for a range.
  std::unique_ptr<Errand> TakeNext(const TakeRoom& take_room);

  // The waiting job of this number, without its turns; null where there is none.
  std::unique_ptr<Errand> TakeJob(JobId id);
  // Any errand, the oldest of its kind, without its turns; null where there is none.
  std::unique_ptr<Errand> TakeAny();

  bool is_empty() const { return jobs_.empty() && memory_.empty(); }

 private:
  using Waiting = std::deque<std::unique_ptr<Errand>>;
  struct Turn {
    const Errand* errand = nullptr;
    bool is_write = false;
  };

  bool HasTurn(const Errand& errand) const;
  std::unique_ptr<Errand> TakeNextOf(Waiting& waiting, const TakeRoom& take_room, Room& room);

  Waiting jobs_;
  Waiting memory_;
  std::map<uint64_t, std::deque<Turn>> turns_;  // By block.
  bool is_turn_of_memory_ = false;
};

}  // namespace gemmd
