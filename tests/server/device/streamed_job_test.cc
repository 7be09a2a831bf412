// SPDX-License-Identifier: Apache-2.0
//
// Jobs that are larger than the staging area pass through it in parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "server/device/job.h"
#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

WorkerDeviceOptions TinyStaging() {
  WorkerDeviceOptions options = QuickOptions();
  options.staging_bytes = 96 << 10;
  return options;
}

TEST(StreamedJobTest, GivesTheRightProduct) {
  WorkerRig rig(TinyStaging());
  SmallProduct product(200, 210, 220);
  ExpectRightWhereverItGoes(rig, product);
}

TEST(StreamedJobTest, LeavesWhatLiesBetweenTheLinesOfD) {
  WorkerRig rig(TinyStaging());
  SmallProduct product(100, 100, 300);
  product.problem().d.leading_dimension = 110;
  product.problem().d.batch_stride_bytes = 100 * 110 * 4;
  ASSERT_THAT(product.Run(rig.device()).status, IsOk());
  std::string want(product.d().size(), 'x');
  for (size_t i = 0; i < 100; ++i) want.replace(i * 440, 400, product.Expected(), i * 400, 400);
  EXPECT_TRUE(product.d() == want);
}

// Jobs for which there is no memory beside the others wait.
TEST(StreamedJobTest, ManyAtOnceHaveTheMemoryOneAfterTheOther) {
  WorkerDeviceOptions options = TinyStaging();
  options.memory_limit_bytes = 1 << 20;
  WorkerRig rig(options);
  std::vector<std::unique_ptr<SmallProduct>> products;
  std::vector<std::future<JobOutcome>> outcomes;
  for (int i = 0; i < 8; ++i) {
    products.push_back(std::make_unique<SmallProduct>(200, 200, i % 2 == 0 ? 300 : 8));
    outcomes.push_back(products.back()->Start(rig.device()));
  }
  for (size_t i = 0; i < products.size(); ++i) {
    EXPECT_THAT(Awaited(std::move(outcomes[i]), "the outcome of a job").status, IsOk()) << i;
    EXPECT_TRUE(products[i]->IsRight()) << i;
  }
  EXPECT_EQ(rig.device().memory()->used_bytes(), 0);
}

TEST(StreamedJobTest, IndicesThatDoNotIncreaseAreRefused) {
  WorkerRig rig(TinyStaging());
  SmallProduct product(400, 400, 400);
  Job job = product.JobFor(rig.device());
  // Two indices of 0 are invalid; they are the zeros among the integers.
  job.problem.a = TightSparseLayout("a", ElementType::kF16, 400, 400).value();
  job.a.bytes = BytesOf("a", job.problem.a, 1)->least;
  const Piece part = job.a.pieces[0].first(static_cast<size_t>(job.a.bytes));
  job.a.pieces = absl::MakeConstSpan(&part, 1);
  EXPECT_THAT(Awaited(StartJob(rig.device(), job), "the outcome of a job").status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want increasing")));
}

TEST(StreamedJobTest, EndsWhenItIsAborted) {
  WorkerRig rig(TinyStaging());
  rig.SetScript("CopyIn 2 hang");
  SmallProduct product(200, 210, 220);
  std::future<JobOutcome> outcome = product.Start(rig.device(), 1);
  SmallProduct waiting(200, 210, 220);
  std::future<JobOutcome> next = waiting.Start(rig.device(), 2);
  EXPECT_TRUE(Eventually([&] { return !rig.HasScript(); })) << "the worker reads no script";
  rig.device().Abort(1);
  rig.device().Abort(2);
  kill(rig.device().worker_pid(), SIGKILL);
  EXPECT_THAT(Awaited(std::move(outcome), "the aborted job").status,
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Awaited(std::move(next), "the next job").status,
              StatusIs(absl::StatusCode::kCancelled));
}

// Nothing was computed, so the caller may retry.
TEST(StreamedJobTest, OneWhoseWorkerIsLostOnTheWayIsUnavailable) {
  WorkerRig rig(TinyStaging());
  rig.SetScript("CopyIn 2 hang");
  SmallProduct product(200, 210, 220);
  std::future<JobOutcome> outcome = product.Start(rig.device());
  EXPECT_TRUE(Eventually([&] { return !rig.HasScript(); })) << "the worker reads no script";
  kill(rig.device().worker_pid(), SIGKILL);
  EXPECT_THAT(Awaited(std::move(outcome), "the outcome of the job").status,
              StatusIs(absl::StatusCode::kUnavailable));
  rig.AwaitReadinesses(3);
  EXPECT_THAT(product.Run(rig.device()).status, IsOk());
  EXPECT_TRUE(product.IsRight());
}

}  // namespace
}  // namespace gemmd
