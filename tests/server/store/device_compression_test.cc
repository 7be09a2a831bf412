// SPDX-License-Identifier: Apache-2.0
//
// Compressions on the device that has the tensor: they give the bytes that the host computes. Also
// aborted compressions, and those whose device is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/store/compression.h"
#include "server/store/placed_bytes.h"
#include "tests/server/device/fake_device_memory.h"
#include "tests/server/store/padded_spec.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using SessionUse = TensorStore::SessionUse;
using Result = absl::StatusOr<TensorState>;

constexpr int64_t kStepBytes = int64_t{64} << 10;

std::string HostBytes(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes->host()),
          static_cast<size_t>(tensor.spec.bytes)};
}

class DeviceCompressionTest : public testing::Test {
 protected:
  ~DeviceCompressionTest() override { copies_->Close(); }

  // Any bytes; the host has them.
  void Put(const std::string& name, const TensorSpec& spec, int byte = -1) {
    TensorDraft draft = store_.MakeDraft(session_, spec, {.name = name}).value();
    for (int64_t i = 0; i < spec.bytes; ++i) {
      draft.bytes->host()[i] = static_cast<std::byte>(byte < 0 ? random_.Bits() : byte);
    }
    ASSERT_THAT(store_.Publish(session_, std::move(draft)), IsOk());
  }
  std::shared_ptr<PlacedBytes> BytesOf(const std::string& name) {
    return store_.Describe(session_, TensorName(name))->tensor->bytes;
  }
  // Copies the tensor to the device, too.
  void BringThere(const std::string& name) {
    auto done = std::make_shared<std::promise<absl::Status>>();
    copies_->Bring(BytesOf(name), [done](const absl::StatusOr<DeviceCopies::Use>& use) {
      done->set_value(use.status());
    });
    ASSERT_THAT(Awaited(done->get_future(), "a copy"), IsOk());
  }
  // Only the device has the present bytes.
  void LeaveThereAlone(const std::string& name) {
    const std::shared_ptr<PlacedBytes> bytes = BytesOf(name);
    bytes->TakeWriting(copies_.get(), [] {});
    bytes->BeginWriting(copies_.get());
    bytes->EndWriting(copies_.get(), /*has_begun=*/true, /*is_ok=*/true);
  }

  struct Begun {
    std::weak_ptr<Compressor::Task> task;
    std::future<Result> result;
  };
  Begun Begin(const Compressor::Request& request) {
    auto promise = std::make_shared<std::promise<Result>>();
    Begun begun;
    begun.result = promise->get_future();
    begun.task = compressor_
                     .Begin(store_.Use(session_.token().ToHex()).value(), request,
                            [promise](Result result) { promise->set_value(std::move(result)); })
                     .value();
    return begun;
  }
  Result Compress(const Compressor::Request& request) {
    return Awaited(Begin(request).result, "a compression");
  }
  // The host's result.
  std::string Want(const Compressor::Request& request) {
    Compressor::Request other = request;
    other.keep.name = "";
    const Result made = Compress(other);
    EXPECT_THAT(made, IsOk());
    EXPECT_THAT(made->tensor->bytes->Devices(), IsEmpty());
    return HostBytes(*made->tensor);
  }
  std::string Brought(const Tensor& tensor) {
    std::promise<absl::Status> promise;
    tensor.bytes->BringToHost([&](const absl::Status& status) { promise.set_value(status); });
    EXPECT_THAT(Awaited(promise.get_future(), "the bytes"), IsOk());
    return HostBytes(tensor);
  }

  RandomSource random_;
  FakeClock clock_;
  TensorStore store_{{.max_bytes = 128 * kMebi, .max_session_bytes = 128 * kMebi}, clock_};
  SessionUse session_ = store_.OpenSession("", "peer").value();
  FakeDeviceMemory memory_{64 * kMebi};
  std::shared_ptr<DeviceCopies> copies_ = std::make_shared<DeviceCopies>(memory_, "cuda:0");
  Compressor compressor_{store_, kStepBytes};
};

