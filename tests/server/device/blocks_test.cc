// SPDX-License-Identifier: Apache-2.0
//
// Blocks of a GPU's memory: reads return what was written, jobs find their matrices in them, and
// uses of lost blocks fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "kernels/matrix/sparse24.h"
#include "server/device/job.h"
#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string RandomBytes(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

class BlocksTest : public testing::Test {
 protected:
  static WorkerDeviceOptions Options() {
    WorkerDeviceOptions options = QuickOptions();
    options.staging_bytes = 96 << 10;
    options.tensor_limit_bytes = 1 << 20;
    return options;
  }

  DeviceMemory& memory() { return *rig_.device().memory(); }

  absl::StatusOr<DeviceBlock> Allocate(int64_t bytes) {
    std::promise<absl::StatusOr<DeviceBlock>> block;
    memory().Allocate(bytes,
                      [&](absl::StatusOr<DeviceBlock> got) { block.set_value(std::move(got)); });
    return Awaited(block.get_future(), "a block");
  }
  std::future<absl::Status> StartWrite(DeviceBlock block, int64_t offset,
                                       const std::string& bytes) {
    auto done = std::make_shared<std::promise<absl::Status>>();
    const Piece whole = PieceOf(bytes);
    memory().Write(block, offset,
                   {whole.first(bytes.size() / 3), {}, whole.subspan(bytes.size() / 3)},
                   [done](absl::Status status) { done->set_value(std::move(status)); });
    return done->get_future();
  }
  absl::Status Write(DeviceBlock block, int64_t offset, const std::string& bytes) {
    return Awaited(StartWrite(block, offset, bytes), "a write");
  }
  absl::StatusOr<BadGroup> Compress(const CompressTask& task) {
    std::promise<absl::StatusOr<BadGroup>> done;
    memory().Compress(task, [&](absl::StatusOr<BadGroup> bad) { done.set_value(std::move(bad)); });
    return Awaited(done.get_future(), "a compression");
  }
  // The bytes, or the error's message.
  std::string Read(DeviceBlock block, int64_t offset, size_t bytes) {
    std::string to(bytes, 'x');
    std::promise<absl::Status> done;
    memory().Read(block, offset, absl::MakeSpan(reinterpret_cast<std::byte*>(to.data()), bytes),
                  [&](absl::Status status) { done.set_value(std::move(status)); });
    const absl::Status status = Awaited(done.get_future(), "a read");
    return status.ok() ? to : std::string(status.message());
  }
  DeviceBlock BlockOf(const std::string& bytes, int64_t offset = 0) {
    const DeviceBlock block = Allocate(offset + static_cast<int64_t>(bytes.size())).value();
    EXPECT_THAT(Write(block, offset, bytes), IsOk());
    return block;
  }
  static Source In(DeviceBlock block, const std::string& bytes, int64_t offset = 0) {
    Source source;
    source.block = block;
    source.offset = offset;
    source.bytes = static_cast<int64_t>(bytes.size());
    return source;
  }
  absl::Status Run(const Job& job) {
    return Awaited(StartJob(rig_.device(), job), "the outcome of a job").status;
  }

  WorkerRig rig_{Options()};
};

TEST_F(BlocksTest, AreZerosAndKeepWhatIsWritten) {
  EXPECT_EQ(memory().capacity_bytes(), 1 << 20);
  const DeviceBlock block = Allocate(1000).value();
  EXPECT_EQ(memory().used_bytes(), 1024);
  EXPECT_EQ(Read(block, 0, 1000), std::string(1000, '\0'));
  EXPECT_THAT(Write(block, 3, "abcdef"), IsOk());
  EXPECT_EQ(Read(block, 2, 8), std::string("\0abcdef\0", 8));
  EXPECT_THAT(Write(block, 1000, ""), IsOk());
  EXPECT_EQ(Read(block, 1000, 0), "");
}

