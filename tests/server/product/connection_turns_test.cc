// SPDX-License-Identifier: Apache-2.0
//
// How a caller's part of a device is shared among its connections.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "server/product/queue.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

constexpr int64_t kAnyCost = int64_t{1} << 60;

// A caller's name and the number of the connection.
using Name = std::pair<std::string, uint64_t>;

FlowId IdOf(const Name& name) { return {.caller = name.first, .connection = name.second}; }

class ConnectionTurnsTest : public ::testing::Test {
 protected:
  FairQueue::Job& Add(const Name& name, int64_t cost_ns, double share = 1) {
    FairQueue::Job& job = jobs_.emplace_back();
    job.id = jobs_.size();
    job.cost_ns = cost_ns;
    job.share = share;
    names_[job.id] = name;
    queue_.Enter(IdOf(name), job);
    return job;
  }

  void Add(int count, const Name& name, int64_t cost_ns, double share = 1) {
    for (int i = 0; i < count; ++i) Add(name, cost_ns, share);
  }

  // Launches the next job and ends it. Returns its flow.
  Name Run() {
    FairQueue::Job& job = queue_.first();
    const int64_t cost_ns = job.cost_ns;
    queue_.Launch(job, cost_ns);
    queue_.Leave(job);
    const Name name = names_[job.id];
    had_ns_[name] += cost_ns;
    callers_had_ns_[name.first] += cost_ns;
    return name;
  }

  FairQueue queue_;
  std::deque<FairQueue::Job> jobs_;
  std::map<JobId, Name> names_;
  std::map<Name, int64_t> had_ns_;
  std::map<std::string, int64_t> callers_had_ns_;
};

TEST_F(ConnectionTurnsTest, HostsHaveEqualPartsWhateverConnectionsTheyHave) {
  Add(200, {"one", 0}, 10);
  for (uint64_t connection = 0; connection < 9; ++connection) Add(40, {"many", connection}, 10);
  for (int i = 0; i < 300; ++i) {
    Run();
    EXPECT_LE(std::abs(callers_had_ns_["one"] - callers_had_ns_["many"]), 10);
  }
}

TEST_F(ConnectionTurnsTest, SharesAreThoseOfCallers) {
  for (uint64_t connection = 0; connection < 3; ++connection) {
    Add(400, {"triple", connection}, 30, 3);
    Add(400, {"one", connection}, 30);
  }
  for (int i = 0; i < 400; ++i) {
    Run();
    EXPECT_LE(std::abs(callers_had_ns_["triple"] - 3 * callers_had_ns_["one"]), 3 * 30 + 30);
  }
}

TEST_F(ConnectionTurnsTest, ConnectionsOfAHostHaveEqualTime) {
  Add(400, {"host", 0}, 10);
  Add(200, {"host", 1}, 30);
  Add(100, {"host", 2}, 60);
  for (int i = 0; i < 200; ++i) {
    Run();
    EXPECT_LE(std::abs(had_ns_[{"host", 0}] - had_ns_[{"host", 1}]), 2 * (10 + 30));
    EXPECT_LE(std::abs(had_ns_[{"host", 0}] - had_ns_[{"host", 2}]), 2 * (10 + 60));
  }
}

// A connection that waits for each answer, beside four connections of the same host with a hundred
// jobs each, gets every second turn, and so never waits for more than the running job and one
// other.
TEST_F(ConnectionTurnsTest, WhoeverWaitsForEachAnswerWaitsForOneJob) {
  for (uint64_t hog = 1; hog <= 4; ++hog) Add(100, {"host", hog}, 10);
  for (int i = 0; i < 20; ++i) Run();
  const Name light = {"host", 9};
  for (int i = 0; i < 50; ++i) {
    Run();  // It runs when the call comes,
    Add(light, 10);
    if (Run() != light) {  // and this one has the same tag.
      EXPECT_EQ(Run(), light);
    }
  }
  EXPECT_EQ(had_ns_[light], 50 * 10);
}

