// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "server/system/threads.h"

namespace gemmd {
namespace {

class Counted final : public Deferred {
 public:
  void RunDeferred() override { ++runs; }

  int runs = 0;
};

TEST(DeferralTest, RunsEachOnceAtTheEndOfTheOutermost) {
  const auto one = std::make_shared<Counted>();
  const auto other = std::make_shared<Counted>();
  EXPECT_FALSE(Deferral::PutOff(one));
  {
    const Deferral outer;
    EXPECT_TRUE(Deferral::PutOff(one));
    {
      const Deferral inner;
      EXPECT_TRUE(Deferral::PutOff(one));
      EXPECT_TRUE(Deferral::PutOff(other));
    }
    EXPECT_TRUE(Deferral::PutOff(one));
    EXPECT_EQ(one->runs + other->runs, 0);
  }
  EXPECT_EQ(one->runs, 1);
  EXPECT_EQ(other->runs, 1);
  EXPECT_FALSE(Deferral::PutOff(one));
}

TEST(DeferralTest, TakesNoMoreThanItHoldsAndNothingOfOtherThreads) {
  std::vector<std::shared_ptr<Counted>> all(20);
  int put_off = 0;
  {
    const Deferral deferral;
    for (std::shared_ptr<Counted>& one : all) {
      one = std::make_shared<Counted>();
      put_off += Deferral::PutOff(one) ? 1 : 0;
    }
    EXPECT_GE(put_off, 4);
    EXPECT_LT(put_off, 20);
    EXPECT_TRUE(Deferral::PutOff(all[0]));
    std::thread([&] { EXPECT_FALSE(Deferral::PutOff(all[0])); }).join();
  }
  int runs = 0;
  for (const std::shared_ptr<Counted>& one : all) runs += one->runs;
  EXPECT_EQ(runs, put_off);
}

// Work that the deferred work would defer is done at once.
TEST(DeferralTest, IsOverWhereItsWorkRuns) {
  class Nested final : public Deferred {
   public:
    explicit Nested(std::shared_ptr<Counted> next) : next_(std::move(next)) {}
    void RunDeferred() override { EXPECT_FALSE(Deferral::PutOff(next_)); }

   private:
    const std::shared_ptr<Counted> next_;
  };
  const auto next = std::make_shared<Counted>();
  {
    const Deferral deferral;
    EXPECT_TRUE(Deferral::PutOff(std::make_shared<Nested>(next)));
  }
  EXPECT_EQ(next->runs, 0);
}

}  // namespace
}  // namespace gemmd
