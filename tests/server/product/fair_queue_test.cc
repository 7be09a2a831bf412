// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/product/queue.h"
#include "server/system/sockets.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kAnyCost = int64_t{1} << 60;

class FairQueueTest : public ::testing::Test {
 protected:
  FairQueue::Job& Add(const std::string& flow, int64_t cost_ns, double share = 1) {
    FairQueue::Job& job = jobs_.emplace_back();
    job.share = share;
    job.id = jobs_.size();
    job.cost_ns = cost_ns;
    names_[job.id] = flow;
    queue_.Enter({flow}, job);
    return job;
  }

  // Launches the next job and ends it. Returns the name of its flow.
  std::string Run() {
    FairQueue::Job& job = queue_.first();
    queue_.Launch(job, job.cost_ns);
    queue_.Leave(job);
    return names_[job.id];
  }

  std::vector<std::string> Run(int count) {
    std::vector<std::string> ran;
    for (int i = 0; i < count; ++i) ran.push_back(Run());
    return ran;
  }

  FairQueue queue_;
  std::deque<FairQueue::Job> jobs_;
  std::map<JobId, std::string> names_;
};

TEST_F(FairQueueTest, OneFlowIsServedInOrder) {
  for (int i = 0; i < 5; ++i) Add("a", 10);
  for (JobId id = 1; id <= 5; ++id) {
    EXPECT_EQ(queue_.first().id, id);
    Run();
  }
  EXPECT_TRUE(queue_.empty());
}

TEST_F(FairQueueTest, ANewcomerHasTheNextTurn) {
  for (int i = 0; i < 100; ++i) Add("hog", 10);
  Run(20);
  Add("light", 10);
  EXPECT_THAT(Run(3), ElementsAre("light", "hog", "hog"));
}

TEST_F(FairQueueTest, ALateFlowDoesNotCatchUp) {
  for (int i = 0; i < 40; ++i) Add("hog", 10);
  Run(20);
  for (int i = 0; i < 10; ++i) Add("late", 10);
  const std::vector<std::string> ran = Run(8);
  EXPECT_EQ(std::count(ran.begin(), ran.end(), "late"), 4);
}

TEST_F(FairQueueTest, FlowsHaveEqualTimeAndNotEqualCounts) {
  for (int i = 0; i < 100; ++i) Add("long", 30);
  for (int i = 0; i < 300; ++i) Add("short", 10);
  std::map<std::string, int64_t> had_ns;
  for (int i = 0; i < 200; ++i) {
    const std::string flow = Run();
    had_ns[flow] += flow == "long" ? 30 : 10;
    // They never differ by more than the longest job of each.
    EXPECT_LE(std::abs(had_ns["long"] - had_ns["short"]), 40);
  }
}

TEST_F(FairQueueTest, FlowsHaveTimeByTheirShares) {
  for (int i = 0; i < 400; ++i) Add("triple", 30, 3);
  for (int i = 0; i < 400; ++i) Add("half", 30, 0.5);
  for (int i = 0; i < 400; ++i) Add("one", 30);
  std::map<std::string, double> had_ns;
  for (int i = 0; i < 450; ++i) {
    const std::string flow = Run();
    had_ns[flow] += 30;
    // In proportion to their shares, they never differ by more than a job of each.
    EXPECT_LE(std::abs(had_ns["triple"] / 3 - had_ns["one"]), 10 + 30);
    EXPECT_LE(std::abs(had_ns["half"] / 0.5 - had_ns["one"]), 60 + 30);
  }
  EXPECT_NEAR(had_ns["triple"], 450 * 30 / 4.5 * 3, 60);
}

TEST_F(FairQueueTest, AShareIsChargedForWhatAJobHad) {
  FairQueue::Job& first = Add("double", 10, 2);
  queue_.Launch(first, first.cost_ns);
  queue_.Correct(first, 30);  // It took 40, as much as 20 of the other flow's.
  queue_.Leave(first);
  for (int i = 0; i < 5; ++i) Add("double", 10, 2);
  for (int i = 0; i < 5; ++i) Add("one", 10);
  EXPECT_THAT(Run(4), ElementsAre("one", "one", "double", "one"));
}