// Larger than the staging area, so in chunks.
TEST_F(BlocksTest, MayBeLargerThanTheStagingArea) {
  const std::string bytes = RandomBytes(700'001, 1);
  const DeviceBlock block = BlockOf(bytes, 5);
  EXPECT_TRUE(Read(block, 5, bytes.size()) == bytes);
  EXPECT_EQ(Read(block, 0, 5), std::string(5, '\0'));
  EXPECT_EQ(rig_.device().condition().staging_used_bytes, 0);
}

TEST_F(BlocksTest, ThoseOfSomebodyElseAreClearedFirst) {
  const std::string secret = RandomBytes(900'000, 2);
  memory().Free(BlockOf(secret));
  EXPECT_EQ(memory().used_bytes(), 0);
  const DeviceBlock next = Allocate(900'000).value();
  EXPECT_TRUE(Read(next, 0, 900'000) == std::string(900'000, '\0'));
}

TEST_F(BlocksTest, RangesOutsideAndBlocksThatAreNoneAreRefused) {
  const DeviceBlock block = Allocate(100).value();
  EXPECT_THAT(Write(block, 97, "abcd"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a range of its 100")));
  EXPECT_THAT(Read(block, -1, 1), HasSubstr("from -1 on"));
  EXPECT_THAT(Read(block + 1, 0, 1), HasSubstr("block: got"));
  EXPECT_THAT(Allocate(0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Allocate(-1), StatusIs(absl::StatusCode::kInvalidArgument));
  memory().Free(block);
  memory().Free(block);
  EXPECT_THAT(Write(block, 0, "a"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(BlocksTest, TakeNoMoreThanTheCapacity) {
  const DeviceBlock half = Allocate(600 << 10).value();
  EXPECT_THAT(Allocate((424 << 10) + 1), StatusIs(absl::StatusCode::kResourceExhausted,
                                                  HasSubstr("four fifths of --gpu-memory-bytes")));
  EXPECT_THAT(Allocate(int64_t{1} << 62), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Allocate(424 << 10), IsOk());
  memory().Free(half);
  EXPECT_THAT(Allocate(600 << 10), IsOk());
}

// Every operand and D, at offsets from which no kernel reads.
TEST_F(BlocksTest, HoldTheMatricesOfJobs) {
  for (const int64_t offset : {0, 256, 34}) {
    SmallProduct product(21, 17, 40);
    Job job = product.JobFor(rig_.device());
    job.a = In(BlockOf(product.a(), offset), product.a(), offset);
    job.b = In(BlockOf(product.b(), offset), product.b(), offset);
    const DeviceBlock d = Allocate(offset + job.d_bytes + 10).value();
    job.d = {.block = d, .offset = offset};
    ASSERT_THAT(Run(job), IsOk());
    EXPECT_TRUE(Read(d, offset, static_cast<size_t>(job.d_bytes)) == product.Expected()) << offset;
    EXPECT_EQ(Read(d, offset + job.d_bytes, 10), std::string(10, '\0'));
  }
}

// D is larger than the staging area. The indices were checked when A was written.
TEST_F(BlocksTest, HoldASparseMatrixOfAJobInParts) {
  SmallProduct product(200, 200, 40);
  const SparseLayout one = SparseLayoutOf("a", ElementType::kF16, 200, 40).value();
  std::string dense = product.a();
  std::string sparse(static_cast<size_t>(one.bytes), '\0');
  PruneByMagnitude(one, reinterpret_cast<std::byte*>(dense.data()));
  ASSERT_THAT(gemmd::Compress("a", one, reinterpret_cast<const std::byte*>(dense.data()),
                              reinterpret_cast<std::byte*>(sparse.data())),
              IsOk());
  product.problem().a = TightSparseLayout("a", ElementType::kF16, 200, 40).value();
  Job job = product.JobFor(rig_.device());
  SourcePieces pieces;
  job.a = pieces.Add(PieceOf(sparse));
  ASSERT_THAT(Run(job), IsOk());
  const std::string want = product.d();
  EXPECT_FALSE(product.IsRight()) << "nothing was pruned";
  job = product.JobFor(rig_.device());
  job.a = In(BlockOf(sparse), sparse);
  ASSERT_THAT(Run(job), IsOk());
  EXPECT_TRUE(product.d() == want);
}

TEST_F(BlocksTest, WhatLiesBetweenTheLinesOfDStays) {
  for (const int64_t offset : {0, 4}) {
    SmallProduct product(5, 6, 7);
    product.problem().d.leading_dimension = 9;
    product.problem().d.batch_stride_bytes = 5 * 9 * 4;
    const std::string before = RandomBytes(300, 3);
    const DeviceBlock d = BlockOf(before);
    Job job = product.JobFor(rig_.device());
    job.d = {.block = d, .offset = offset};
    ASSERT_THAT(Run(job), IsOk());
    std::string want = before;
    for (size_t i = 0; i < 5; ++i) {
      want.replace(static_cast<size_t>(offset) + i * 36, 24, product.Expected(), i * 24, 24);
    }
    EXPECT_TRUE(Read(d, 0, 300) == want) << offset;
  }
}

// D = A B + C, where C is D.
TEST_F(BlocksTest, CMayBeD) {
  SmallProduct product(8, 8, 8);
  product.problem().beta = 1;
  product.problem().c = product.problem().d;
  Job job = product.JobFor(rig_.device());
  const DeviceBlock sum = Allocate(job.d_bytes).value();
  job.c = In(sum, product.Expected());
  job.d = {.block = sum};
  for (int i = 0; i < 3; ++i) ASSERT_THAT(Run(job), IsOk());
  std::string want = product.Expected();
  for (size_t i = 0; i < want.size(); i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, want.data() + i, sizeof(value));
    value *= 3;
    std::memcpy(want.data() + i, &value, sizeof(value));
  }
  EXPECT_TRUE(Read(sum, 0, want.size()) == want);
}

CompressTask TaskOf(DeviceBlock dense, DeviceBlock result) {
  CompressTask task;
  task.dense = TightLayout("w", ElementType::kF16, Order::kRowMajor, 30, 70).value();
  task.dense_block = dense;
  task.result_block = result;
  task.end_line = 30;
  return task;
}

// Consecutive lines, in two calls, of which the second has a mask.
TEST_F(BlocksTest, AreCompressed) {
  const std::string dense = RandomBytes(30 * 140, 7);
  const std::string mask(30 * 9, '\x33');
  std::string want(static_cast<size_t>(SparseLayoutOf("w", ElementType::kF16, 30, 70)->bytes), 'x');
  CompressTask task = TaskOf(BlockOf(dense), Allocate(static_cast<int64_t>(want.size())).value());
  task.mask = TightLayout("mask", ElementType::kB1, Order::kRowMajor, 30, 70).value();
  const DeviceBlock mask_block = BlockOf(mask);
  for (const auto& [first, end] : {std::pair{0, 11}, std::pair{11, 30}}) {
    task.first_line = first;
    task.end_line = end;
    EXPECT_EQ(Compress(task).value(), kNoBadGroup);
    CompressLines(ViewOf(task, reinterpret_cast<const std::byte*>(dense.data()),
                         reinterpret_cast<const std::byte*>(mask.data()),
                         reinterpret_cast<std::byte*>(want.data())));
    task.mask_block = mask_block;
  }
  EXPECT_TRUE(Read(task.result_block, 0, want.size()) == want);
  EXPECT_THAT(Write(mask_block, 9 * 20 + 1, "\x73"), IsOk());  // 3 of a group.
  EXPECT_EQ(Compress(task).value(), MakeBadGroup(20 * 18 + 3, 3));
  EXPECT_EQ(rig_.device().condition().staging_used_bytes, 0);
}

TEST_F(BlocksTest, WhatCannotBeCompressedIsRefused) {
  const CompressTask right = TaskOf(Allocate(30 * 140).value(), Allocate(30 * 81).value());
  EXPECT_THAT(Compress(right), IsOk());
  CompressTask task = right;
  task.end_line = 31;
  EXPECT_THAT(Compress(task), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lines")));
  task = right;
  task.dense.rows = 31;
  EXPECT_THAT(Compress(task), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("range")));
  task = right;
  task.dense.type = ElementType::kF64;
  EXPECT_THAT(Compress(task), StatusIs(absl::StatusCode::kInvalidArgument));
  task = right;
  task.result_block = 77;
  EXPECT_THAT(Compress(task), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("block")));
}

TEST_F(BlocksTest, ACompressionWhoseWorkerIsLostIsLost) {
  const CompressTask task = TaskOf(Allocate(30 * 140).value(), Allocate(30 * 81).value());
  rig_.SetScript("Compress 1 exit");
  EXPECT_THAT(Compress(task),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tensor lost")));
  rig_.AwaitReadinesses(3);
  ExpectRightProduct(rig_);
}

// Without waiting in between.
TEST_F(BlocksTest, CallsKeepTheirOrder) {
  SmallProduct product(64, 64, 64);
  Job job = product.JobFor(rig_.device());
  const std::string wrong = RandomBytes(product.b().size(), 4);
  const DeviceBlock b = Allocate(static_cast<int64_t>(wrong.size())).value();
  job.b = In(b, wrong);
  std::future<absl::Status> right = StartWrite(b, 0, product.b());
  std::future<JobOutcome> outcome = StartJob(rig_.device(), job);
  std::future<absl::Status> after = StartWrite(b, 0, wrong);
  memory().Free(b);
  EXPECT_THAT(Awaited(std::move(outcome), "the outcome of a job").status, IsOk());
  EXPECT_TRUE(product.IsRight());
  EXPECT_THAT(Awaited(std::move(right), "a write"), IsOk());
  EXPECT_THAT(Awaited(std::move(after), "a write"), IsOk());
}

TEST_F(BlocksTest, JobsOutsideTheirBlocksAreRefused) {
  SmallProduct product(8, 8, 8);
  Job job = product.JobFor(rig_.device());
  const DeviceBlock a = BlockOf(product.a());
  job.a = In(a, product.a(), 2);
  EXPECT_THAT(Run(job), StatusIs(absl::StatusCode::kInvalidArgument));
  job.a = In(a, product.a());
  job.d = {.block = a};
  EXPECT_THAT(Run(job), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(BlocksTest, AreLostWithTheirWorker) {
  SmallProduct product(8, 8, 8);
  Job job = product.JobFor(rig_.device());
  const DeviceBlock a = BlockOf(product.a());
  job.a = In(a, product.a());
  ASSERT_THAT(Run(job), IsOk());
  const uint64_t generation = memory().generation();
  kill(rig_.device().worker_pid(), SIGKILL);
  rig_.AwaitReadinesses(3);
  EXPECT_GT(memory().generation(), generation);
  EXPECT_EQ(memory().used_bytes(), 0);
  EXPECT_THAT(Run(job), StatusIs(absl::StatusCode::kFailedPrecondition, StartsWith("tensor lost")));
  EXPECT_THAT(Write(a, 0, "x"),
              StatusIs(absl::StatusCode::kFailedPrecondition, StartsWith("tensor lost")));
  EXPECT_THAT(Read(a, 0, 1), StartsWith("tensor lost"));
  memory().Free(a);
  const DeviceBlock again = BlockOf(product.a());
  EXPECT_NE(again, a);
  job.a = In(again, product.a());
  EXPECT_THAT(Run(job), IsOk());
  EXPECT_TRUE(product.IsRight());
}

// Waiting writes, and writes that the worker had begun, each fail once.
TEST_F(BlocksTest, WritesUnderWayAreLostWithTheirWorker) {
  const DeviceBlock block = Allocate(900'000).value();
  rig_.SetScript("CopyIn 3 hang");
  const std::string bytes = RandomBytes(900'000, 5);
  std::future<absl::Status> done = StartWrite(block, 0, bytes);
  EXPECT_TRUE(Eventually([&] { return !rig_.HasScript(); })) << "the worker reads no script";
  kill(rig_.device().worker_pid(), SIGKILL);
  EXPECT_THAT(Awaited(std::move(done), "a write"),
              StatusIs(absl::StatusCode::kFailedPrecondition, StartsWith("tensor lost")));
  rig_.AwaitReadinesses(3);
  EXPECT_EQ(rig_.device().condition().staging_used_bytes, 0);
}

TEST_F(BlocksTest, AnAllocationThatFailsIsNotCounted) {
  rig_.SetScript("Allocate 1 memory");
  EXPECT_THAT(Allocate(1000), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(memory().used_bytes(), 0);
  EXPECT_THAT(Allocate(1000), IsOk());
}

}  // namespace
}  // namespace gemmd
