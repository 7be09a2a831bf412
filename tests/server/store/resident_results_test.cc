// SPDX-License-Identifier: Apache-2.0
//
// Products whose results are tensors: results stay where they were computed, are copied to readers
// elsewhere, and are lost only with their device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "server/store/product_tensors.h"
#include "tests/server/device/fake_device_memory.h"
#include "tests/server/device/scripted_device.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using Operand = OperandRole;

constexpr int64_t kResultBytes = 10;

// Adds one to each byte of A, or of C if there is one.
JobOutcome AddOne(const Job& job, FakeDeviceMemory* memory) {
  const Source& source = job.c.bytes > 0 ? job.c : job.a;
  std::string bytes;
  if (source.block != 0) {
    bytes.assign(
        reinterpret_cast<const char*>(memory->memory(source.block, source.offset, source.bytes)),
        static_cast<size_t>(source.bytes));
  }
  for (const Piece& piece : source.pieces) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  for (char& byte : bytes) ++byte;
  std::byte* const to =
      job.d.block == 0 ? job.d.memory : memory->memory(job.d.block, job.d.offset, source.bytes);
  std::memcpy(to, bytes.data(), bytes.size());
  return {};
}

// A device of the test, whose jobs run when the test says so.
struct Wrapped {
  Wrapped(const std::string& name, FakeDeviceMemory* memory, TensorStore& store) {
    auto made =
        std::make_unique<ScriptedDevice>(name, DeviceProfile{.target = HostTarget(), .rates = {}});
    made->tensor_memory = memory;
    made->compute = [memory](const Job& job) { return AddOne(job, memory); };
    scripted = made.get();
    device = WithTensors(std::move(made), store);
  }
  void WaitForJob() const { EXPECT_TRUE(scripted->WaitForHeld(1, kPatience)); }
  // Runs the next job, or ends it with the status.
  void Run(const absl::Status& status = absl::OkStatus()) const {
    WaitForJob();
    scripted->CompleteNext(status);
  }

  ScriptedDevice* scripted = nullptr;
  std::unique_ptr<Device> device;
};

// A product in progress.
struct Product {
  std::unique_ptr<ProductTensors> tensors;
  Mutex mutex;
  std::optional<absl::Status> end ABSL_GUARDED_BY(mutex);

  absl::Status Wait() {
    MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return end.has_value(); },
        absl::Seconds(60)));
    return *end;
  }
};

class ResidentResultsTest : public testing::Test {
 protected:
  explicit ResidentResultsTest(const StoreOptions& options = {},
                               int64_t result_bytes = kResultBytes)
      : result_bytes_(result_bytes), store_(options, clock_) {}

  TensorSpec Spec() const { return Spec(result_bytes_); }
  static TensorSpec Spec(int64_t bytes) {
    return MakeTensorSpec(TightLayout("spec", ElementType::kU8, Order::kRowMajor, 1, bytes).value(),
                          1, {})
        .value();
  }
  void Upload(const std::string& name, const std::string& text, const std::string& device = "") {
    const auto upload =
        store_.Begin(session_, Spec(static_cast<int64_t>(text.size())), {.name = name}, {}, device)
            ->upload;
    const Piece piece = PieceOf(text);
    EXPECT_THAT(store_.Write(session_, upload, 0, {piece}), IsOk());
  }

  // D becomes a new tensor with this name, or overwrites the tensor with this name, which is also
  // C.
  std::unique_ptr<Product> Begin(Device& device, const std::string& operand, const std::string& d,
                                 Keeping keep = {}) {
    auto product = std::make_unique<Product>();
    product->tensors = ProductTensors::Make(store_, session_.token().ToHex()).value();
    ProductTensors& tensors = *product->tensors;
    const bool is_in_place = operand == d;
    const Operand role = is_in_place ? Operand::kC : Operand::kA;
    ProductTensors::Names names;
    names.read[static_cast<size_t>(role)] = operand;
    if (is_in_place) names.written = d;
    EXPECT_THAT(tensors.Find(names), IsOk());
    tensors.SetPart(role, 0, result_bytes_);
    keep.name = d;
    if (!is_in_place) {
      EXPECT_THAT(tensors.MakeNew(Spec(), keep), IsOk());
    }
    Job job;
    job.id = ++last_id_;
    job.kernel = Catalog(DeviceKind::kCuda).data();
    EXPECT_THAT(tensors.Place(job), IsOk());
    device.Submit(job, [p = product.get()](const JobOutcome& outcome) {
      MutexLock lock(&p->mutex);
      p->end = outcome.status;
    });
    return product;
  }
  absl::Status End(Product& product) {
    const absl::Status status = product.Wait();
    EXPECT_THAT(product.tensors->Finish(status.ok()), IsOk());
    return status;
  }
  absl::Status Multiply(Wrapped& wrapped, const std::string& operand, const std::string& d,
                        const Keeping& keep = {}) {
    const auto product = Begin(*wrapped.device, operand, d, keep);
    wrapped.Run();
    return End(*product);
  }

