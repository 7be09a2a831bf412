// SPDX-License-Identifier: Apache-2.0
//
// Copies of tensors in device memory: made once, evicted least recently used first, and made again
// after a loss; and jobs that read them there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "server/store/placed_bytes.h"
#include "server/store/product_tensors.h"
#include "tests/server/device/fake_device_memory.h"
#include "tests/server/device/scripted_device.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using Use = DeviceCopies::Use;

// The outcome of one call of Bring, which another thread may deliver.
class Brought {
 public:
  DeviceCopies::Done Take() {
    return [this](absl::StatusOr<Use> use) {
      MutexLock lock(&mutex_);
      use_ = std::move(use);
    };
  }
  absl::StatusOr<Use>& Wait() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return use_.has_value(); },
        absl::Seconds(60)));
    return *use_;
  }
  bool is_there() {
    MutexLock lock(&mutex_);
    return use_.has_value();
  }

 private:
  Mutex mutex_;
  std::optional<absl::StatusOr<Use>> use_ ABSL_GUARDED_BY(mutex_);
};

class DeviceCopiesTest : public testing::Test {
 protected:
  static constexpr int64_t kBlock = kBlockGranuleBytes;

  std::shared_ptr<TensorBytes> Bytes(const std::string& text, int64_t bytes = kBlock) {
    auto made = TensorBytes::Allocate(bytes, *account_, background_).value();
    std::memcpy(made->host(), text.data(), text.size());
    return made;
  }
  absl::StatusOr<Use> Bring(const std::shared_ptr<TensorBytes>& bytes) {
    Brought brought;
    copies_->Bring(bytes, brought.Take());
    return std::move(brought.Wait());
  }
  std::string Text(const Use& use, size_t size) {
    return memory_.bytes(use.block()).substr(0, size);
  }

  const std::shared_ptr<Account> account_ =
      std::make_shared<Account>("all", "--all", int64_t{1} << 30, nullptr);
  const std::shared_ptr<ThreadPool> background_ = std::make_shared<ThreadPool>("background", 1);
  FakeDeviceMemory memory_{3 * kBlock};
  const std::shared_ptr<DeviceCopies> copies_ = std::make_shared<DeviceCopies>(memory_, "fake:0");
};

TEST_F(DeviceCopiesTest, AreMadeOnceAndGoWithTheirTensor) {
  std::shared_ptr<TensorBytes> bytes = Bytes("abc");
  {
    const absl::StatusOr<Use> first = Bring(bytes);
    ASSERT_THAT(first, IsOk());
    EXPECT_EQ(Text(*first, 3), "abc");
    const absl::StatusOr<Use> second = Bring(bytes);
    ASSERT_THAT(second, IsOk());
    EXPECT_EQ(second->block(), first->block());
  }
  EXPECT_EQ(memory_.calls("Write"), 1);
  EXPECT_EQ(copies_->counts().made, 1);
  EXPECT_EQ(copies_->counts().hits, 1);
  EXPECT_THAT(bytes->Devices(), testing::ElementsAre("fake:0"));
  // The device's thread has released the first tensor once it serves another one.
  const auto other = Bytes("other");
  ASSERT_THAT(Bring(other), IsOk());
  EXPECT_EQ(copies_->counts().copies, 2);
  bytes = nullptr;
  EXPECT_EQ(copies_->counts().copies, 1);
}

// Waits until the device has done its earlier work.
void WaitForForms(FakeDeviceMemory& memory) {
  Brought told;
  memory.Read(0, 0, {},
              [done = told.Take()](const absl::Status&) mutable { std::move(done)(Use()); });
  EXPECT_THAT(told.Wait(), IsOk());
}

FormKey KeyOf(int64_t bytes, uint32_t form = 1) {
  return {.form = form, .bytes = bytes, .offset = 0, .layout = {}, .matrices = 1};
}