TEST_F(DeviceCompressionTest, GivesTheBytesOfTheHost) {
  for (const ElementType type : kAllElementTypes) {
    if (!SparseFormOf(type)) continue;
    SCOPED_TRACE(NameOf(type));
    const std::string name(NameOf(type));
    Put(name, PaddedSpec(type, 9, 50, 3, 3));
    const std::string want = Want({.tensor = name});
    BringThere(name);
    for (int i = 0; i < 2; ++i) {
      const Result made = Compress({.tensor = name, .keep = {.name = name + "24"}});
      ASSERT_THAT(made, IsOk());
      EXPECT_THAT(made->tensor->bytes->Devices(), ElementsAre("cuda:0"));
      EXPECT_FALSE(made->tensor->bytes->is_on_host());
      EXPECT_TRUE(Brought(*made->tensor) == want);
      LeaveThereAlone(name);
    }
  }
}

TEST_F(DeviceCompressionTest, TakesAMask) {
  Put("w", PaddedSpec(ElementType::kF16, 7, 40));
  Put("half", PaddedSpec(ElementType::kB1, 7, 40, 8), 0x55);
  Put("all", PaddedSpec(ElementType::kB1, 7, 40), 0xff);
  const std::string want = Want({.tensor = "w", .mask = "half"});
  BringThere("w");
  const Result made = Compress({.tensor = "w", .mask = "half"});
  ASSERT_THAT(made, IsOk());
  EXPECT_THAT(made->tensor->bytes->Devices(), ElementsAre("cuda:0"));
  EXPECT_TRUE(Brought(*made->tensor) == want);
  const int64_t used = memory_.used_bytes();
  EXPECT_THAT(Compress({.tensor = "w", .mask = "all"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "mask: row 0, group 0: got 4 elements to be kept, want at most 2"));
  // The mask is on the device now, too, but nothing of the result is.
  EXPECT_TRUE(Eventually([&] { return memory_.used_bytes() == used + BlockBytes(7 * 5); }));
}

TEST_F(DeviceCompressionTest, EndsBetweenStepsWhenItIsGivenUp) {
  Put("w", PaddedSpec(ElementType::kU8, 40, kStepBytes));
  BringThere("w");
  const int64_t used = memory_.used_bytes();
  const int64_t charged = session_.account().used();
  memory_.HoldFrom("Compress");
  Begun begun = Begin({.tensor = "w"});
  EXPECT_TRUE(Eventually([&] { return memory_.calls("Compress") > 0; }));
  begun.task.lock()->Abort();
  EXPECT_THAT(Awaited(std::move(begun.result), "a compression"),
              StatusIs(absl::StatusCode::kCancelled));
  memory_.Hold(false);
  EXPECT_TRUE(Eventually([&] { return session_.account().used() == charged; }));
  EXPECT_TRUE(Eventually([&] { return memory_.used_bytes() == used; }));
  EXPECT_EQ(memory_.calls("Compress"), 1);
}

TEST_F(DeviceCompressionTest, TheHostDoesItWhereTheDeviceHasNoRoomOrIsLost) {
  Put("w", PaddedSpec(ElementType::kU8, 12, kStepBytes));
  const std::string want = Want({.tensor = "w"});
  BringThere("w");
  for (const char* const function : {"Allocate", "Compress"}) {
    SCOPED_TRACE(function);
    memory_.FailNext(function, absl::UnavailableError("the fake device is not ready"));
    const Result made = Compress({.tensor = "w"});
    ASSERT_THAT(made, IsOk());
    EXPECT_THAT(made->tensor->bytes->Devices(), IsEmpty());
    EXPECT_TRUE(made->tensor->bytes->is_on_host());
    EXPECT_TRUE(HostBytes(*made->tensor) == want);
  }
  memory_.Hold(true);
  Begun begun = Begin({.tensor = "w"});
  memory_.Lose();
  memory_.Hold(false);
  const Result made = Awaited(std::move(begun.result), "a compression");
  ASSERT_THAT(made, IsOk());
  EXPECT_TRUE(HostBytes(*made->tensor) == want);
}

TEST_F(DeviceCompressionTest, WhatTheDeviceAloneHadIsLostWithIt) {
  Put("w", PaddedSpec(ElementType::kU8, 12, 1024));
  BringThere("w");
  LeaveThereAlone("w");
  memory_.Hold(true);
  Begun begun = Begin({.tensor = "w"});
  memory_.Lose();
  memory_.Hold(false);
  EXPECT_THAT(Awaited(std::move(begun.result), "a compression"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lost")));
}

}  // namespace
}  // namespace gemmd
