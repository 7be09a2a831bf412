// SPDX-License-Identifier: Apache-2.0
//
// Received slices are freed exactly once, when they are released.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "server/wire/incoming.h"
#include "tests/testing/patience.h"

namespace gemmd {
namespace {

constexpr size_t kCount = 21;

class ReceivedSlicesTest : public testing::Test {
 protected:
  std::vector<grpc::Slice> Make() {
    std::vector<grpc::Slice> slices;
    for (int& freed : freed_)
      slices.emplace_back(
          memory_.data(), memory_.size(), [](void* count) { ++*static_cast<int*>(count); }, &freed);
    return slices;
  }

  // How often each slice of the range was freed; -1 if that differs.
  int Freed(size_t first, size_t end) const {
    for (size_t i = first; i < end; ++i) {
      if (freed_[i] != freed_[first]) return -1;
    }
    return freed_[first];
  }

  std::vector<char> memory_ = std::vector<char>(1000);
  std::array<int, kCount> freed_ = {};
};

TEST_F(ReceivedSlicesTest, ARangeIsFreedAndTheRestWithTheList) {
  {
    ReceivedSlices slices(Make());
    slices.Release(3, 0);
    EXPECT_EQ(Freed(0, kCount), 0);
    slices.Release(3, 17);
    EXPECT_EQ(Freed(0, 3), 0);
    EXPECT_EQ(Freed(3, 20), 1);
    EXPECT_EQ(Freed(20, kCount), 0);
    EXPECT_EQ(slices.size(), kCount);
    EXPECT_EQ(slices[3].size(), 0);
    EXPECT_EQ(slices[20].size(), 1000);
  }
  EXPECT_EQ(Freed(0, kCount), 1);
}

TEST_F(ReceivedSlicesTest, WhatIsErasedMovedFromOrReplacedIsFreedOnce) {
  ReceivedSlices slices(Make());
  slices.EraseBefore(2);
  EXPECT_EQ(slices.size(), kCount - 2);
  EXPECT_EQ(Freed(0, 2), 1);
  EXPECT_EQ(Freed(2, kCount), 0);
  ReceivedSlices moved = std::move(slices);
  EXPECT_EQ(Freed(2, kCount), 0);
  {
    const ReceivedSlices copy = moved;
    moved = ReceivedSlices();
    EXPECT_EQ(Freed(2, kCount), 0);
  }
  EXPECT_EQ(Freed(0, kCount), 1);
}

// Many slices, and the threads that freed them.
class ManySlicesTest : public testing::Test {
 protected:
  static constexpr int kMany = 5000;

  std::vector<grpc::Slice> Make() {
    const auto free = [](void* test) {
      auto& self = *static_cast<ManySlicesTest*>(test);
      ++(std::this_thread::get_id() == self.own_ ? self.freed_here_ : self.freed_elsewhere_);
    };
    std::vector<grpc::Slice> slices;
    for (int i = 0; i < kMany; ++i) slices.emplace_back(memory_.data(), memory_.size(), free, this);
    return slices;
  }
  int freed() const { return freed_here_ + freed_elsewhere_; }
  void AwaitAll() const {
    EXPECT_TRUE(Eventually([this] { return freed() == kMany; })) << freed() << " are freed";
  }

  std::vector<char> memory_ = std::vector<char>(100);
  std::thread::id own_ = std::this_thread::get_id();
  std::atomic<int> freed_here_ = 0;
  std::atomic<int> freed_elsewhere_ = 0;
};

TEST_F(ManySlicesTest, ALongListHoldsNobodyUp) {
  { const ReceivedSlices slices(Make()); }
  AwaitAll();
  EXPECT_EQ(freed_here_, 0);
}

TEST_F(ManySlicesTest, WhatALongListHasNoMoreIsNotWaitedFor) {
  {
    ReceivedSlices slices(Make());
    slices.Release(10, kMany - 20);
    EXPECT_EQ(freed_here_, kMany - 20);
  }
  EXPECT_EQ(freed_here_, kMany);
}

TEST_F(ManySlicesTest, ClearedListsAreFreedInTheSameWay) {
  ReceivedSlices slices(Make());
  slices.clear();
  EXPECT_TRUE(slices.empty());
  AwaitAll();
  EXPECT_EQ(freed_here_, 0);
}

}  // namespace
}  // namespace gemmd