// Room for three copies. Memory is taken for a form at its second use; one job makes it while
// others do without, and from then on all read it, until the bytes change.
TEST_F(DeviceCopiesTest, AFormIsMadeOnceItIsWantedAgain) {
  const auto bytes = Bytes("abc");
  const absl::StatusOr<Use> use = Bring(bytes);
  ASSERT_THAT(use, IsOk());
  const FormKey key = KeyOf(kBlock);
  EXPECT_EQ(copies_->TakeForm(*use, key).form, nullptr) << "used once";
  EXPECT_EQ(memory_.calls("Allocate"), 1);
  memory_.Hold(true);
  EXPECT_EQ(copies_->TakeForm(*use, key).form, nullptr) << "on its way";
  EXPECT_EQ(copies_->TakeForm(*use, key).form, nullptr) << "it is allocated once";
  memory_.Hold(false);
  WaitForForms(memory_);
  EXPECT_EQ(copies_->counts().forms, 1);
  EXPECT_EQ(copies_->counts().bytes, 2 * kBlock);

  DeviceCopies::FormUse maker = copies_->TakeForm(*use, key);
  ASSERT_NE(maker.form, nullptr);
  EXPECT_FALSE(maker.is_made);
  EXPECT_NE(maker.block, use->block());
  EXPECT_EQ(copies_->TakeForm(*use, key).form, nullptr) << "it is being made";
  EXPECT_EQ(copies_->TakeForm(*use, KeyOf(kBlock, 2)).form, nullptr) << "another one";
  const DeviceBlock block = maker.block;
  copies_->EndForm(std::move(maker), /*is_made=*/false);
  DeviceCopies::FormUse again = copies_->TakeForm(*use, key);
  ASSERT_NE(again.form, nullptr);
  EXPECT_FALSE(again.is_made) << "the first job failed";
  EXPECT_EQ(again.block, block);
  copies_->EndForm(std::move(again), /*is_made=*/true);

  DeviceCopies::FormUse reader = copies_->TakeForm(*use, key);
  DeviceCopies::FormUse other = copies_->TakeForm(*use, key);
  ASSERT_NE(reader.form, nullptr);
  ASSERT_NE(other.form, nullptr);
  EXPECT_TRUE(reader.is_made && other.is_made);
  EXPECT_EQ(other.block, block);
  copies_->EndForm(std::move(reader), true);
  copies_->EndForm(std::move(other), true);

  // Written in place.
  ASSERT_TRUE(bytes->TakeWritingAtOnce(copies_.get()));
  bytes->BeginWriting(copies_.get());
  DeviceCopies::FormUse outdated = copies_->TakeForm(*use, key);
  ASSERT_NE(outdated.form, nullptr);
  EXPECT_FALSE(outdated.is_made);
  bytes->EndWriting(copies_.get(), /*has_begun=*/true, /*is_ok=*/true);
  copies_->EndForm(std::move(outdated), true);
  DeviceCopies::FormUse fresh = copies_->TakeForm(*use, key);
  ASSERT_NE(fresh.form, nullptr);
  EXPECT_FALSE(fresh.is_made) << "it was made while the bytes changed";
  copies_->EndForm(std::move(fresh), true);
}

// The same number of bytes may be another number of matrices. Of more than eight forms wanted once,
// the one wanted longest ago is forgotten.
TEST_F(DeviceCopiesTest, AFormIsOfSoManyMatrices) {
  const auto bytes = Bytes("abc");
  const absl::StatusOr<Use> use = Bring(bytes);
  ASSERT_THAT(use, IsOk());
  for (int64_t matrices = 1; matrices <= 9; ++matrices) {
    FormKey key = KeyOf(kBlock);
    key.matrices = matrices;
    EXPECT_EQ(copies_->TakeForm(*use, key).form, nullptr);
  }
  WaitForForms(memory_);
  EXPECT_EQ(copies_->counts().forms, 0);
  FormKey last = KeyOf(kBlock);
  last.matrices = 9;
  EXPECT_EQ(copies_->TakeForm(*use, last).form, nullptr);
  WaitForForms(memory_);
  EXPECT_EQ(copies_->counts().forms, 1);
}

