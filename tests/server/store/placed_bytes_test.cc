// SPDX-License-Identifier: Apache-2.0
//
// Which places have the bytes that were written last, and how other places get them.
#include "server/store/placed_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/store/tensor.h"
#include "tests/server/device/fake_device_memory.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Use = DeviceCopies::Use;

// The result of one call, perhaps delivered by another thread.
template <typename Value>
class Later {
 public:
  void Set(Value value) {
    MutexLock lock(&mutex_);
    value_ = std::move(value);
  }
  bool is_there() {
    MutexLock lock(&mutex_);
    return value_.has_value();
  }
  Value Wait() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return value_.has_value(); },
        absl::Seconds(60)));
    return std::move(*value_);
  }

 private:
  Mutex mutex_;
  std::optional<Value> value_ ABSL_GUARDED_BY(mutex_);
};

class PlacedBytesTest : public testing::Test {
 protected:
  static constexpr int64_t kBlock = kBlockGranuleBytes;
  static constexpr int64_t kMapped = HostMemory::kMappedBytes;

  // The thread of one memory may hold tensors that are in the other one, too.
  ~PlacedBytesTest() override {
    first_->Close();
    second_->Close();
    large_->Close();
  }

  std::shared_ptr<TensorBytes> Bytes(const std::string& text, int64_t bytes = kBlock) {
    auto made = TensorBytes::Allocate(bytes, *account_, background_).value();
    std::memcpy(made->host(), text.data(), text.size());
    return made;
  }
  static std::string OnHost(const TensorBytes& bytes, size_t size) {
    return {reinterpret_cast<const char*>(bytes.host()), size};
  }
  absl::StatusOr<Use> Bring(DeviceCopies& copies, const std::shared_ptr<TensorBytes>& bytes) {
    Later<absl::StatusOr<Use>> use;
    copies.Bring(bytes, [&](absl::StatusOr<Use> brought) { use.Set(std::move(brought)); });
    return use.Wait();
  }
  static absl::Status BringToHost(TensorBytes& bytes) {
    Later<absl::Status> status;
    bytes.BringToHost([&](const absl::Status& brought) { status.Set(brought); });
    return status.Wait();
  }
  static std::string Read(TensorBytes& bytes, int64_t offset, size_t size) {
    std::string text(size, '?');
    Later<absl::Status> status;
    bytes.Read(offset, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), size),
               [&](const absl::Status& read) { status.Set(read); });
    const absl::Status read = status.Wait();
    return read.ok() ? text : std::string(read.message());
  }
  // Begins like a product on the device.
  Use BeginAt(const std::shared_ptr<DeviceCopies>& copies,
              const std::shared_ptr<TensorBytes>& bytes) {
    bytes->TakeWriting(copies.get(), [] {});
    Use use = Bring(*copies, bytes).value();
    bytes->BeginWriting(copies.get());
    return use;
  }
  void Put(FakeDeviceMemory& memory, const Use& use, const std::string& text) {
    std::memcpy(memory.memory(use.block(), 0, kBlock), text.data(), text.size());
  }
  // Leaves the text only in the first device.
  std::shared_ptr<TensorBytes> OnlyAtFirst(const std::string& text) {
    auto bytes = Bytes("old");
    const Use use = BeginAt(first_, bytes);
    Put(memory_, use, text);
    bytes->EndWriting(first_.get(), true, true);
    return bytes;
  }

  const std::shared_ptr<Account> account_ =
      std::make_shared<Account>("all", "--all", int64_t{1} << 30, nullptr);
  const std::shared_ptr<ThreadPool> background_ = std::make_shared<ThreadPool>("tensors", 1);
  FakeDeviceMemory memory_{2 * kBlock};
  FakeDeviceMemory other_memory_{2 * kBlock};
  FakeDeviceMemory large_memory_{2 * kMapped};
  const std::shared_ptr<DeviceCopies> first_ = std::make_shared<DeviceCopies>(memory_, "fake:0");
  const std::shared_ptr<DeviceCopies> second_ =
      std::make_shared<DeviceCopies>(other_memory_, "fake:1");
  const std::shared_ptr<DeviceCopies> large_ =
      std::make_shared<DeviceCopies>(large_memory_, "fake:2");
};