TEST_F(FairQueueTest, TellsWhatIsAheadByShares) {
  for (int i = 0; i < 100; ++i) Add("double", 10, 2);
  Run();
  Add("one", 30);
  // Until the next job of "one" may start, at 30: six jobs of 10, and the one that starts then.
  EXPECT_EQ(queue_.AheadOf({"one"}, kAnyCost).waiting_ns, 30 + 2 * 25 + 10);
  // Conversely: the first job of "one", since the 990 of "double" take 495 of the time of "one".
  EXPECT_EQ(queue_.AheadOf({"double"}, kAnyCost).waiting_ns, 990 + 30);
}

// A flow that requests one product after the other gets its half, too.
TEST_F(FairQueueTest, AClosedLoopKeepsItsDebt) {
  for (int i = 0; i < 300; ++i) Add("hog", 10);
  int64_t loop_ns = 0;
  for (int64_t total_ns = 0; total_ns < 2000;) {
    if (queue_.InsideOf({"loop"}).of_caller == 0) Add("loop", 40);
    const bool is_loop = Run() == "loop";
    loop_ns += is_loop ? 40 : 0;
    total_ns += is_loop ? 40 : 10;
  }
  EXPECT_GE(loop_ns, 900);
  EXPECT_LE(loop_ns, 1100);
}

TEST_F(FairQueueTest, WhatNeverRanIsNotCharged) {
  for (int i = 0; i < 10; ++i) Add("hog", 10);
  for (int i = 0; i < 10; ++i) {
    FairQueue::Job& dropped = Add("light", 1000);
    queue_.Remove(dropped);
    queue_.Leave(dropped);
  }
  Add("light", 10);
  Run();
  EXPECT_EQ(Run(), "light");
}

TEST_F(FairQueueTest, AJobIsChargedForWhatItHad) {
  Add("a", 10);
  Add("b", 10);
  for (int i = 0; i < 3; ++i) Add("a", 10);
  for (int i = 0; i < 5; ++i) Add("b", 10);
  FairQueue::Job& first = queue_.first();
  queue_.Launch(first, first.cost_ns);
  queue_.Correct(first, 20);  // It took 30.
  queue_.Leave(first);
  EXPECT_THAT(Run(4), ElementsAre("b", "b", "b", "a"));
}

TEST_F(FairQueueTest, TellsWhatIsAheadOfANewcomer) {
  EXPECT_EQ(queue_.AheadOf({"a"}, kAnyCost).waiting_ns, 0);
  for (int i = 0; i < 100; ++i) Add("hog", 10);
  EXPECT_EQ(queue_.AheadOf({"hog"}, kAnyCost).waiting_ns, 1000);
  EXPECT_EQ(queue_.AheadOf({"light"}, kAnyCost).waiting_ns,
            10);  // The job whose turn it already is.
  Run();
  EXPECT_EQ(queue_.AheadOf({"light"}, kAnyCost).waiting_ns, 0);
  Add("light", 25);
  EXPECT_EQ(queue_.AheadOf({"hog"}, kAnyCost).waiting_ns, 990 + 25);
  EXPECT_EQ(queue_.AheadOf({"light"}, kAnyCost).waiting_ns,
            25 + 25);  // As much of the hog's jobs, rounded up to a whole job.
  EXPECT_GT(queue_.AheadOf({"hog"}, 100).waiting_ns, 100);  // Adding up stops there.
}

// Flows that are ahead are expected to add as much again, within their turns.
TEST_F(FairQueueTest, TellsWhatMayComeBeforeANewcomer) {
  const auto to_come_ns = [this](const std::string& caller) {
    return queue_.AheadOf({caller}, kAnyCost).to_come_ns;
  };
  for (int i = 0; i < 10; ++i) Add("deep", 10);
  EXPECT_EQ(to_come_ns("deep"), 0);  // There is no other flow.
  Add("a", 15);
  Add("b", 5);
  EXPECT_EQ(to_come_ns("deep"), 15 + 5);
  EXPECT_EQ(to_come_ns("new"), 0);  // Has the next turn.
  // The turn of "deep" is 15 + 10 of its 100: it gets that far without adding anything.
  EXPECT_EQ(queue_.AheadOf({"a"}, kAnyCost).waiting_ns, 15 + 25 + 5);
  EXPECT_EQ(to_come_ns("a"), 5);
  // With 10 more, "b" would exceed its turn of 15 + 5.
  Add("b", 12);
  EXPECT_EQ(to_come_ns("a"), 15 + 5 - 17);
}

TEST_F(FairQueueTest, WhatMayComeIsBoundedByWhatACallerHasAheadItself) {
  Add("a", 10);
  for (int i = 0; i < 10; ++i) Add("caller " + std::to_string(i), 6);
  EXPECT_EQ(queue_.AheadOf({"a"}, kAnyCost).waiting_ns, 10 + 10 * 6);
  EXPECT_EQ(queue_.AheadOf({"a"}, kAnyCost).to_come_ns, FairQueue::kMaxToCome * 10);
}