// A form that a job uses.
DeviceCopies::FormUse MakeForm(DeviceCopies& copies, FakeDeviceMemory& memory, const Use& use,
                               const FormKey& key) {
  for (int i = 0; i < 2; ++i) EXPECT_EQ(copies.TakeForm(use, key).form, nullptr);
  WaitForForms(memory);
  return copies.TakeForm(use, key);
}

TEST_F(DeviceCopiesTest, FormsGoBeforeCopiesAndWithTheirOwn) {
  auto a = Bytes("a");
  const auto b = Bytes("b");
  auto c = Bytes("c");
  {
    const absl::StatusOr<Use> first = Bring(a);
    ASSERT_THAT(first, IsOk());
    DeviceCopies::FormUse form = MakeForm(*copies_, memory_, *first, KeyOf(kBlock));
    ASSERT_NE(form.form, nullptr);
    ASSERT_THAT(Bring(b), IsOk());
    EXPECT_EQ(copies_->counts().bytes, 3 * kBlock);
    ASSERT_THAT(Bring(c), IsOk());
    EXPECT_EQ(copies_->counts().evictions, 1) << "b went: a and its form are in use";
    EXPECT_EQ(copies_->counts().forms, 1);
    copies_->EndForm(std::move(form), true);
  }
  ASSERT_THAT(Bring(b), IsOk());
  EXPECT_EQ(copies_->counts().forms, 0) << "nobody uses it: it goes first";
  EXPECT_EQ(copies_->counts().copies, 3);
  EXPECT_EQ(copies_->counts().evictions, 1);

  // There is no room for another form, and no copy is evicted for one.
  {
    const absl::StatusOr<Use> third = Bring(c);
    ASSERT_THAT(third, IsOk());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(copies_->TakeForm(*third, KeyOf(1)).form, nullptr);
    WaitForForms(memory_);
    EXPECT_EQ(copies_->counts().forms, 0);
    EXPECT_EQ(copies_->counts().copies, 3);
    a = nullptr;
    DeviceCopies::FormUse form = MakeForm(*copies_, memory_, *third, KeyOf(kBlock));
    ASSERT_NE(form.form, nullptr);
    copies_->EndForm(std::move(form), true);
    EXPECT_EQ(copies_->counts().bytes, 3 * kBlock);
  }
  WaitForForms(memory_);  // The device's thread has released the tensor.
  c = nullptr;
  EXPECT_EQ(copies_->counts().forms, 0);
  EXPECT_EQ(copies_->counts().bytes, kBlock);
}

TEST_F(DeviceCopiesTest, AFormIsLostWithTheDevice) {
  const auto bytes = Bytes("abc");
  const FormKey key = KeyOf(kBlock);
  {
    const absl::StatusOr<Use> use = Bring(bytes);
    ASSERT_THAT(use, IsOk());
    DeviceCopies::FormUse form = MakeForm(*copies_, memory_, *use, key);
    ASSERT_NE(form.form, nullptr);
    copies_->EndForm(std::move(form), true);
    memory_.Lose();
    EXPECT_EQ(copies_->TakeForm(*use, key).form, nullptr);
  }
  const absl::StatusOr<Use> use = Bring(bytes);
  ASSERT_THAT(use, IsOk());
  EXPECT_EQ(copies_->counts().forms, 0);
  DeviceCopies::FormUse form = MakeForm(*copies_, memory_, *use, key);
  ASSERT_NE(form.form, nullptr);
  EXPECT_FALSE(form.is_made);
  copies_->EndForm(std::move(form), true);
}

