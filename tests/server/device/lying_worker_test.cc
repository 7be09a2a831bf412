// SPDX-License-Identifier: Apache-2.0
//
// Workers whose answers cannot be true: they are replaced, and their answers reach nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

class LyingWorkerTest : public testing::TestWithParam<std::string> {};

TEST_P(LyingWorkerTest, IsReplaced) {
  WorkerDeviceOptions options = QuickOptions();
  options.program.binary = GEMMD_LYING_WORKER;
  WorkerRig rig(options);
  ASSERT_THAT(rig.device().readiness(), IsOk());
  SmallProduct product(8, 8, 8);
  ASSERT_THAT(product.Run(rig.device()).status, IsOk());  // It can tell the truth.

  rig.SetScript(GetParam());
  SmallProduct lied_about(8, 8, 8);
  ASSERT_THAT(lied_about.Run(rig.device()).status,
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("device: cuda:0 was lost while the product ran: "
                                 "the worker answered what was not asked")));

  rig.AwaitReadinesses(3);
  rig.AwaitReady();
  SmallProduct after(8, 8, 8);
  EXPECT_THAT(after.Run(rig.device()).status, IsOk());
  EXPECT_TRUE(after.IsRight());
}

// A worker that reports the next job as done without doing anything.
class IdleWorkerTest : public testing::Test {
 protected:
  static WorkerDeviceOptions Options() {
    WorkerDeviceOptions options = QuickOptions();
    options.program.binary = GEMMD_LYING_WORKER;
    options.tensor_limit_bytes = 1 << 20;
    return options;
  }

  DeviceBlock Allocate(int64_t bytes) { return AllocateBlock(rig_.device(), bytes); }
  absl::Status Run(const Job& job) {
    return Awaited(StartJob(rig_.device(), job), "the outcome of a job").status;
  }
  // Jobs are repeated, so that a result left from before would pass as the new one.
  void ExpectFoundOut(const Job& job) {
    ASSERT_THAT(Run(job), IsOk());
    rig_.SetScript("done");
    EXPECT_THAT(Run(job),
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr("the worker did not write the result that it told of")));
    rig_.AwaitReadinesses(3);
    rig_.AwaitReady();
  }
  void ExpectFoundOut(SmallProduct& product) { ExpectFoundOut(product.JobFor(rig_.device())); }
  void ExpectFoundOutInBlock(int64_t m, int64_t n, int64_t offset) {
    SmallProduct product(m, n, 8);
    Job job = product.JobFor(rig_.device());
    job.d = {.block = Allocate(4096), .offset = offset};
    ExpectFoundOut(job);
  }

  WorkerRig rig_{Options()};
};

TEST_F(IdleWorkerTest, IsNotBelieved) {
  SmallProduct product(8, 8, 8);
  ExpectFoundOut(product);
}

// A result of one number is shorter than a mark.
TEST_F(IdleWorkerTest, IsNotBelievedOfOneNumber) {
  SmallProduct product(1, 1, 8);
  ExpectFoundOut(product);
}

TEST_F(IdleWorkerTest, IsNotBelievedOfThreeNumbers) {
  SmallProduct product(1, 3, 8);
  ExpectFoundOut(product);
}

// A result this large is checked by the threads that copy.
TEST_F(IdleWorkerTest, IsNotBelievedOfAMegabyte) {
  SmallProduct product(512, 520, 8);
  ExpectFoundOut(product);
}

TEST_F(IdleWorkerTest, IsNotBelievedOfABlock) { ExpectFoundOutInBlock(8, 8, 256); }

TEST_F(IdleWorkerTest, IsNotBelievedOfABlockThatIsWrittenByCopying) {
  ExpectFoundOutInBlock(8, 8, 12);
}

TEST_F(IdleWorkerTest, IsNotBelievedOfOneNumberInABlock) { ExpectFoundOutInBlock(1, 1, 256); }

TEST_F(IdleWorkerTest, IsNotBelievedOfThreeNumbersInABlock) { ExpectFoundOutInBlock(1, 3, 12); }

TEST_F(IdleWorkerTest, IsNotBelievedOfPartsOfBlocks) {
  SmallProduct product(8, 8, 8);
  Job job = product.JobFor(rig_.device());
  const std::vector<DestinationPart> parts = {
      {.bytes = 64}, {.block = Allocate(64), .bytes = 64}, {.block = Allocate(128), .bytes = 128}};
  job.d = {.parts = parts};
  ExpectFoundOut(job);
}

TEST_F(IdleWorkerTest, IsNotBelievedOfASumInItsPlace) {
  SmallProduct product(8, 8, 8);
  product.problem().beta = 1;
  product.problem().c = product.problem().d;
  Job job = product.JobFor(rig_.device());
  const DeviceBlock sum = Allocate(job.d_bytes);
  job.c.block = sum;
  job.c.bytes = job.d_bytes;
  job.d = {.block = sum};
  ExpectFoundOut(job);
}

TEST(LyingWorkerTest, OneThatDoesNothingIsNotBelievedOfAStreamedJob) {
  WorkerDeviceOptions options = QuickOptions();
  options.program.binary = GEMMD_LYING_WORKER;
  options.staging_bytes = 96 << 10;
  WorkerRig rig(options);
  SmallProduct product(200, 210, 220);
  ASSERT_THAT(product.Run(rig.device()).status, IsOk());
  rig.SetScript("done");
  SmallProduct same(200, 210, 220);
  EXPECT_THAT(same.Run(rig.device()).status,
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the worker did not write the result that it told of")));
  rig.AwaitReadinesses(3);
  rig.AwaitReady();
}

INSTANTIATE_TEST_SUITE_P(Lies, LyingWorkerTest,
                         testing::Values("id", "copy_in", "compute", "copy_out", "longer",
                                         "longest"),
                         [](const auto& lie) { return lie.param; });

}  // namespace
}  // namespace gemmd