  std::vector<std::string> PlacesOf(const std::string& name) {
    std::vector<std::string> places;
    const TensorState state = store_.Describe(session_, name).value();
    for (const TensorPlace& place : state.places) places.push_back(place.device);
    return places;
  }
  // The tensor's bytes, or the error.
  std::string Read(const std::string& name) {
    const TensorStore::TensorUse use = store_.Find(session_, name).value();
    Mutex mutex;
    std::optional<absl::Status> end;
    use->bytes->BringToHost([&](const absl::Status& status) {
      MutexLock lock(&mutex);
      end = status;
    });
    MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout([&] { return end.has_value(); }, absl::Seconds(60)));
    if (!end->ok()) return std::string(end->message());
    return std::string(reinterpret_cast<const char*>(use->bytes->host()),
                       static_cast<size_t>(use->bytes->bytes()));
  }

  const int64_t result_bytes_;
  FakeClock clock_;
  TensorStore store_;
  const TensorStore::SessionUse session_ = store_.OpenSession("", "a").value();
  FakeDeviceMemory memory_{4 * BlockBytes(result_bytes_)};
  FakeDeviceMemory other_memory_{4 * BlockBytes(result_bytes_)};
  Wrapped gpu_{"fake:0", &memory_, store_};
  Wrapped other_{"fake:1", &other_memory_, store_};
  Wrapped cpu_{"cpu", nullptr, store_};
  JobId last_id_ = 0;
};

class ScarceHostTest : public ResidentResultsTest {
 protected:
  static constexpr int64_t kBytes = HostMemory::kMappedBytes;
  static constexpr int64_t kRoom = 8 * kBytes;

  ScarceHostTest()
      : ResidentResultsTest({.max_bytes = kRoom, .max_session_bytes = kRoom}, kBytes) {}

  static std::string All(char digit) { return std::string(static_cast<size_t>(kBytes), digit); }
  // Leaves this much of the room.
  std::shared_ptr<gemmd::Upload> FillUpTo(int64_t left) {
    filled_ = session_.account().free() - Upload::kOverheadBytes - TensorStore::kTensorBytes - left;
    std::shared_ptr<gemmd::Upload> filling =
        store_.Begin(session_, Spec(filled_), {.name = "filler"}, {})->upload;
    EXPECT_EQ(session_.account().free(), left);
    return filling;
  }
  void EndFilling(const std::shared_ptr<gemmd::Upload>& filling) {
    const std::string zeros(static_cast<size_t>(filled_), '0');
    EXPECT_THAT(store_.Write(session_, filling, 0, {PieceOf(zeros)}), IsOk());
  }

  int64_t filled_ = 0;
};

// D stays on a device for which the host has no room, unless it must not be lost with the device.
TEST_F(ScarceHostTest, AResultForWhichTheHostHasNoRoomStaysOnTheDevice) {
  ResidentResultsTest::Upload("a", All('0'));
  constexpr int64_t kLeft = TensorStore::kTensorBytes + kBytes - 1;
  std::shared_ptr<gemmd::Upload> filling = FillUpTo(2 * kLeft);
  EXPECT_THAT(Multiply(gpu_, "a", "fits"), IsOk());
  EXPECT_EQ(session_.account().free(), kLeft - 1) << "it is charged";
  const auto is_refused =
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("bytes of host memory"));
  EXPECT_THAT(store_.MakeDraft(session_, Spec(), {.name = "", .pinned = true}, true), is_refused);
  EXPECT_THAT(store_.MakeDraft(session_, Spec(kBytes - 1), {}, true), is_refused)
      << "it would take memory at once";
  const auto on_host = Begin(*cpu_.device, "a", "c");
  EXPECT_THAT(End(*on_host), is_refused);
  EXPECT_EQ(session_.account().free(), kLeft - 1);
  EXPECT_THAT(Multiply(gpu_, "a", "b"), IsOk());
  EXPECT_THAT(PlacesOf("b"), ElementsAre("fake:0"));
  EXPECT_THAT(Multiply(gpu_, "b", "b"), IsOk());
  EXPECT_THAT(Read("b"), HasSubstr("quota"));
  EndFilling(filling);
  filling = nullptr;  // Its overhead is free, but not enough.
  EXPECT_THAT(store_.Delete(session_, "fits"), IsOk());
  EXPECT_TRUE(Read("b") == All('2'));
  EXPECT_THAT(PlacesOf("b"), ElementsAre("host", "fake:0"));
}