// Forms of an owner's tensors are charged to the owner, and evicted for its other tensors.
TEST_F(DeviceCopiesTest, AnOwnerPaysForForms) {
  const auto owner = std::make_shared<Account>("the caller", "--own", int64_t{1} << 30, account_);
  const auto on_devices = std::make_shared<Account>("the caller", "device_tensor_bytes", 2 * kBlock,
                                                    nullptr, Account::Memory::kDevices);
  owner->SetOnDevices(on_devices);
  const auto a = TensorBytes::Allocate(kBlock, *owner, background_).value();
  const auto b = TensorBytes::Allocate(kBlock, *owner, background_).value();
  const absl::StatusOr<Use> use = Bring(a);
  ASSERT_THAT(use, IsOk());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(copies_->TakeForm(*use, KeyOf(2 * kBlock)).form, nullptr);
  WaitForForms(memory_);
  EXPECT_EQ(copies_->TakeForm(*use, KeyOf(2 * kBlock)).form, nullptr) << "more than he may have";
  DeviceCopies::FormUse form = MakeForm(*copies_, memory_, *use, KeyOf(kBlock));
  ASSERT_NE(form.form, nullptr);
  EXPECT_EQ(on_devices->used(), 2 * kBlock);
  copies_->EndForm(std::move(form), true);
  ASSERT_THAT(Bring(b), IsOk());
  EXPECT_EQ(on_devices->used(), 2 * kBlock);
  EXPECT_EQ(copies_->counts().forms, 0);
  EXPECT_EQ(copies_->counts().copies, 2);
}

// An owner's tensors use no more device memory than allowed: only its own copies are evicted for
// its others.
TEST_F(DeviceCopiesTest, AnOwnerHasHisPartOfTheDevice) {
  const auto owner = std::make_shared<Account>("the caller", "--own", int64_t{1} << 30, account_);
  const auto on_devices = std::make_shared<Account>("the caller", "device_tensor_bytes", 2 * kBlock,
                                                    nullptr, Account::Memory::kDevices);
  owner->SetOnDevices(on_devices);
  // Sessions are within the owner's account.
  const auto session = std::make_shared<Account>("the session", "--one", int64_t{1} << 30, owner);
  const auto own = [&](const std::string& text, int64_t bytes = kBlock) {
    auto made = TensorBytes::Allocate(bytes, *session, background_).value();
    std::memcpy(made->host(), text.data(), text.size());
    return made;
  };
  const auto other = Bytes("other");
  ASSERT_THAT(Bring(other), IsOk());
  const auto a = own("a");
  const auto b = own("b");
  const auto c = own("c");
  ASSERT_THAT(Bring(a), IsOk());
  ASSERT_THAT(Bring(b), IsOk());
  EXPECT_EQ(on_devices->used(), 2 * kBlock);
  ASSERT_THAT(Bring(a), IsOk()) << "it is there";
  {
    const absl::StatusOr<Use> use = Bring(c);
    ASSERT_THAT(use, IsOk());
    EXPECT_EQ(Text(*use, 1), "c");
  }
  EXPECT_THAT(b->Devices(), testing::IsEmpty()) << "it was used least recently";
  EXPECT_THAT(other->Devices(), testing::SizeIs(1));
  EXPECT_EQ(on_devices->used(), 2 * kBlock);
  EXPECT_EQ(copies_->counts().evictions, 1);
  // Copies in use stay.
  {
    const absl::StatusOr<Use> first = Bring(a);
    const absl::StatusOr<Use> second = Bring(c);
    ASSERT_THAT(first, IsOk());
    ASSERT_THAT(second, IsOk());
    EXPECT_THAT(Bring(b), StatusIs(absl::StatusCode::kResourceExhausted,
                                   HasSubstr("bytes of device memory, want at most the 0 that are "
                                             "free of the caller: 512 of 512 are used "
                                             "(device_tensor_bytes)")));
  }
  EXPECT_THAT(Bring(own("large", 3 * kBlock)), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(a->Devices(), testing::IsEmpty()) << "room was made for it as far as possible";
  EXPECT_EQ(on_devices->used(), 0);
  // Bytes that only the device has stay there.
  const auto result = own("old");
  result->TakeWriting(copies_.get(), [] {});
  {
    const absl::StatusOr<Use> use = Bring(result);
    ASSERT_THAT(use, IsOk());
    result->BeginWriting(copies_.get());
    result->EndWriting(copies_.get(), true, true);
  }
  ASSERT_THAT(Bring(a), IsOk());
  ASSERT_THAT(Bring(b), IsOk());
  EXPECT_THAT(a->Devices(), testing::IsEmpty());
  EXPECT_THAT(result->Devices(), testing::SizeIs(1));
  memory_.Lose();
  ASSERT_THAT(Bring(a), IsOk());
  EXPECT_THAT(Bring(c), IsOk());
}

TEST_F(DeviceCopiesTest, TheLeastRecentlyUsedGoesFirst) {
  const auto a = Bytes("a");
  const auto b = Bytes("b");
  const auto c = Bytes("c");
  const auto d = Bytes("d");
  for (const auto& bytes : {a, b, c, a}) ASSERT_THAT(Bring(bytes), IsOk());
  EXPECT_EQ(copies_->counts().evictions, 0);
  ASSERT_THAT(Bring(d), IsOk());
  EXPECT_EQ(copies_->counts().evictions, 1);
  EXPECT_TRUE(b->Devices().empty());
  EXPECT_FALSE(a->Devices().empty());
  const absl::StatusOr<Use> again = Bring(b);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(Text(*again, 1), "b");
}

TEST_F(DeviceCopiesTest, WhatIsUsedStays) {
  const auto a = Bytes("a");
  const auto large = Bytes("large", 2 * kBlock);
  const auto other = Bytes("other", 2 * kBlock);
  const absl::StatusOr<Use> used = Bring(a);
  absl::StatusOr<Use> also_used = Bring(large);
  ASSERT_THAT(also_used, IsOk());
  EXPECT_THAT(Bring(other),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("quota: got 512 bytes of device memory, want at "
                                 "most the 0 that are free of all tensors of fake:0: "
                                 "768 of 768 are in use (four fifths of --gpu-memory-bytes)")));
  also_used = absl::UnknownError("");
  EXPECT_THAT(Bring(other), IsOk());
  EXPECT_EQ(Text(*used, 1), "a");
}