// The prediction comes true if no other job comes; or at most one job of each other flow is
// missing.
TEST_F(FairQueueTest, TheNewcomerWaitsAsLongAsWasTold) {
  constexpr int64_t kLongest = 90;
  const std::vector<int64_t> sizes = {7, 31, 2, kLongest, 11, 5, 60};
  for (size_t i = 0; i < 60; ++i) {
    Add(std::string(1, static_cast<char>('a' + i % 7 % 4)), sizes[i % sizes.size()]);
    if (i % 4 == 3) Run();
  }
  const int64_t told_ns = queue_.AheadOf({"b"}, kAnyCost).waiting_ns;
  const JobId newcomer = Add("b", 10).id;
  int64_t waited_ns = 0;
  for (; queue_.first().id != newcomer; Run()) waited_ns += queue_.first().cost_ns;
  EXPECT_GT(waited_ns, 0);
  EXPECT_LE(waited_ns, told_ns);
  EXPECT_GE(waited_ns, told_ns - 3 * kLongest);
}

TEST_F(FairQueueTest, RemembersFewIdleFlows) {
  for (int i = 0; i < 100; ++i) Add("hog", 10);
  for (int i = 0; i < 10'000; ++i) {
    FairQueue::Job& job = Add("host " + std::to_string(i), 10);
    queue_.Launch(job, job.cost_ns);
    queue_.Leave(job);
    ASSERT_LE(queue_.callers(), FairQueue::kMaxIdle + 2);
  }
  EXPECT_EQ(queue_.InsideOf({"hog"}).of_caller, 100);
}

TEST(FlowTest, IsThePeersHostOrTheUserOfAUnixSocket) {
  EXPECT_EQ(HostOf("ipv4:192.0.2.1:50123"), "ipv4:192.0.2.1");
  EXPECT_EQ(HostOf("ipv4:192.0.2.1:1"), HostOf("ipv4:192.0.2.1:2"));
  EXPECT_EQ(HostOf("unix:uid:1000"), "uid:1000");
  EXPECT_EQ(HostOf("unix:"), "unix");
  EXPECT_EQ(HostOf(""), "");
}

TEST(FlowTest, IsThePeersNetworkOfIpv6) {
  EXPECT_EQ(HostOf("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:50123"), "ipv6:%5B2001:db8:1:2");
  EXPECT_EQ(HostOf("ipv6:[2001:db8:1:2::6]:50123"), "ipv6:[2001:db8:1:2");
  EXPECT_EQ(HostOf("ipv6:%5B2001:db8::1%5D:50123"), "ipv6:%5B2001:db8::");
  EXPECT_EQ(HostOf("ipv6:%5B2001::2:3:4:5:6%5D:50123"), "ipv6:%5B2001::2");
  EXPECT_EQ(HostOf("ipv6:%5B::1%5D:50123"), "ipv6:%5B::");
  EXPECT_EQ(HostOf("ipv6:%5Bfe80::1%25eth0%5D:50123"), "ipv6:%5Bfe80::");
}

// Whatever the system abbreviates.
TEST(FlowTest, NetworksOfIpv6HaveNamesOfTheirOwn) {
  RandomSource random;
  std::map<std::string, std::string> networks;  // By their names.
  std::map<std::string, std::set<std::string>> names;
  for (int i = 0; i < 100'000; ++i) {
    in6_addr address = {};
    for (size_t group = 0; group < 8; ++group) {
      // Mostly zeros.
      if (random.Between(0, 2) == 0) {
        address.s6_addr[2 * group + 1] = static_cast<uint8_t>(random.Between(0, 2));
      }
    }
    std::array<char, INET6_ADDRSTRLEN> text = {};
    ASSERT_NE(inet_ntop(AF_INET6, &address, text.data(), text.size()), nullptr);
    const std::string peer = std::string("ipv6:%5B") + text.data() + "%5D:1";
    const std::string network(reinterpret_cast<const char*>(address.s6_addr), 8);
    const std::string name(HostOf(peer));
    ASSERT_EQ(networks.emplace(name, network).first->second, network) << peer;
    names[network].insert(name);
    ASSERT_LE(names[network].size(), 3U) << peer;
  }
}

}  // namespace
}  // namespace gemmd
