// SPDX-License-Identifier: Apache-2.0
//
// Many jobs at once on one GPU: their bits are right whatever the order in which the lanes proceed,
// results stay in place until they are released, and nobody waits for those who hold results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/device/job.h"
#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

// A worker whose lanes proceed in random order.
class DelayedWorker {
 public:
  explicit DelayedWorker(int seed) {
    setenv("GEMMD_WORKER_SEED", std::to_string(seed).c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  }
  ~DelayedWorker() { unsetenv("GEMMD_WORKER_SEED"); }  // NOLINT(concurrency-mt-unsafe)
};

class AnyOrderTest : public testing::TestWithParam<int> {};

// Products of all sizes through one lane, three lanes, and blocks that are written and read
// repeatedly, a chain of them in place.
TEST_P(AnyOrderTest, GivesTheSameBits) {
  const DelayedWorker delayed(GetParam());
  WorkerDeviceOptions options = QuickOptions();
  options.staging_bytes = 3 << 20;
  WorkerRig rig(options);
  DeviceMemory& memory = *rig.device().memory();
  std::promise<absl::StatusOr<DeviceBlock>> allocated;
  memory.Allocate(1 << 20, [&](absl::StatusOr<DeviceBlock> got) { allocated.set_value(got); });
  const DeviceBlock block = Awaited(allocated.get_future(), "a block").value();
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  const auto extent = [&](int64_t most) { return static_cast<int64_t>(random() % most) + 1; };

  const int count = kIsSanitized ? 20 : 60;
  std::vector<std::unique_ptr<SmallProduct>> products;
  std::vector<std::future<JobOutcome>> outcomes;
  std::vector<std::string> read(static_cast<size_t>(count));
  std::vector<std::future<absl::Status>> copies;
  const auto end_of_copy = [&] {
    auto done = std::make_shared<std::promise<absl::Status>>();
    copies.push_back(done->get_future());
    return [done](absl::Status status) { done->set_value(std::move(status)); };
  };
  for (size_t i = 0; i < read.size(); ++i) {
    const bool is_large = random() % 3 == 0;
    const int64_t most = is_large ? 300 : 40;
    products.push_back(std::make_unique<SmallProduct>(extent(most), extent(most), extent(most)));
    SmallProduct& product = *products.back();
    Job job = product.JobFor(rig.device());
    const int64_t at = 256 * extent(100) + (random() % 2 == 0 ? 0 : 2);
    if (random() % 2 == 0) {
      memory.Write(block, at, {PieceOf(product.b())}, end_of_copy());
      job.b = {.pieces = {}, .block = block, .offset = at, .bytes = job.b.bytes};
    }
    const int64_t d_at = 300'000 + 256 * extent(100) + (random() % 2 == 0 ? 0 : 4);
    const bool is_d_in_block = random() % 2 == 0;
    if (is_d_in_block) job.d = {.block = block, .offset = d_at};
    outcomes.push_back(StartJob(rig.device(), job));
    if (is_d_in_block) {
      read[i].resize(static_cast<size_t>(job.d_bytes));
      memory.Read(block, d_at,
                  absl::MakeSpan(reinterpret_cast<std::byte*>(read[i].data()), read[i].size()),
                  end_of_copy());
    }
  }
  for (size_t i = 0; i < read.size(); ++i) {
    ASSERT_THAT(Awaited(std::move(outcomes[i]), "the outcome of a job").status, IsOk()) << i;
  }
  for (std::future<absl::Status>& copy : copies)
    ASSERT_THAT(Awaited(std::move(copy), "a copy"), IsOk());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_TRUE((read[i].empty() ? products[i]->d() : read[i]) == products[i]->Expected()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyOrderTest, testing::Range(1, kIsSanitized ? 3 : 7));

// The part of the staging area for results has room for one of these; the others are on the heap.
TEST(PipelineTest, ResultsThatNobodyReadsKeepNobodyWaiting) {
  WorkerDeviceOptions options = QuickOptions();
  options.staging_bytes = 600 << 10;
  WorkerRig rig(options);
  std::vector<JobOutcome> held;
  for (int i = 0; i < 8; ++i) {
    SmallProduct product(200, 200, 20);
    Job job = product.JobFor(rig.device());
    job.d = {};
    held.push_back(Awaited(StartJob(rig.device(), job), "the outcome of a job"));
    ASSERT_THAT(held.back().status, IsOk());
    const absl::Span<const std::byte> d = held.back().d.bytes();
    EXPECT_TRUE(d == PieceOf(product.Expected())) << i;
  }
  EXPECT_EQ(rig.device().condition().staging_used_bytes, 160'000 + 0);
  held.clear();
  EXPECT_EQ(rig.device().condition().staging_used_bytes, 0);
}

TEST(PipelineTest, ResultsOutliveTheirDevice) {
  SmallProduct product(100, 100, 20);
  JobOutcome outcome;
  {
    WorkerRig rig;
    Job job = product.JobFor(rig.device());
    job.d = {};
    outcome = Awaited(StartJob(rig.device(), job), "the outcome of a job");
  }
  EXPECT_TRUE(outcome.d.bytes() == PieceOf(product.Expected()));
}

// All jobs of the worker and all waiting jobs are answered once; those that had begun get another
// status than the others.
TEST(PipelineTest, ALostWorkerLosesAllThatItHas) {
  WorkerDeviceOptions options = QuickOptions();
  options.watchdog_min = options.watchdog_max = absl::Seconds(5);
  WorkerRig rig(options);
  rig.SetScript("Launch 3 hang");
  std::vector<std::unique_ptr<SmallProduct>> products;
  std::vector<std::future<JobOutcome>> outcomes;
  for (int i = 0; i < 60; ++i) {
    products.push_back(std::make_unique<SmallProduct>(8, 8, i % 2 == 0 ? 8 : 5000));
    outcomes.push_back(products.back()->Start(rig.device()));
  }
  EXPECT_TRUE(Eventually([&] { return !rig.HasScript(); })) << "the worker reads no script";
  EXPECT_TRUE(Eventually([&] {
    return std::count_if(outcomes.begin(), outcomes.end(), [](const auto& outcome) {
             return outcome.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
           }) >= 2;
  }));
  // Once the third job has timed out, it has certainly begun; a worker that is killed may not have
  // begun it.
  int done = 0;
  int aborted = 0;
  for (std::future<JobOutcome>& outcome : outcomes) {
    const absl::Status status = Awaited(std::move(outcome), "the outcome of a job").status;
    done += status.ok() ? 1 : 0;
    aborted += absl::IsAborted(status) ? 1 : 0;
    EXPECT_TRUE(status.ok() || absl::IsAborted(status) || absl::IsUnavailable(status)) << status;
  }
  EXPECT_EQ(done, 2);
  EXPECT_GE(aborted, 1);
  rig.AwaitReadinesses(3);
  SmallProduct after(8, 8, 8);
  EXPECT_THAT(after.Run(rig.device()).status, IsOk());
  EXPECT_TRUE(after.IsRight());
  EXPECT_EQ(rig.device().condition().staging_used_bytes, 0);
}

// A canary that is due gets the worker for itself, however many jobs come.
TEST(PipelineTest, CanariesComeBetweenJobsWithoutEnd) {
  WorkerDeviceOptions options = QuickOptions();
  options.canary_interval = absl::Milliseconds(5);
  WorkerRig rig(options);
  std::vector<std::unique_ptr<SmallProduct>> products;
  std::vector<std::future<JobOutcome>> outcomes;
  for (int i = 0; i < 3; ++i) products.push_back(std::make_unique<SmallProduct>(16, 16, 16));
  for (const auto& product : products) outcomes.push_back(product->Start(rig.device()));
  EXPECT_TRUE(Eventually([&] {
    for (size_t i = 0; i < outcomes.size(); ++i) {
      if (outcomes[i].wait_for(std::chrono::seconds(0)) != std::future_status::ready) continue;
      EXPECT_THAT(outcomes[i].get().status, IsOk());
      EXPECT_TRUE(products[i]->IsRight());
      outcomes[i] = products[i]->Start(rig.device());
    }
    return rig.device().condition().canaries_passed >= 5;
  }));
  for (std::future<JobOutcome>& outcome : outcomes) EXPECT_THAT(outcome.get().status, IsOk());
}

}  // namespace
}  // namespace gemmd