TEST_F(DeviceCopiesTest, WhatNeverFitsEvictsNothing) {
  const auto a = Bytes("a");
  ASSERT_THAT(Bring(a), IsOk());
  EXPECT_THAT(
      Bring(Bytes("x", 4 * kBlock)),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("quota: got 1024 bytes of device memory, want at most the 768 of "
                         "fake:0 that all tensors may take (four fifths of --gpu-memory-bytes)")));
  EXPECT_EQ(copies_->counts().evictions, 0);
}

TEST_F(DeviceCopiesTest, AreMadeAnewAfterALoss) {
  const auto a = Bytes("a");
  ASSERT_THAT(Bring(a), IsOk());
  memory_.Lose();
  EXPECT_TRUE(a->Devices().empty());
  const absl::StatusOr<Use> again = Bring(a);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(Text(*again, 1), "a");
  EXPECT_EQ(copies_->counts().made, 2);
  EXPECT_EQ(copies_->counts().copies, 1);
}

TEST_F(DeviceCopiesTest, ManyWaitForOneCopyAndLearnThatItFailed) {
  const auto a = Bytes("a");
  memory_.Hold(true);
  Brought first;
  Brought second;
  copies_->Bring(a, first.Take());
  copies_->Bring(a, second.Take());
  EXPECT_FALSE(first.is_there());
  memory_.FailNext("Write", absl::InternalError("bad"));
  memory_.Hold(false);
  EXPECT_THAT(first.Wait(), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(second.Wait(), StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(copies_->counts().copies, 0);
  EXPECT_THAT(Bring(a), IsOk());
  EXPECT_EQ(memory_.calls("Allocate"), 2);
}

TEST_F(DeviceCopiesTest, ChangedBytesAreCopiedAnew) {
  const auto a = Bytes("old");
  const absl::StatusOr<Use> old = Bring(a);
  a->TakeWriting(nullptr, [] {});
  a->BeginWriting(nullptr);
  std::memcpy(a->host(), "new", 3);
  a->EndWriting(nullptr, /*has_begun=*/true, /*is_ok=*/true);
  const absl::StatusOr<Use> now = Bring(a);
  ASSERT_THAT(now, IsOk());
  EXPECT_EQ(Text(*now, 3), "new");
  EXPECT_EQ(Text(*old, 3), "old") << "whoever began with it keeps it";
}

TEST_F(DeviceCopiesTest, NothingTouchesTheMemoryOnceItIsClosed) {
  std::shared_ptr<TensorBytes> a = Bytes("a");
  ASSERT_THAT(Bring(a), IsOk());
  copies_->Close();
  EXPECT_THAT(Bring(a), StatusIs(absl::StatusCode::kUnavailable));
  a = nullptr;
  EXPECT_EQ(memory_.calls("Free"), 0);
}

class ResidentDeviceTest : public testing::Test {
 protected:
  ResidentDeviceTest() {
    auto device = std::make_unique<ScriptedDevice>(
        "fake:0", DeviceProfile{.target = HostTarget(), .rates = {}});
    device->tensor_memory = &memory_;
    device->RunJobs(true);
    device->compute = [this](const Job& job) {
      jobs_.push_back(job);
      return JobOutcome();
    };
    device_ = WithTensors(std::move(device), store_);
  }

  // A job whose A is a tensor of these bytes, starting at `offset`.
  Job JobOf(const std::string& text, int64_t offset) {
    const TensorStore::SessionUse session = store_.OpenSession("", "a").value();
    const TensorSpec spec = MakeTensorSpec(TightLayout("spec", ElementType::kU8, Order::kRowMajor,
                                                       1, static_cast<int64_t>(text.size()))
                                               .value(),
                                           1, {})
                                .value();
    const auto upload = store_.Begin(session, spec, {.name = "a"}, {})->upload;
    const Piece piece = PieceOf(text);
    EXPECT_THAT(store_.Write(session, upload, 0, {piece}), IsOk());
    tensors_ = ProductTensors::Make(store_, session.token().ToHex()).value();
    ProductTensors::Names names;
    names.read[static_cast<size_t>(OperandRole::kA)] = "a";
    EXPECT_THAT(tensors_->Find(names), IsOk());
    tensors_->SetPart(OperandRole::kA, offset, static_cast<int64_t>(text.size()) - offset);
    Job job;
    job.id = 7;
    job.kernel = Catalog(DeviceKind::kCuda).data();
    EXPECT_THAT(tensors_->Place(job), IsOk());
    return job;
  }

  absl::Status Wait() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_.has_value(); },
        absl::Seconds(60)));
    return *ended_;
  }
  Device::Done TakeEnd() {
    return [this](const JobOutcome& outcome) {
      MutexLock lock(&mutex_);
      ended_ = outcome.status;
    };
  }

  FakeClock clock_;
  TensorStore store_{{}, clock_};
  FakeDeviceMemory memory_{1024};
  std::vector<Job> jobs_;  // Of the device; read after one has ended.
  std::unique_ptr<ProductTensors> tensors_;
  std::unique_ptr<Device> device_;
  Mutex mutex_;
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(ResidentDeviceTest, JobsReadTensorsInTheMemoryOfTheDevice) {
  device_->Submit(JobOf("0123456789", 3), TakeEnd());
  EXPECT_THAT(Wait(), IsOk());
  const Source a = jobs_.at(0).a;
  EXPECT_EQ(a.offset, 3);
  EXPECT_EQ(a.bytes, 7);
  EXPECT_TRUE(a.pieces.empty());
  EXPECT_EQ(memory_.bytes(a.block).substr(0, 10), "0123456789");
}

