// SPDX-License-Identifier: Apache-2.0
//
// The fake on which tests of tensors rely behaves as DeviceMemory documents.
#include "tests/server/device/fake_device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

absl::StatusOr<DeviceBlock> Allocate(DeviceMemory& memory, int64_t bytes) {
  std::promise<absl::StatusOr<DeviceBlock>> block;
  memory.Allocate(bytes, [&](absl::StatusOr<DeviceBlock> got) { block.set_value(std::move(got)); });
  return Awaited(block.get_future(), "a block");
}

absl::Status Write(DeviceMemory& memory, DeviceBlock block, int64_t offset,
                   const std::string& bytes) {
  std::promise<absl::Status> done;
  const auto whole =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
  memory.Write(block, offset, {whole.first(1), whole.subspan(1)},
               [&](absl::Status status) { done.set_value(std::move(status)); });
  return Awaited(done.get_future(), "the end of a write");
}

TEST(FakeDeviceMemoryTest, KeepsBytesAndGivesZeros) {
  FakeDeviceMemory memory(1000);
  const DeviceBlock block = Allocate(memory, 5).value();
  EXPECT_EQ(memory.used_bytes(), 256);
  EXPECT_THAT(Write(memory, block, 1, "abc"), IsOk());
  EXPECT_EQ(memory.bytes(block), std::string("\0abc\0", 5));
  EXPECT_THAT(Write(memory, block, 3, "abc"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("within 5")));
  EXPECT_THAT(Allocate(memory, 1000), StatusIs(absl::StatusCode::kResourceExhausted));
  memory.Free(block);
  EXPECT_NE(Allocate(memory, 700).value(), block);
  EXPECT_THAT(Write(memory, block, 0, "ab"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(FakeDeviceMemoryTest, LosesAllBlocks) {
  FakeDeviceMemory memory(1000);
  const DeviceBlock block = Allocate(memory, 5).value();
  const uint64_t generation = memory.generation();
  memory.Lose(/*is_ready_again=*/false);
  EXPECT_GT(memory.generation(), generation);
  EXPECT_EQ(memory.used_bytes(), 0);
  EXPECT_THAT(Write(memory, block, 0, "ab"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tensor lost")));
  EXPECT_THAT(Allocate(memory, 5), StatusIs(absl::StatusCode::kUnavailable));
  memory.SetReady();
  EXPECT_THAT(Allocate(memory, 5), IsOk());
}

}  // namespace
}  // namespace gemmd