TEST_F(PlacedBytesTest, WhatADeviceWroteComesToTheHostWhenItIsRead) {
  const auto bytes = OnlyAtFirst("new");
  EXPECT_FALSE(bytes->is_on_host());
  EXPECT_THAT(bytes->Devices(), ElementsAre("fake:0"));
  EXPECT_EQ(memory_.calls("Read"), 0);
  EXPECT_THAT(BringToHost(*bytes), IsOk());
  EXPECT_EQ(OnHost(*bytes, 3), "new");
  EXPECT_TRUE(bytes->is_on_host());
  EXPECT_THAT(bytes->Devices(), ElementsAre("fake:0")) << "it stays there, too";
  EXPECT_THAT(BringToHost(*bytes), IsOk());
  EXPECT_EQ(memory_.calls("Read"), 1);
}

TEST_F(PlacedBytesTest, AWriterMakesTwoEditions) {
  const auto bytes = Bytes("old");
  const PlacedBytes::Edition before = bytes->edition();
  EXPECT_TRUE(before.is_settled);
  {
    const Use use = BeginAt(first_, bytes);
    EXPECT_FALSE(bytes->edition().is_settled);
    EXPECT_EQ(bytes->edition().number, before.number + 1);
    bytes->EndWriting(first_.get(), true, true);
  }
  EXPECT_TRUE(bytes->edition().is_settled);
  EXPECT_THAT(BringToHost(*bytes), IsOk());
  EXPECT_EQ(bytes->edition().number, before.number + 2) << "what reads changes nothing";
}

TEST_F(PlacedBytesTest, APartIsReadWithoutTheRest) {
  const auto bytes = OnlyAtFirst("a new text");
  EXPECT_EQ(Read(*bytes, 2, 3), "new");
  EXPECT_EQ(memory_.calls("Read"), 1);
  EXPECT_FALSE(bytes->is_on_host());
  EXPECT_EQ(OnHost(*bytes, 3), "old") << "nothing was written there";
  EXPECT_THAT(BringToHost(*bytes), IsOk());
  EXPECT_EQ(Read(*bytes, 6, 4), "text");
  EXPECT_EQ(memory_.calls("Read"), 2) << "the host has it";
}

TEST_F(PlacedBytesTest, APartIsReadOnTheHostWhereTheDeviceFails) {
  const auto bytes = OnlyAtFirst("a new text");
  memory_.FailNext("Read", absl::InternalError("torn"));
  EXPECT_EQ(Read(*bytes, 2, 3), "new");
  EXPECT_TRUE(bytes->is_on_host());
  const auto lost = OnlyAtFirst("a new text");
  memory_.Lose();
  EXPECT_THAT(Read(*lost, 2, 3), HasSubstr("tensor lost"));
}

TEST_F(PlacedBytesTest, WhatIsOnADeviceLeavesTheHostAndComesBackToWhoReadsItThere) {
  const auto bytes = Bytes("text", kMapped);
  EXPECT_FALSE(bytes->BeginLeavingHost()) << "nobody else has it";
  ASSERT_THAT(Bring(*large_, bytes), IsOk());
  ASSERT_TRUE(bytes->BeginLeavingHost());
  EXPECT_FALSE(bytes->BeginLeavingHost()) << "once is enough";
  Later<absl::Status> read;
  bytes->BringToHost([&](const absl::Status& status) { read.Set(status); });
  EXPECT_FALSE(read.is_there()) << "it is not to be read while it leaves";
  EXPECT_EQ(large_memory_.calls("Read"), 0);
  bytes->EndLeavingHost();
  EXPECT_THAT(read.Wait(), IsOk());
  EXPECT_EQ(OnHost(*bytes, 4), "text");
  EXPECT_EQ(account_->used(), kMapped);
  ASSERT_TRUE(bytes->BeginLeavingHost());
  bytes->EndLeavingHost();
  EXPECT_EQ(account_->used(), 0);
  EXPECT_EQ(OnHost(*bytes, 4), std::string(4, '\0'));
  EXPECT_FALSE(bytes->is_lost());
}