// If products run as one, the rows of all of them are the job's A.
TEST_F(ResidentDeviceTest, AMatrixOfSeveralProductsIsLeftAlone) {
  Job job = JobOf("0123456789", 0);
  const std::vector<Piece> rows = {PieceOf("0123456789"), PieceOf("abcdefghij")};
  job.a.pieces = rows;
  job.a.bytes = 20;
  device_->Submit(job, TakeEnd());
  EXPECT_THAT(Wait(), IsOk());
  EXPECT_EQ(jobs_.at(0).a.block, 0);
  EXPECT_EQ(jobs_.at(0).a.bytes, 20);
}

TEST_F(ResidentDeviceTest, WhatFindsNoRoomIsReadFromTheHost) {
  device_->Submit(JobOf(std::string(2000, 'x'), 0), TakeEnd());
  EXPECT_THAT(Wait(), IsOk());
  const Source a = jobs_.at(0).a;
  EXPECT_EQ(a.block, 0);
  EXPECT_EQ(a.pieces.size(), 1);
}

TEST_F(ResidentDeviceTest, AnAbortedJobIsNotGivenToTheDevice) {
  memory_.Hold(true);
  device_->Submit(JobOf("0123456789", 0), TakeEnd());
  device_->Abort(7);
  memory_.Hold(false);
  EXPECT_THAT(Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(jobs_.empty());
}

TEST_F(ResidentDeviceTest, OtherJobsPassThrough) {
  Job job;
  job.id = 1;
  device_->Submit(job, TakeEnd());
  EXPECT_THAT(Wait(), IsOk());
  EXPECT_EQ(jobs_.size(), 1);
  EXPECT_EQ(memory_.calls("Allocate"), 0);
}

// Bytes for which the host never has room.
class StuckBytes final : public PlacedBytes {
 public:
  struct Asked {
    std::vector<uintptr_t> frames;  // Where the stack was.
  };
  explicit StuckBytes(Asked& asked)
      : PlacedBytes(HostMemory::Allocate(kBlockGranuleBytes).value()), asked_(asked) {}

  absl::Status TakeRoom() override {
    const char here = 0;
    asked_.frames.push_back(reinterpret_cast<uintptr_t>(&here));
    return absl::ResourceExhaustedError("no room");
  }

 private:
  Asked& asked_;
};

// However many cannot leave the device, they are tried in a loop.
TEST_F(DeviceCopiesTest, CopiesAreNotPassedOverWithinEachOther) {
  constexpr int kCopies = 300;
  FakeDeviceMemory memory(kCopies * kBlock);
  const auto copies = std::make_shared<DeviceCopies>(memory, "fake:0");
  StuckBytes::Asked asked;
  std::vector<std::shared_ptr<StuckBytes>> all;
  for (int i = 0; i < kCopies; ++i) {
    all.push_back(std::make_shared<StuckBytes>(asked));
    Brought brought;
    copies->MakeNew(all.back(), brought.Take());
    ASSERT_THAT(brought.Wait(), IsOk());
    all.back()->TakeWriting(copies.get(), [] {});
    all.back()->BeginWriting(copies.get());
    all.back()->EndWriting(copies.get(), /*has_begun=*/true, /*is_ok=*/true);
  }
  Brought brought;
  copies->Bring(Bytes("more"), brought.Take());
  EXPECT_THAT(brought.Wait(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no room")));
  ASSERT_EQ(asked.frames.size(), kCopies);
  const auto [low, high] = std::minmax_element(asked.frames.begin(), asked.frames.end());
  EXPECT_EQ(*low, *high);
  copies->Close();
}

}  // namespace
}  // namespace gemmd