// A connection with only one job at a time gets no more than half of the host's part.
TEST_F(ConnectionTurnsTest, LongJobsOfOneThatWaitsForEachAnswerHaveHalf) {
  for (uint64_t hog = 1; hog <= 4; ++hog) Add(1000, {"host", hog}, 10);
  const Name slow = {"host", 9};
  while (callers_had_ns_["host"] < 20'000) {
    if (queue_.InsideOf(IdOf(slow)).of_connection == 0) Add(slow, 400);
    Run();
  }
  EXPECT_GE(had_ns_[slow], 10'000 - 400);
  EXPECT_LE(had_ns_[slow], 10'000 + 400);
}

// Nine connections that wait for each answer get nine tenths, like nine of ten connections.
TEST_F(ConnectionTurnsTest, WhoeverWaitsForEachAnswerHasAsMuchAsAHog) {
  Add(1000, {"host", 0}, 1000);
  for (int i = 0; i < 1000; ++i) {
    for (uint64_t light = 1; light <= 9; ++light) {
      if (queue_.InsideOf({"host", light}).of_connection == 0) Add({"host", light}, 1000);
    }
    Run();
  }
  for (uint64_t connection = 0; connection <= 9; ++connection) {
    const Name name = {"host", connection};
    EXPECT_GE(had_ns_[name], 95'000) << connection;
    EXPECT_LE(had_ns_[name], 105'000) << connection;
  }
}

TEST_F(ConnectionTurnsTest, CountsWhatIsInside) {
  Add(3, {"host", 1}, 10);
  Add(2, {"host", 2}, 10);
  EXPECT_EQ(queue_.InsideOf({"host", 1}).of_caller, 5);
  EXPECT_EQ(queue_.InsideOf({"host", 1}).of_connection, 3);
  EXPECT_EQ(queue_.InsideOf({"host", 3}).of_connection, 0);
  EXPECT_EQ(queue_.InsideOf({"other", 1}).of_caller, 0);
  while (!queue_.empty()) Run();
  EXPECT_EQ(queue_.InsideOf({"host", 1}).of_caller, 0);
  EXPECT_EQ(queue_.InsideOf({"host", 1}).of_connection, 0);
  EXPECT_EQ(queue_.callers(), 1U);  // Because of the time that it had.
  // The first job of each was alone on its connection.
  EXPECT_EQ(queue_.connections(), 4U);
}

TEST_F(ConnectionTurnsTest, ACallerWithoutJobsKeepsFewConnections) {
  constexpr size_t kKept = FairQueue::kMaxKeptConnections;
  const auto run_all = [this](size_t connections) {
    for (uint64_t i = 0; i < connections; ++i) Add(2, {"host", i}, 10);
    while (!queue_.empty()) Run();
    return queue_.connections();
  };
  static_assert(kKept >= 16, "as many as a program with a connection for each thread may have");
  EXPECT_EQ(run_all(kKept), 2 * kKept);
  EXPECT_EQ(run_all(kKept + 1), 0U);
  run_all(1000);
  EXPECT_LE(queue_.spares(), 2 * kKept + 4);
}

// The connections that a caller without jobs keeps are not charged for what they had.
TEST_F(ConnectionTurnsTest, DebtsAreForgottenOnceACallerHasNoJobs) {
  Add({"host", 1}, 1000);
  Run();
  Add({"host", 1}, 10);
  Add({"host", 2}, 10);
  EXPECT_EQ(Run(), Name("host", 1));  // It came first.
}

// A host that opens a connection for each product, while it always has some jobs inside.
TEST_F(ConnectionTurnsTest, RemembersFewIdleConnections) {
  Add(10, {"hog", 0}, 10);
  for (uint64_t i = 1; i < 10'000; ++i) {
    for (int k = 0; k < 2; ++k) {
      FairQueue::Job& job = Add({"hog", i}, 1000);
      queue_.Launch(job, job.cost_ns);
      if (k == 1) queue_.Leave(job);
    }
    queue_.Leave(jobs_[jobs_.size() - 2]);
    ASSERT_LE(queue_.connections(), 2 * FairQueue::kMaxIdleConnections + 4);
  }
  EXPECT_EQ(queue_.InsideOf({"hog", 0}).of_connection, 10);
}

// Compares the wait predicted for a further job with the jobs that are launched before it. In each
// flow beside its own, one job may begin that ends later, or may not begin: the flows of the
// caller's own connections, and those within the parts of the other callers.
TEST_F(ConnectionTurnsTest, TheNewcomerWaitsAsLongAsWasTold) {
  RandomSource random;
  constexpr int64_t kCallers = 3;
  constexpr int64_t kConnections = 3;
  for (int64_t round = 0; round < RandomSource::Cases(300); ++round) {
    SCOPED_TRACE(random.trace() + " round " + std::to_string(round));
    const int64_t longest_ns = round % 2 == 0 ? 1 : 60;
    queue_ = FairQueue();
    const auto any = [&] {
      return Name(std::string(1, static_cast<char>('a' + random.Between(0, kCallers - 1))),
                  random.Between(0, kConnections - 1));
    };
    const int64_t count = random.Between(1, 200);
    for (int64_t i = 0; i < count; ++i) {
      Add(any(), random.Between(1, longest_ns));
      if (random.Between(0, 2) == 0) Run();
    }
    const Name name = any();
    const int64_t told_ns = queue_.AheadOf(IdOf(name), kAnyCost).waiting_ns;
    const JobId newcomer = Add(name, 1).id;
    int64_t waited_ns = 0;
    for (; queue_.first().id != newcomer; Run()) waited_ns += queue_.first().cost_ns;
    // The connections beside it in both flows of its caller, times the callers.
    constexpr int64_t kMaxJobs = 2 * kConnections * kCallers;
    EXPECT_LE(std::abs(told_ns - waited_ns), kMaxJobs * longest_ns);
    while (!queue_.empty()) Run();
  }
}

}  // namespace
}  // namespace gemmd