TEST_F(PlacedBytesTest, WhatADeviceWroteGivesItsRoomOnTheHostBack) {
  const auto bytes = Bytes("old", kMapped);
  const Use use = BeginAt(large_, bytes);
  Put(large_memory_, use, "new");
  EXPECT_FALSE(bytes->BeginLeavingHost()) << "it is being written";
  bytes->EndWriting(large_.get(), /*has_begun=*/true, /*is_ok=*/true);
  EXPECT_EQ(account_->used(), kMapped);
  ASSERT_TRUE(bytes->BeginLeavingHost());
  bytes->EndLeavingHost();
  EXPECT_EQ(account_->used(), 0);
  EXPECT_THAT(bytes->Devices(), ElementsAre("fake:2"));
  EXPECT_THAT(BringToHost(*bytes), IsOk());
  EXPECT_EQ(OnHost(*bytes, 3), "new");
  EXPECT_EQ(account_->used(), kMapped);
}

TEST_F(PlacedBytesTest, WhatHasLeftComesBackAsFarAsThereIsRoom) {
  const auto bytes = Bytes("text", kMapped);
  ASSERT_THAT(Bring(*large_, bytes), IsOk());
  ASSERT_TRUE(bytes->BeginLeavingHost());
  bytes->EndLeavingHost();
  {
    const auto rest = account_->Take(account_->free());
    ASSERT_THAT(rest, IsOk());
    EXPECT_THAT(BringToHost(*bytes), StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_EQ(Read(*bytes, 1, 3), "ext") << "a part needs none";
  }
  EXPECT_THAT(BringToHost(*bytes), IsOk());
  EXPECT_EQ(OnHost(*bytes, 4), "text");
}

TEST_F(PlacedBytesTest, WhatIsWrittenOrShortDoesNotLeaveTheHost) {
  const auto small = Bytes("text");
  ASSERT_THAT(Bring(*large_, small), IsOk());
  EXPECT_FALSE(small->BeginLeavingHost()) << "there would be no page to give back";
  const auto bytes = Bytes("text", kMapped);
  ASSERT_THAT(Bring(*large_, bytes), IsOk());
  bytes->TakeWriting(nullptr, [] {});
  EXPECT_FALSE(bytes->BeginLeavingHost());
  bytes->EndWriting(nullptr, /*has_begun=*/false, /*is_ok=*/false);
  EXPECT_TRUE(bytes->BeginLeavingHost());
  bytes->EndLeavingHost();
}

TEST_F(PlacedBytesTest, AnotherDeviceGetsItByWayOfTheHost) {
  const auto bytes = OnlyAtFirst("new");
  const absl::StatusOr<Use> use = Bring(*second_, bytes);
  ASSERT_THAT(use, IsOk());
  EXPECT_EQ(other_memory_.bytes(use->block()).substr(0, 3), "new");
}

TEST_F(PlacedBytesTest, WritingMakesOtherPlacesOutdated) {
  const auto bytes = OnlyAtFirst("new");
  ASSERT_THAT(Bring(*second_, bytes), IsOk());
  {
    const Use use = BeginAt(first_, bytes);
    EXPECT_FALSE(bytes->is_on_host());
    EXPECT_THAT(bytes->Devices(), ElementsAre("fake:0"));
    Put(memory_, use, "yet");
    bytes->EndWriting(first_.get(), true, true);
  }
  const absl::StatusOr<Use> use = Bring(*second_, bytes);
  ASSERT_THAT(use, IsOk());
  EXPECT_EQ(other_memory_.bytes(use->block()).substr(0, 3), "yet");
}

// A caller that asks after a product has ended must not get what was read before.
TEST_F(PlacedBytesTest, WhatWasReadBeforeAChangeDoesNotServeWhoAsksAfterIt) {
  const auto bytes = OnlyAtFirst("one");
  memory_.Hold(true);
  Later<absl::Status> early;
  bytes->BringToHost([&](const absl::Status& status) { early.Set(status); });
  Later<absl::Status> late;
  {
    Later<absl::StatusOr<Use>> brought;
    bytes->TakeWriting(first_.get(), [] {});
    first_->Bring(bytes, [&](absl::StatusOr<Use> use) { brought.Set(std::move(use)); });
    const Use use = brought.Wait().value();
    bytes->BeginWriting(first_.get());
    memory_.Hold(false);
    EXPECT_THAT(early.Wait(), IsOk());
    EXPECT_FALSE(bytes->is_on_host());
    memory_.Hold(true);
    Later<absl::Status> meanwhile;
    bytes->BringToHost([&](const absl::Status& status) { meanwhile.Set(status); });
    Put(memory_, use, "two");
    bytes->EndWriting(first_.get(), true, true);
    bytes->BringToHost([&](const absl::Status& status) { late.Set(status); });
    memory_.Hold(false);
    EXPECT_THAT(meanwhile.Wait(), IsOk());
  }
  EXPECT_THAT(late.Wait(), IsOk());
  EXPECT_EQ(memory_.calls("Read"), 3);
  EXPECT_EQ(OnHost(*bytes, 3), "two");
  EXPECT_TRUE(bytes->is_on_host());
}

TEST_F(PlacedBytesTest, WritersElsewhereWaitForEachOther) {
  const auto bytes = Bytes("old");
  const Use use = BeginAt(first_, bytes);
  bool is_host_granted = false;
  bytes->TakeWriting(nullptr, [&] { is_host_granted = true; });
  bool is_beside_granted = false;
  bytes->TakeWriting(first_.get(), [&] { is_beside_granted = true; });
  EXPECT_FALSE(is_host_granted);
  EXPECT_FALSE(is_beside_granted) << "it came after one that waits";
  Put(memory_, use, "new");
  bytes->EndWriting(first_.get(), true, true);
  EXPECT_TRUE(is_host_granted);
  EXPECT_FALSE(is_beside_granted);
  EXPECT_THAT(BringToHost(*bytes), IsOk());
  bytes->BeginWriting(nullptr);
  EXPECT_EQ(OnHost(*bytes, 3), "new");
  EXPECT_THAT(bytes->Devices(), IsEmpty());
  bytes->EndWriting(nullptr, true, true);
  EXPECT_TRUE(is_beside_granted);
  bytes->EndWriting(first_.get(), false, false);
}

TEST_F(PlacedBytesTest, TheOnlyCopyIsWrittenBackBeforeItGoes) {
  const auto result = OnlyAtFirst("result");
  const auto large = Bytes("large", 2 * kBlock);
  ASSERT_THAT(Bring(*first_, large), IsOk());
  EXPECT_TRUE(result->is_on_host());
  EXPECT_THAT(result->Devices(), IsEmpty());
  EXPECT_EQ(OnHost(*result, 6), "result");
  EXPECT_EQ(first_->counts().written_back, 1);
  EXPECT_EQ(first_->counts().evictions, 1);
}

TEST_F(PlacedBytesTest, ACopyToTheHostThatFailsIsNotCharged) {
  const auto bytes = Bytes("text", kMapped);
  ASSERT_THAT(Bring(*large_, bytes), IsOk());
  const auto leave = [&] {
    ASSERT_TRUE(bytes->BeginLeavingHost());
    bytes->EndLeavingHost();
    ASSERT_EQ(account_->used(), 0);
  };
  leave();
  large_memory_.FailNext("Read", absl::InternalError("torn"));
  EXPECT_THAT(BringToHost(*bytes), StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(account_->used(), 0);
  EXPECT_THAT(BringToHost(*bytes), IsOk());
  EXPECT_EQ(OnHost(*bytes, 4), "text");
  EXPECT_EQ(account_->used(), kMapped);
  // What was charged before stays so.
  bytes->BeginWriting(large_.get());
  bytes->EndWriting(large_.get(), true, true);
  large_memory_.FailNext("Read", absl::InternalError("torn"));
  EXPECT_THAT(BringToHost(*bytes), StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(account_->used(), kMapped);
  leave();
  // The room that an eviction takes.
  ASSERT_THAT(bytes->TakeRoomToRead(), IsOk());
  EXPECT_EQ(account_->used(), kMapped);
  large_memory_.Lose();
  EXPECT_THAT(BringToHost(*bytes), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(account_->used(), 0);
}

// Readers keep host memory after they are told, however late the products that outdate it end.
TEST_F(PlacedBytesTest, HostMemoryThatWasReadStaysWhenItIsOutdated) {
  for (const bool ends_before_read : {true, false}) {
    const auto bytes = Bytes("text", kMapped);
    ASSERT_THAT(Bring(*large_, bytes), IsOk());
    ASSERT_TRUE(bytes->BeginLeavingHost());
    bytes->EndLeavingHost();
    ASSERT_EQ(account_->used(), 0);
    large_memory_.Hold(true);
    Later<absl::Status> read;
    bytes->BringToHost([&](const absl::Status& status) { read.Set(status); });
    const Use use = BeginAt(large_, bytes);
    if (ends_before_read) bytes->EndWriting(large_.get(), true, true);
    large_memory_.Hold(false);
    ASSERT_THAT(read.Wait(), IsOk());
    if (!ends_before_read) bytes->EndWriting(large_.get(), true, true);
    EXPECT_FALSE(bytes->is_on_host());
    EXPECT_EQ(OnHost(*bytes, 4), "text") << ends_before_read;
    EXPECT_EQ(account_->used(), kMapped);
  }
}

TEST_F(PlacedBytesTest, TheOnlyCopyStaysWhereItCannotBeWrittenBack) {
  const auto result = OnlyAtFirst("result");
  const auto large = Bytes("large", 2 * kBlock);
  memory_.FailNext("Read", absl::InternalError("bad"));
  EXPECT_THAT(Bring(*first_, large), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(result->Devices(), ElementsAre("fake:0"));
  EXPECT_THAT(BringToHost(*result), IsOk());
  EXPECT_EQ(OnHost(*result, 6), "result");
}

TEST_F(PlacedBytesTest, TheOnlyCopyIsLostWithItsDevice) {
  const auto result = OnlyAtFirst("result");
  const auto kept = OnlyAtFirst("kept");
  EXPECT_THAT(BringToHost(*kept), IsOk());
  memory_.Lose();
  EXPECT_TRUE(result->is_lost());
  EXPECT_FALSE(kept->is_lost());
  const auto is_lost = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tensor lost"));
  EXPECT_THAT(BringToHost(*result), is_lost);
  EXPECT_THAT(Bring(*first_, result), is_lost);
  EXPECT_THAT(Bring(*second_, result), is_lost);
  EXPECT_THAT(Bring(*first_, kept), IsOk()) << "it comes back by itself";
}

TEST_F(PlacedBytesTest, WhoReadsWhileTheDeviceIsLostLearnsOfIt) {
  const auto result = OnlyAtFirst("result");
  memory_.Hold(true);
  Later<absl::Status> read;
  result->BringToHost([&](const absl::Status& status) { read.Set(status); });
  memory_.Lose();
  memory_.Hold(false);
  EXPECT_THAT(read.Wait(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tensor lost")));
}

// The product failed, so its tensor's elements are undefined, and the earlier ones are acceptable.
TEST_F(PlacedBytesTest, TheHostsBytesCountAgainWhereTheFirstWriterWasLost) {
  const auto bytes = Bytes("old");
  const Use use = BeginAt(first_, bytes);
  memory_.Lose();
  Later<absl::Status> read;
  bytes->BringToHost([&](const absl::Status& status) { read.Set(status); });
  EXPECT_FALSE(read.is_there());
  EXPECT_FALSE(bytes->is_lost());
  bytes->EndWriting(first_.get(), true, /*is_ok=*/false);
  EXPECT_THAT(read.Wait(), IsOk());
  EXPECT_EQ(OnHost(*bytes, 3), "old");
}

TEST_F(PlacedBytesTest, WhatAnEarlierWriterLeftIsLostWithTheLaterOne) {
  const auto bytes = Bytes("old");
  const Use first = BeginAt(first_, bytes);
  const Use second = BeginAt(first_, bytes);
  bytes->EndWriting(first_.get(), true, /*is_ok=*/true);
  memory_.Lose();
  bytes->EndWriting(first_.get(), true, /*is_ok=*/false);
  EXPECT_TRUE(bytes->is_lost());
}

TEST_F(PlacedBytesTest, NewBytesAreZerosAndAreNotCopiedThere) {
  const auto bytes = Bytes("");
  Later<absl::StatusOr<Use>> made;
  first_->MakeNew(bytes, [&](absl::StatusOr<Use> use) { made.Set(std::move(use)); });
  const absl::StatusOr<Use> use = made.Wait();
  ASSERT_THAT(use, IsOk());
  EXPECT_EQ(memory_.bytes(use->block()), std::string(kBlock, '\0'));
  EXPECT_EQ(memory_.calls("Write"), 0);
}

}  // namespace
}  // namespace gemmd
