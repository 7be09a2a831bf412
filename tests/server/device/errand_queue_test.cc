// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <utility>

#include "server/device/errand.h"

namespace gemmd {
namespace {

using Room = ErrandQueue::Room;
using Kind = Errand::Kind;

class NamedErrand final : public Errand {
 public:
  NamedErrand(Kind of, int number, BlockUses with, uint64_t one_of) : Errand(of), name(number) {
    uses = std::move(with);
    group = one_of;
    job_id = static_cast<JobId>(number);
  }
  absl::Status Send(Channel&) const override { return absl::OkStatus(); }
  void End(const absl::Status&, const Times&) override {}
  const int name;
};

class ErrandQueueTest : public testing::Test {
 protected:
  void Add(Kind kind, int name, BlockUses uses = {}, uint64_t group = 0) {
    queue_.Add(std::make_unique<NamedErrand>(kind, name, std::move(uses), group));
  }
  // 0 if there is none.
  int Take(Room room = Room::kTaken) {
    std::unique_ptr<Errand> taken = queue_.TakeNext([room](Errand&) { return room; });
    if (taken == nullptr) return 0;
    taken_.push_back(std::move(taken));
    return static_cast<NamedErrand&>(*taken_.back()).name;
  }
  void SendAll() {
    for (const std::unique_ptr<Errand>& errand : taken_) queue_.Leave(*errand);
    taken_.clear();
  }

  ErrandQueue queue_;
  std::vector<std::unique_ptr<Errand>> taken_;
};

TEST_F(ErrandQueueTest, WhatUsesABlockWaitsForWhatWritesIt) {
  Add(Kind::kMemory, 1, {{.block = 7, .is_write = true}});
  Add(Kind::kJob, 2, {{.block = 7}});
  Add(Kind::kJob, 3, {{.block = 8}});
  EXPECT_EQ(Take(), 3);
  EXPECT_EQ(Take(), 1);
  EXPECT_EQ(Take(), 0);
  SendAll();
  EXPECT_EQ(Take(), 2);
}

TEST_F(ErrandQueueTest, WhatWritesABlockWaitsForWhatUsesIt) {
  Add(Kind::kJob, 1, {{.block = 7}});
  Add(Kind::kJob, 2, {{.block = 7}});
  Add(Kind::kJob, 3, {{.block = 7, .is_write = true}});
  EXPECT_EQ(Take(), 1);
  EXPECT_EQ(Take(), 2);
  EXPECT_EQ(Take(), 0);
  SendAll();
  EXPECT_EQ(Take(), 3);
}

TEST_F(ErrandQueueTest, ChunksOfOneWriteGoTogether) {
  Add(Kind::kMemory, 1, {{.block = 7, .is_write = true}}, 5);
  Add(Kind::kMemory, 2, {{.block = 7, .is_write = true}}, 5);
  Add(Kind::kMemory, 3, {{.block = 7, .is_write = true}}, 6);
  EXPECT_EQ(Take(), 1);
  EXPECT_EQ(Take(), 2);
  EXPECT_EQ(Take(), 0);
  SendAll();
  EXPECT_EQ(Take(), 3);
}

TEST_F(ErrandQueueTest, JobsAndOthersTakeTurns) {
  for (int i = 1; i <= 3; ++i) Add(Kind::kJob, i);
  for (int i = 11; i <= 13; ++i) Add(Kind::kMemory, i);
  EXPECT_EQ(Take(), 1);
  EXPECT_EQ(Take(), 11);
  EXPECT_EQ(Take(), 2);
  EXPECT_EQ(Take(), 12);
}

TEST_F(ErrandQueueTest, NothingOvertakesWhatWaitsForARange) {
  Add(Kind::kJob, 1);
  Add(Kind::kMemory, 11);
  int asked = 0;
  const auto has_none_for_jobs = [&](Errand& errand) {
    ++asked;
    return errand.kind == Kind::kJob ? Room::kNoStaging : Room::kTaken;
  };
  EXPECT_EQ(queue_.TakeNext(has_none_for_jobs), nullptr);
  EXPECT_EQ(asked, 1);
  // Except those that wait for a slot of their kind.
  const auto has_no_slot_for_jobs = [](Errand& errand) {
    return errand.kind == Kind::kJob ? Room::kNoSlot : Room::kTaken;
  };
  EXPECT_NE(queue_.TakeNext(has_no_slot_for_jobs), nullptr);
}

TEST_F(ErrandQueueTest, ATakenJobLeavesItsTurns) {
  Add(Kind::kJob, 1, {{.block = 7, .is_write = true}});
  Add(Kind::kJob, 2, {{.block = 7}});
  EXPECT_EQ(queue_.TakeJob(5), nullptr);
  EXPECT_NE(queue_.TakeJob(1), nullptr);
  EXPECT_EQ(Take(), 2);
  EXPECT_TRUE(queue_.is_empty());
  EXPECT_EQ(queue_.TakeAny(), nullptr);
}

}  // namespace
}  // namespace gemmd