// Forms of other sessions are dropped first, for a result, and for what is read on the host.
TEST_F(ScarceHostTest, FormsTakeNoRoomOfTensors) {
  const TensorStore::SessionUse other = store_.OpenSession("", "b").value();
  ASSERT_THAT(store_.Publish(other, store_.MakeDraft(other, Spec(10), {.name = "w"}).value()),
              IsOk());
  constexpr int64_t kTooLittle = 2 * kBytes / 3;
  const auto keep_form = [&] {
    const TensorStore::TensorUse use = store_.Find(other, "w").value();
    FormKey key;
    key.bytes = session_.account().free() - kTooLittle;
    for (int i = 0; i < 2; ++i) {
      const KeptForms::Use form = store_.TakeForm(use, key);
      if (form.form != nullptr) store_.forms().End(form.form, true);
    }
    ASSERT_EQ(session_.account().free(), kTooLittle);
  };
  ResidentResultsTest::Upload("a", All('0'));
  keep_form();
  EXPECT_THAT(Multiply(gpu_, "a", "charged"), IsOk());
  EXPECT_GE(store_.Describe(session_, "charged")->kept_bytes, kBytes);

  EndFilling(FillUpTo(kTooLittle));
  EXPECT_THAT(Multiply(gpu_, "a", "b"), IsOk());
  EXPECT_LT(store_.Describe(session_, "b")->kept_bytes, kBytes);
  ASSERT_THAT(store_.Delete(session_, "filler"), IsOk());
  keep_form();
  EXPECT_TRUE(Read("b") == All('1'));
}

// The session is dropped while its products run: one reads a tensor, one overwrites one, and one
// makes a new tensor.
TEST_F(ResidentResultsTest, ProductsOfADroppedSessionEnd) {
  Upload("x", "abcdefghij");
  Upload("y", "0123456789");
  const auto in_place = Begin(*cpu_.device, "y", "y");
  const auto made = Begin(*cpu_.device, "x", "z");
  const TensorStore::TensorUse y = store_.Find(session_, "y").value();
  const absl::StatusOr<TensorStore::Dropped> dropped =
      store_.DropSession(store_.ListSessions(1).sessions.at(0).id);
  ASSERT_THAT(dropped, IsOk());
  EXPECT_EQ(dropped->tensors, 2);
  EXPECT_GT(dropped->held_bytes, 0);
  cpu_.Run();
  cpu_.Run();
  EXPECT_THAT(End(*in_place), IsOk());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(y->bytes->host()), kResultBytes),
            "123456789:");
  EXPECT_THAT(made->Wait(), IsOk());
  EXPECT_THAT(made->tensors->Finish(true),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("an operator has dropped it")));
  EXPECT_THAT(store_.List(session_), SizeIs(0));
}

TEST_F(ResidentResultsTest, AChainMovesNothing) {
  Upload("a", "0123456789");
  EXPECT_THAT(Multiply(gpu_, "a", "b"), IsOk());
  EXPECT_THAT(PlacesOf("b"), ElementsAre("fake:0"));
  EXPECT_THAT(Multiply(gpu_, "b", "c"), IsOk());
  EXPECT_THAT(Multiply(gpu_, "c", "d"), IsOk());
  EXPECT_EQ(memory_.calls("Write"), 1) << "of the first operand alone";
  EXPECT_EQ(memory_.calls("Read"), 0);
  EXPECT_EQ(Read("d"), "3456789:;<");
  EXPECT_THAT(PlacesOf("d"), ElementsAre("host", "fake:0"));
}

TEST_F(ResidentResultsTest, ATensorIsOverwrittenWhereItIs) {
  Upload("a", "0123456789");
  EXPECT_THAT(Multiply(gpu_, "a", "a"), IsOk());
  EXPECT_THAT(Multiply(gpu_, "a", "a"), IsOk());
  EXPECT_THAT(PlacesOf("a"), ElementsAre("fake:0"));
  EXPECT_EQ(memory_.calls("Write"), 1);
  EXPECT_EQ(Read("a"), "23456789:;");
}

// A check of an answer reads the operands and D again, if they are still those of the product.
TEST_F(ResidentResultsTest, ACheckedProductIsBroughtToTheHostAndKnowsWhetherItIsTheSame) {
  Upload("0", "0123456789");
  EXPECT_THAT(Multiply(gpu_, "0", "a"), IsOk());
  const auto bring = [](ProductTensors& tensors) {
    Product brought;
    tensors.BringToHost([&](const absl::Status& status) {
      MutexLock lock(&brought.mutex);
      brought.end = status;
    });
    return brought.Wait();
  };
  const auto product = Begin(*gpu_.device, "a", "b");
  gpu_.Run();
  EXPECT_THAT(product->Wait(), IsOk());
  EXPECT_THAT(PlacesOf("a"), ElementsAre("fake:0"));
  EXPECT_THAT(bring(*product->tensors), IsOk());
  EXPECT_THAT(PlacesOf("a"), ElementsAre("host", "fake:0"));
  EXPECT_TRUE(product->tensors->is_unchanged());
  EXPECT_THAT(Multiply(gpu_, "0", "c"), IsOk());
  EXPECT_TRUE(product->tensors->is_unchanged()) << "others were written";
  EXPECT_THAT(Multiply(gpu_, "a", "a"), IsOk());
  EXPECT_FALSE(product->tensors->is_unchanged()) << "its operand was written";
  EXPECT_THAT(End(*product), IsOk());
  // D overwrites a tensor, and another product does so after it.
  const auto first = Begin(*gpu_.device, "b", "b");
  gpu_.Run();
  EXPECT_THAT(first->Wait(), IsOk());
  EXPECT_THAT(bring(*first->tensors), IsOk());
  EXPECT_TRUE(first->tensors->is_unchanged());
  EXPECT_THAT(Multiply(gpu_, "b", "b"), IsOk());
  EXPECT_FALSE(first->tensors->is_unchanged());
  EXPECT_THAT(End(*first), IsOk());
  // A product that reads while another one writes may see either value.
  const auto writer = Begin(*gpu_.device, "b", "b");
  const auto reader = Begin(*gpu_.device, "b", "d");
  gpu_.Run();
  gpu_.Run();
  EXPECT_THAT(End(*writer), IsOk());
  EXPECT_THAT(reader->Wait(), IsOk());
  EXPECT_FALSE(reader->tensors->is_unchanged());
  EXPECT_THAT(End(*reader), IsOk());
  memory_.Lose();
  EXPECT_THAT(bring(*first->tensors), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ResidentResultsTest, OtherDevicesReadAndOverwriteIt) {
  Upload("a", "0123456789");
  EXPECT_THAT(Multiply(gpu_, "a", "b"), IsOk());
  EXPECT_THAT(Multiply(cpu_, "b", "c"), IsOk());
  EXPECT_EQ(Read("c"), "23456789:;");
  EXPECT_THAT(Multiply(gpu_, "b", "b"), IsOk());
  EXPECT_THAT(Multiply(other_, "b", "b"), IsOk());
  EXPECT_THAT(PlacesOf("b"), ElementsAre("fake:1"));
  EXPECT_THAT(Multiply(cpu_, "b", "b"), IsOk());
  EXPECT_THAT(PlacesOf("b"), ElementsAre("host"));
  EXPECT_THAT(Multiply(gpu_, "b", "b"), IsOk());
  EXPECT_EQ(Read("b"), "56789:;<=>");
}

TEST_F(ResidentResultsTest, WhoOverwritesElsewhereWaits) {
  Upload("a", "0123456789");
  const auto first = Begin(*gpu_.device, "a", "a");
  gpu_.WaitForJob();
  const auto second = Begin(*cpu_.device, "a", "a");
  EXPECT_EQ(cpu_.scripted->held(), 0);
  gpu_.Run();
  cpu_.Run();
  EXPECT_THAT(End(*first), IsOk());
  EXPECT_THAT(End(*second), IsOk());
  EXPECT_EQ(Read("a"), "23456789:;");
}

TEST_F(ResidentResultsTest, AnAbortedProductLetsOthersWrite) {
  Upload("a", "0123456789");
  const auto first = Begin(*gpu_.device, "a", "a");
  const auto second = Begin(*cpu_.device, "a", "a");
  cpu_.device->Abort(last_id_);
  gpu_.Run();
  EXPECT_THAT(End(*first), IsOk());
  EXPECT_THAT(End(*second), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Multiply(gpu_, "a", "a"), IsOk());
  EXPECT_EQ(Read("a"), "23456789:;");
}

TEST_F(ResidentResultsTest, AProductThatFailedLeavesNoNewTensor) {
  Upload("a", "0123456789");
  const auto product = Begin(*gpu_.device, "a", "b");
  gpu_.Run(absl::InternalError("bad"));
  EXPECT_THAT(End(*product), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(store_.List(session_), SizeIs(1));
  // The device's thread has released it once it serves another call.
  EXPECT_THAT(Multiply(gpu_, "a", "c"), IsOk());
  EXPECT_EQ(gpu_.device->condition().tensor_bytes, 2 * kBlockGranuleBytes);
}

TEST_F(ResidentResultsTest, AResultThatFindsNoRoomGoesToTheHost) {
  FakeDeviceMemory small(kBlockGranuleBytes);
  Wrapped full("fake:2", &small, store_);
  Upload("a", "0123456789");
  EXPECT_THAT(Multiply(full, "a", "b"), IsOk());
  EXPECT_THAT(PlacesOf("b"), ElementsAre("host"));
  EXPECT_EQ(Read("b"), "123456789:");
}

TEST_F(ResidentResultsTest, OlderResultsAreWrittenBackForNewerOnes) {
  Upload("0", "0000000000");
  for (int i = 0; i < 8; ++i) {
    EXPECT_THAT(Multiply(gpu_, std::to_string(i), std::to_string(i + 1)), IsOk());
  }
  EXPECT_GT(gpu_.device->condition().tensors_written_back, 0);
  for (int i = 0; i <= 8; ++i) {
    EXPECT_EQ(Read(std::to_string(i)), std::string(kResultBytes, static_cast<char>('0' + i)));
  }
}

TEST_F(ResidentResultsTest, WhatWasOnALostDeviceAloneIsLost) {
  Upload("a", "0123456789");
  EXPECT_THAT(Multiply(gpu_, "a", "b"), IsOk());
  memory_.Lose();
  const auto is_lost =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tensor lost: got b,"));
  EXPECT_TRUE(store_.Describe(session_, std::string("b"))->lost);
  for (Wrapped* const wrapped : {&gpu_, &other_, &cpu_}) {
    const auto product = Begin(*wrapped->device, "b", "c");
    EXPECT_THAT(End(*product), is_lost);
    const auto in_place = Begin(*wrapped->device, "b", "b");
    EXPECT_THAT(End(*in_place), is_lost);
  }
  store_.Expire();
  store_.Expire();
  EXPECT_EQ(store_.load().tensors_lost, 1);
  EXPECT_THAT(Multiply(gpu_, "a", "b"), IsOk()) << "what the host has comes back by itself";
  EXPECT_FALSE(store_.Describe(session_, std::string("b"))->lost);
}

// Between the copy and the launch, or while the job waits.
TEST_F(ResidentResultsTest, AProductIsToldWhatTheLossOfItsBlocksMeans) {
  Upload("a", "0123456789");
  EXPECT_THAT(Multiply(gpu_, "a", "b"), IsOk());
  const auto kept = Begin(*gpu_.device, "a", "c");
  const auto gone = Begin(*gpu_.device, "b", "d");
  gpu_.WaitForJob();
  memory_.Lose();
  const absl::Status lost = absl::FailedPreconditionError("tensor lost: block 1");
  gpu_.Run(lost);
  gpu_.Run(lost);
  EXPECT_THAT(End(*kept), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("try again")));
  EXPECT_THAT(End(*gone),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tensor lost: got b,")));
}

TEST_F(ResidentResultsTest, PinnedResultsGetACopyOnTheHost) {
  Upload("a", "0123456789");
  EXPECT_THAT(Multiply(gpu_, "a", "b", {.name = "", .pinned = true}), IsOk());
  EXPECT_THAT(Multiply(gpu_, "a", "c"), IsOk());
  EXPECT_EQ(memory_.calls("Read"), 1);
  EXPECT_EQ(Read("b"), "123456789:");
  EXPECT_THAT(PlacesOf("b"), ElementsAre("host", "fake:0"));
  EXPECT_EQ(memory_.calls("Read"), 1);
  EXPECT_THAT(store_.KeepAlive(session_, std::string("c"), {}, true), IsOk());
  EXPECT_EQ(memory_.calls("Read"), 2);
}

TEST_F(ResidentResultsTest, AnUploadIsBroughtWhereItWillBeNeeded) {
  Upload("a", "0123456789", "fake:0");
  EXPECT_EQ(memory_.calls("Allocate"), 1);
  EXPECT_THAT(Multiply(gpu_, "a", "b"), IsOk());
  EXPECT_EQ(gpu_.device->condition().tensors_brought, 1);
  Upload("c", "0123456789", "cpu");
  EXPECT_THAT(store_.Begin(session_, Spec(), {}, {}, "fake:7"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("fake:7")));
}

}  // namespace
}  // namespace gemmd
