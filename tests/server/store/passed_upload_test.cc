// SPDX-License-Identifier: Apache-2.0
//
// Uploads of tensors for which the host has no room: their bytes pass through a window to a device
// as they come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/tensor_store.h"
#include "tests/server/device/fake_device_memory.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMiB = int64_t{1} << 20;
// The room of the host holds a window, but not the tensor.
constexpr int64_t kRoom = 9 * kMiB;
constexpr int64_t kSize = 24 * kMiB;

MATCHER_P(IsTaken, is_taken, "") { return arg.ok() && *arg == is_taken; }

std::string RandomBytes(int64_t bytes) {
  RandomSource random;
  std::string text(static_cast<size_t>(bytes), '\0');
  for (char& one : text) one = static_cast<char>(random.Bits());
  return text;
}

// What happens on other threads.
template <typename T>
class Told {
 public:
  void Set(T value) {
    MutexLock lock(&mutex_);
    value_ = std::move(value);
  }
  T Wait() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return value_.has_value(); },
        absl::Seconds(60)));
    return *value_;
  }
  bool is_there() {
    MutexLock lock(&mutex_);
    return value_.has_value();
  }

 private:
  Mutex mutex_;
  std::optional<T> value_ ABSL_GUARDED_BY(mutex_);
};

using End = Told<absl::StatusOr<TensorState>>;

class PassedUploadTest : public testing::Test {
 protected:
  PassedUploadTest() { Start(HostCopies::kNone); }
  ~PassedUploadTest() override { Stop(); }

  void Stop() {
    session_ = {};
    if (copies_ != nullptr) copies_->Close();
    memory_ = nullptr;  // Its thread uses the store.
  }

  void Start(HostCopies copies, int64_t room = kRoom, int64_t device_bytes = 2 * kSize,
             double session_device_share = 1) {
    Stop();
    store_ =
        std::make_unique<TensorStore>(StoreOptions{.max_bytes = room,
                                                   .max_session_bytes = room,
                                                   .session_device_share = session_device_share,
                                                   .host_copies = copies},
                                      clock_);
    memory_ = std::make_unique<FakeDeviceMemory>(device_bytes);
    copies_ = std::make_shared<DeviceCopies>(*memory_, "fake:0");
    store_->AddDevice("fake:0", copies_);
    store_->AddDevice("cpu", nullptr);
    session_ = store_->OpenSession("", "a").value();
  }

  static TensorSpec Spec(int64_t bytes) {
    return MakeTensorSpec(TightLayout("spec", ElementType::kU8, Order::kRowMajor, 1, bytes).value(),
                          1, {})
        .value();
  }
  static Sha256Digest HashOf(const std::string& text) { return Sha256::Of(PieceOf(text)); }

  absl::StatusOr<TensorStore::Beginning> Begin(int64_t bytes = kSize, Keeping keep = {.name = "w"},
                                               const std::optional<Sha256Digest>& digest = {},
                                               const std::string& device = "fake:0") {
    return store_->Begin(session_, Spec(bytes), std::move(keep), digest, device);
  }

  std::shared_ptr<End> EndOf(const std::shared_ptr<Upload>& upload) {
    auto end = std::make_shared<End>();
    upload->Listen(store_->Attach(upload).value(),
                   [end](const absl::StatusOr<TensorState>& result) { end->Set(result); });
    return end;
  }

  absl::StatusOr<bool> Write(const std::shared_ptr<Upload>& upload, const std::string& text,
                             int64_t offset, Upload::Waiter later = {}) {
    return store_->Write(session_, upload, offset, {PieceOf(text)}, std::move(later));
  }
  // Waits for room, as a stream does.
  absl::Status WriteAll(const std::shared_ptr<Upload>& upload, const std::string& text,
                        int64_t begin, int64_t end, int64_t chunk = kMiB) {
    for (int64_t at = begin; at < end; at += chunk) {
      const std::string part =
          text.substr(static_cast<size_t>(at), static_cast<size_t>(std::min(chunk, end - at)));
      while (true) {
        const auto again = std::make_shared<Told<bool>>();
        const absl::StatusOr<bool> is_taken =
            Write(upload, part, at, [again] { again->Set(true); });
        if (!is_taken.ok()) return is_taken.status();
        if (*is_taken) break;
        again->Wait();
      }
      peak_ = std::max(peak_, store_->used_bytes());
    }
    return absl::OkStatus();
  }

  std::string Read(const TensorState& tensor, int64_t offset, int64_t bytes) {
    std::string text(static_cast<size_t>(bytes), '\0');
    Told<absl::Status> told;
    tensor.tensor->bytes->Read(offset, {reinterpret_cast<std::byte*>(text.data()), text.size()},
                               [&told](const absl::Status& status) { told.Set(status); });
    const absl::Status status = told.Wait();
    return status.ok() ? text : std::string(status.message());
  }
  static std::vector<std::string> PlacesOf(const TensorState& tensor) {
    std::vector<std::string> places;
    for (const TensorPlace& place : tensor.places) places.push_back(place.device);
    return places;
  }

  FakeClock clock_;
  int64_t peak_ = 0;  // Of what all uploads and tensors take of the host.
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<FakeDeviceMemory> memory_;
  std::shared_ptr<DeviceCopies> copies_;
  TensorStore::SessionUse session_;
};

TEST_F(PassedUploadTest, TakesTheRoomOfAWindow) {
  const std::string text = RandomBytes(kSize);
  const auto begun = Begin();
  ASSERT_THAT(begun, IsOk());
  const auto end = EndOf(begun->upload);
  ASSERT_THAT(WriteAll(begun->upload, text, 0, kSize), IsOk());
  const absl::StatusOr<TensorState> tensor = end->Wait();
  ASSERT_THAT(tensor, IsOk());
  EXPECT_THAT(PlacesOf(*tensor), ElementsAre("fake:0"));
  EXPECT_TRUE(Read(*tensor, 0, kSize) == text);
  EXPECT_LE(peak_, Upload::kWindowBytes + Upload::kOverheadBytes + TensorStore::kTensorBytes);
  EXPECT_GT(peak_, Upload::kWindowBytes);
  EXPECT_LE(tensor->kept_bytes, TensorStore::kTensorBytes);
}

// More is not taken before the device has some of it, not even before the device has a block.
TEST_F(PassedUploadTest, WaitsForTheDevice) {
  memory_->Hold(true);
  const std::string text = RandomBytes(kSize);
  const std::shared_ptr<Upload> upload = Begin()->upload;
  const auto end = EndOf(upload);
  Told<bool> first;
  EXPECT_THAT(Write(upload, text.substr(0, 1), 0, [&] { first.Set(true); }), IsTaken(false));
  EXPECT_THAT(upload->Missing(), ElementsAre(ByteRange{0, kSize}));
  memory_->HoldFrom("Write");
  memory_->Hold(false);
  first.Wait();
  constexpr int64_t kHalf = Upload::kWindowBytes / 2;
  for (int64_t at = 0; at < kHalf; at += kMiB) {
    EXPECT_THAT(Write(upload, text.substr(static_cast<size_t>(at), kMiB), at), IsTaken(true));
  }
  Told<bool> later;
  EXPECT_THAT(Write(upload, text.substr(kHalf, 1), kHalf, [&] { later.Set(true); }),
              IsTaken(false));
  EXPECT_FALSE(later.is_there());
  EXPECT_THAT(upload->Missing(), ElementsAre(ByteRange{0, kSize}));
  memory_->Hold(false);
  later.Wait();
  ASSERT_THAT(WriteAll(upload, text, kHalf, kSize), IsOk());
  ASSERT_THAT(end->Wait(), IsOk());
  EXPECT_TRUE(Read(*end->Wait(), 0, kSize) == text);
}

TEST_F(PassedUploadTest, TakesBytesInAnyOrderOnceAndIsJoined) {
  const std::string text = RandomBytes(kSize);
  const std::string other(static_cast<size_t>(kSize), 'x');
  const std::shared_ptr<Upload> upload = Begin(kSize, {.name = "w"}, HashOf(text))->upload;
  constexpr int64_t kMiddle = kSize / 2 + 12345;
  ASSERT_THAT(WriteAll(upload, text, kMiddle, kSize, 777'777), IsOk());
  const auto joined = store_->Join(session_, upload->id().ToBytes());
  ASSERT_THAT(joined, IsOk());
  const auto end = EndOf(*joined);
  ASSERT_THAT(WriteAll(*joined, text, 0, kMiddle - 5, 777'777), IsOk());
  // The first who sends a byte decides.
  ASSERT_THAT(WriteAll(*joined, other, 0, kMiddle - 5), IsOk());
  EXPECT_FALSE(end->is_there());
  ASSERT_THAT(WriteAll(*joined, text, kMiddle - 7, kSize), IsOk());
  const absl::StatusOr<TensorState> tensor = end->Wait();
  ASSERT_THAT(tensor, IsOk());
  EXPECT_TRUE(Read(*tensor, 0, kSize) == text);
  // The hash is known from now on.
  const auto again = Begin(kSize, {.name = "again"}, HashOf(text));
  ASSERT_THAT(again, IsOk());
  ASSERT_TRUE(again->tensor.has_value());
  EXPECT_THAT(PlacesOf(*again->tensor), ElementsAre("fake:0"));
}

TEST_F(PassedUploadTest, AWrongHashKeepsNothing) {
  const std::string text = RandomBytes(kSize);
  std::string other = text;
  ++other[kSize - 1];
  const std::shared_ptr<Upload> upload = Begin(kSize, {.name = "w"}, HashOf(other))->upload;
  const auto end = EndOf(upload);
  ASSERT_THAT(WriteAll(upload, text, 0, kSize), IsOk());
  EXPECT_THAT(end->Wait(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(store_->List(session_), IsEmpty());
}

// A worker that is replaced loses the bytes: those of an upload, which must begin anew, and those
// of a tensor, which says so.
TEST_F(PassedUploadTest, IsLostWithTheDevice) {
  const std::string text = RandomBytes(kSize);
  std::shared_ptr<Upload> upload = Begin()->upload;
  const auto end = EndOf(upload);
  ASSERT_THAT(WriteAll(upload, text, 0, kSize / 2), IsOk());
  memory_->Lose();
  // What is sent later is ignored.
  ASSERT_THAT(WriteAll(upload, text, kSize / 2, kSize), IsOk());
  EXPECT_THAT(end->Wait(), StatusIs(absl::StatusCode::kAborted, HasSubstr("fake:0")));
  EXPECT_THAT(store_->Join(session_, upload->id().ToBytes()),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_->List(session_), IsEmpty());
  upload = nullptr;
  ASSERT_TRUE(Eventually([&] { return store_->used_bytes() == 0; })) << "so is its window";

  const std::shared_ptr<Upload> second = Begin()->upload;
  const auto second_end = EndOf(second);
  ASSERT_THAT(WriteAll(second, text, 0, kSize), IsOk());
  ASSERT_THAT(second_end->Wait(), IsOk());
  memory_->Lose();
  const absl::StatusOr<TensorState> lost = store_->Describe(session_, "w");
  ASSERT_THAT(lost, IsOk());
  EXPECT_TRUE(lost->lost);
  EXPECT_THAT(Read(*lost, 0, 10), HasSubstr("tensor lost"));
}

// Bytes cannot be hashed that the device has lost since.
TEST_F(PassedUploadTest, IsLostBeforeItIsHashed) {
  const std::string text = RandomBytes(kSize);
  const std::shared_ptr<Upload> upload = Begin(kSize, {.name = "w"}, HashOf(text))->upload;
  const auto end = EndOf(upload);
  ASSERT_THAT(WriteAll(upload, text, kMiB, kSize), IsOk());
  memory_->HoldFrom("Read");
  ASSERT_THAT(WriteAll(upload, text, 0, kMiB), IsOk());
  memory_->Lose();
  memory_->Hold(false);
  EXPECT_THAT(end->Wait(), StatusIs(absl::StatusCode::kAborted));
}

// A dropped upload leaves nothing, neither on the host nor on the device, and who waits is told.
TEST_F(PassedUploadTest, GoesWithItsSession) {
  const std::string text = RandomBytes(kSize);
  std::shared_ptr<Upload> upload = Begin()->upload;
  const auto end = EndOf(upload);
  memory_->HoldFrom("Write");
  ASSERT_THAT(WriteAll(upload, text, 0, Upload::kWindowBytes / 2), IsOk());
  Told<bool> later;
  ASSERT_THAT(
      Write(upload, text.substr(0, kMiB), Upload::kWindowBytes / 2, [&] { later.Set(true); }),
      IsTaken(false));
  ASSERT_THAT(store_->DropSession(store_->ListSessions(1).sessions[0].id), IsOk());
  EXPECT_THAT(end->Wait(), StatusIs(absl::StatusCode::kNotFound));
  later.Wait();
  EXPECT_THAT(Write(upload, text.substr(0, 1), 0), IsTaken(true)) << "it is ignored";
  upload = nullptr;
  memory_->Hold(false);
  EXPECT_TRUE(Eventually([&] { return memory_->blocks() == 0 && store_->used_bytes() == 0; }));
  EXPECT_EQ(copies_->counts().bytes, 0);
}

TEST_F(PassedUploadTest, IsRefusedWhereTheDeviceHasNoRoomEither) {
  Start(HostCopies::kNone, kRoom, kSize - 1);
  EXPECT_THAT(Begin(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("device memory")));
  Start(HostCopies::kNone, 2 * kRoom, kSize + kMiB);
  // The first is in use, so that it cannot make room.
  const std::shared_ptr<Upload> first = Begin()->upload;
  const auto second = Begin();
  if (second.ok()) {
    EXPECT_THAT(EndOf(second->upload)->Wait(), StatusIs(absl::StatusCode::kResourceExhausted));
  } else {
    EXPECT_THAT(second, StatusIs(absl::StatusCode::kResourceExhausted));
  }
}

// As long as the host has room, the bytes are received there.
TEST_F(PassedUploadTest, IsNotPassedWhereTheHostHasRoom) {
  Start(HostCopies::kNone, kSize + kMiB);
  const std::string text = RandomBytes(kSize);
  memory_->Hold(true);
  const std::shared_ptr<Upload> upload = Begin()->upload;
  const auto end = EndOf(upload);
  ASSERT_THAT(WriteAll(upload, text, 0, kSize), IsOk());
  ASSERT_THAT(end->Wait(), IsOk());
  EXPECT_THAT(PlacesOf(*end->Wait()), ElementsAre("host"));
  memory_->Hold(false);
}

TEST_F(PassedUploadTest, OnlyWhatMayBeOnADeviceAloneIsPassed) {
  const auto is_refused = StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("host memory"));
  EXPECT_THAT(Begin(kSize, {.name = "w"}, {}, ""), is_refused);
  EXPECT_THAT(Begin(kSize, {.name = "w"}, {}, "cpu"), is_refused);
  EXPECT_THAT(Begin(kSize, {.name = "w", .pinned = true}), IsOk());
  Start(HostCopies::kAll);
  EXPECT_THAT(Begin(), is_refused);
  Start(HostCopies::kPinned);
  EXPECT_THAT(Begin(kSize, {.name = "w", .pinned = true}), is_refused);
  EXPECT_THAT(Begin(), IsOk());
  Start(HostCopies::kNone, Upload::kWindowBytes);
  EXPECT_THAT(Begin(), is_refused) << "there is no room for a window";
}

// Each chunk counts once, as it lies in the window, however little of it is new.
TEST_F(PassedUploadTest, CountsWhatChunksTakeOfTheWindow) {
  const std::string text = RandomBytes(kSize);
  constexpr int64_t kHalf = Upload::kWindowBytes / 2;
  const auto fill = [&](int64_t bytes, int64_t want) {
    const std::shared_ptr<Upload> upload = Begin()->upload;
    ASSERT_THAT(WriteAll(upload, text, 0, 1), IsOk());
    ASSERT_TRUE(Eventually([&] { return upload->Missing().front().offset == 1; }));
    memory_->HoldFrom("Write");
    for (int64_t at = 1; at <= want; ++at) {
      const auto size = static_cast<size_t>(bytes);
      ASSERT_THAT(Write(upload, text.substr(static_cast<size_t>(at), size), at), IsTaken(true))
          << at;
    }
    EXPECT_THAT(Write(upload, text.substr(0, static_cast<size_t>(bytes)), want + 1),
                IsTaken(false));
    memory_->Hold(false);
    EXPECT_THAT(WriteAll(upload, text, want + 1, want + kHalf), IsOk());
  };
  fill(1, kHalf / 4096);  // One byte takes 4 KiB.
  Start(HostCopies::kNone);
  fill(kMiB, kHalf / kMiB);  // All but one byte of each were in the one before.
}

// What waits for room keeps a stream's message, which goes with the stream.
TEST_F(PassedUploadTest, AStreamThatHasLeftWaitsForNothing) {
  memory_->HoldFrom("Allocate");
  const std::shared_ptr<Upload> upload = Begin()->upload;
  const Upload::StreamId stream = store_->Attach(upload).value();
  upload->Listen(stream, [](const absl::StatusOr<TensorState>&) {});
  const auto kept = std::make_shared<bool>(false);
  const auto write = [&] {
    return store_->Write(
        session_, upload, 0, {PieceOf("x")}, [kept] { *kept = true; }, stream);
  };
  EXPECT_THAT(write(), IsTaken(false));
  EXPECT_EQ(kept.use_count(), 2);
  store_->Leave(upload, stream);
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_THAT(write(), IsTaken(true)) << "it is ignored";
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_THAT(upload->Missing(), ElementsAre(ByteRange{0, kSize}));
  memory_->Hold(false);
}

// The client of a half-closed stream is told of the failure.
TEST_F(PassedUploadTest, AFailedUploadIsFollowedByItsEnd) {
  const std::shared_ptr<Upload> upload = Begin()->upload;
  const auto end = EndOf(upload);
  EXPECT_FALSE(upload->HasAll());
  memory_->FailNext("Write", absl::FailedPreconditionError("lost"));
  ASSERT_THAT(WriteAll(upload, "x", 0, 1), IsOk());
  EXPECT_THAT(end->Wait(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_TRUE(upload->HasAll());
}

// A failure may come before Begin returns, or after that.
TEST_F(PassedUploadTest, AnUploadThatFailsAtOnceIsGone) {
  for (int i = 0; i < 100; ++i) {
    memory_->FailNext("Allocate", absl::InternalError("bad"));
    auto begun = Begin();
    if (begun.ok()) {
      EXPECT_THAT(EndOf(begun->upload)->Wait(), StatusIs(absl::StatusCode::kAborted));
    } else {
      EXPECT_THAT(begun, StatusIs(absl::StatusCode::kAborted));
    }
    begun = absl::CancelledError();  // The next one needs the window of this one.
    ASSERT_TRUE(Eventually([&] { return store_->load().uploads == 0; })) << i;
    ASSERT_TRUE(Eventually([&] { return store_->used_bytes() == 0; })) << i;
  }
}

TEST_F(PassedUploadTest, ALostTensorIsUploadedAgainWithItsHash) {
  const std::string text = RandomBytes(kSize);
  for (int i = 0; i < 2; ++i) {
    // There is room for one window.
    ASSERT_TRUE(Eventually([&] { return store_->used_bytes() < kMiB; }));
    const auto begun = Begin(kSize, {.name = "w"}, HashOf(text));
    ASSERT_THAT(begun, IsOk());
    ASSERT_NE(begun->upload, nullptr) << "complete without its bytes";
    const auto end = EndOf(begun->upload);
    ASSERT_THAT(WriteAll(begun->upload, text, 0, kSize), IsOk());
    ASSERT_THAT(end->Wait(), IsOk());
    if (i == 0) memory_->Lose();
  }
  EXPECT_TRUE(Read(*store_->Describe(session_, "w"), 0, kSize) == text);
}

// A pinned tensor has a copy on the host with --host-copies=pinned: otherwise it is not pinned.
TEST_F(PassedUploadTest, IsPinnedOnlyWithACopyOnTheHost) {
  Start(HostCopies::kPinned, 3 * kRoom);
  const std::string text = RandomBytes(kSize);
  const auto put = [&](const std::string& name, int64_t bytes,
                       const std::optional<Sha256Digest>& digest) {
    const std::shared_ptr<Upload> upload = Begin(bytes, {.name = name}, digest)->upload;
    const auto end = EndOf(upload);
    EXPECT_THAT(WriteAll(upload, text, 0, bytes), IsOk());
    EXPECT_THAT(end->Wait(), IsOk());
  };
  put("filler", kRoom, {});
  put("w", kSize, HashOf(text));
  EXPECT_THAT(PlacesOf(*store_->Describe(session_, "w")), ElementsAre("fake:0"));
  EXPECT_THAT(store_->KeepAlive(session_, "w", {}, true),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(store_->Describe(session_, "w")->pinned);
  EXPECT_THAT(store_->KeepAlive(session_, "w", {}, false), IsOk());
  ASSERT_THAT(store_->Delete(session_, "filler"), IsOk());
  ASSERT_TRUE(Eventually([&] { return store_->used_bytes() < kMiB; })) << "with its upload";
  // Nothing is sent, as the bytes are known, but they are copied.
  const auto again = Begin(kSize, {.name = "pinned", .pinned = true}, HashOf(text));
  ASSERT_THAT(again, IsOk());
  ASSERT_TRUE(again->tensor.has_value());
  EXPECT_TRUE(Eventually([&] { return again->tensor->tensor->bytes->is_on_host(); }));
  EXPECT_THAT(store_->KeepAlive(session_, "w", {}, true), IsOk());
  EXPECT_TRUE(store_->Describe(session_, "w")->pinned);
}

TEST_F(PassedUploadTest, LittleMemoryRefusesResultsToo) {
  Start(HostCopies::kNone, 2 * kSize);
  store_->SetMaxNewBytes(1000);
  EXPECT_THAT(store_->MakeDraft(session_, Spec(1001), {.name = "d"}, /*is_result=*/true),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory: ")));
  EXPECT_THAT(store_->MakeDraft(session_, Spec(1000), {.name = "d"}, /*is_result=*/true), IsOk());
}

// The oldest copy that cannot leave the device does not keep a younger one from that.
TEST_F(PassedUploadTest, WhatCannotBeWrittenBackIsPassedOver) {
  Start(HostCopies::kNone, kRoom + 2 * kMiB, 2 * kSize);
  const std::string text = RandomBytes(kSize);
  const auto put = [&](const std::string& name, int64_t bytes) {
    const std::shared_ptr<Upload> upload = Begin(bytes, {.name = name})->upload;
    const auto end = EndOf(upload);
    EXPECT_THAT(WriteAll(upload, text, 0, bytes), IsOk());
    EXPECT_THAT(end->Wait(), IsOk());
    return store_->Describe(session_, name)->tensor;
  };
  const auto has_no_window = [&] { return store_->used_bytes() < Upload::kWindowBytes; };
  const auto stays = put("stays", kSize);
  ASSERT_TRUE(Eventually(has_no_window));
  const auto leaves = put("leaves", kMiB);
  Told<absl::Status> is_brought;
  copies_->Bring(leaves->bytes, [&](const absl::StatusOr<DeviceCopies::Use>& use) {
    is_brought.Set(use.status());
  });
  ASSERT_THAT(is_brought.Wait(), IsOk());
  // The device's thread has released its uses once it serves another call.
  ASSERT_TRUE(Read(*store_->Describe(session_, "stays"), 0, kMiB) == text.substr(0, kMiB));
  const auto large = put("large", kSize);
  EXPECT_THAT(large->bytes->Devices(), ElementsAre("fake:0"));
  EXPECT_THAT(leaves->bytes->Devices(), IsEmpty());
  EXPECT_THAT(stays->bytes->Devices(), ElementsAre("fake:0"));
  ASSERT_TRUE(Eventually(has_no_window));
  const absl::StatusOr<TensorStore::Beginning> third = Begin(kSize, {.name = "third"});
  if (third.ok()) {
    EXPECT_THAT(EndOf(third->upload)->Wait(), StatusIs(absl::StatusCode::kResourceExhausted));
  } else {
    EXPECT_THAT(third, StatusIs(absl::StatusCode::kResourceExhausted));
  }
}

// What a form of another session takes is free for an upload.
TEST_F(PassedUploadTest, IsNotPassedWhereFormsMakeRoom) {
  constexpr int64_t kEnough = kSize + kMiB;
  Start(HostCopies::kNone, kEnough);
  const TensorStore::SessionUse other = store_->OpenSession("", "b").value();
  ASSERT_THAT(store_->Publish(other, store_->MakeDraft(other, Spec(10), {.name = "f"}).value()),
              IsOk());
  FormKey key;
  key.bytes = 2 * kMiB;
  for (int i = 0; i < 2; ++i) {
    const KeptForms::Use form = store_->TakeForm(store_->Find(other, "f").value(), key);
    if (form.form != nullptr) store_->forms().End(form.form, true);
  }
  ASSERT_LT(session_.account().free(), kSize);
  memory_->Hold(true);
  const std::string text = RandomBytes(kSize);
  const auto begun = Begin();
  ASSERT_THAT(begun, IsOk());
  EXPECT_GT(session_.account().used(), kSize);
  ASSERT_THAT(Write(begun->upload, text, 0), IsTaken(true)) << "in host memory";
  memory_->Hold(false);
}

// Nothing is half pinned: a tensor that would share bytes of a device alone needs them on the host.
TEST_F(PassedUploadTest, KnownBytesArePinnedOnlyWithACopyOnTheHost) {
  Start(HostCopies::kPinned);
  const std::string text = RandomBytes(kSize);
  const std::shared_ptr<Upload> upload = Begin(kSize, {.name = "w"}, HashOf(text))->upload;
  const auto end = EndOf(upload);
  ASSERT_THAT(WriteAll(upload, text, 0, kSize), IsOk());
  ASSERT_THAT(end->Wait(), IsOk());
  for (const std::string name : {"w", "other"}) {
    EXPECT_THAT(Begin(kSize, {.name = name, .pinned = true}, HashOf(text)),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("quota: got 25165824 bytes of host memory, want at most the ")));
  }
  EXPECT_FALSE(store_->Describe(session_, "w")->pinned);
  EXPECT_THAT(store_->Describe(session_, "other"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(store_->load().uploads, 0);
  const auto again = Begin(kSize, {.name = "other"}, HashOf(text));
  ASSERT_THAT(again, IsOk());
  EXPECT_TRUE(again->tensor.has_value());
}

// What could not be handed to the device for lack of memory is neither claimed nor in the window.
TEST_F(PassedUploadTest, BytesAreSentAgainAfterALackOfMemory) {
  const std::string text = RandomBytes(kSize);
  const std::shared_ptr<Upload> upload = Begin()->upload;
  const auto end = EndOf(upload);
  ASSERT_THAT(WriteAll(upload, text, kMiB, kMiB + 1), IsOk());
  ASSERT_TRUE(Eventually([&] { return upload->Missing().size() == 2; }));
  for (int i = 0; i < 20; ++i) {  // More than fit into the window.
    memory_->ThrowNext();
    EXPECT_THROW((void)Write(upload, text.substr(kMiB / 2, kMiB), kMiB / 2), std::bad_alloc);
  }
  ASSERT_THAT(WriteAll(upload, text, 0, kSize), IsOk());
  ASSERT_THAT(end->Wait(), IsOk());
  EXPECT_TRUE(Read(*end->Wait(), 0, kSize) == text);
}

// It is gone, with its window and what was promised to it of the device.
TEST_F(PassedUploadTest, ALackOfMemoryForItsWindowEndsIt) {
  for (int i = 0; i < 3; ++i) {
    memory_->ThrowNext();
    EXPECT_THAT(Begin(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory: ")));
    ASSERT_TRUE(Eventually([&] { return store_->load().uploads == 0; }));
    ASSERT_TRUE(Eventually([&] { return store_->used_bytes() == 0; }));
  }
  const std::string text = RandomBytes(kSize);
  const std::shared_ptr<Upload> upload = Begin()->upload;
  const auto end = EndOf(upload);
  ASSERT_THAT(WriteAll(upload, text, 0, kSize), IsOk());
  EXPECT_THAT(end->Wait(), IsOk());
}

TEST_F(PassedUploadTest, ALackOfMemoryForHashingEndsIt) {
  const std::string text = RandomBytes(kSize);
  const std::shared_ptr<Upload> upload = Begin(kSize, {.name = "w"}, HashOf(text))->upload;
  const auto end = EndOf(upload);
  ASSERT_THAT(WriteAll(upload, text, kMiB, kSize), IsOk());
  ASSERT_TRUE(Eventually([&] { return upload->Missing().size() == 1; }));
  memory_->HoldFrom("Write");
  ASSERT_THAT(WriteAll(upload, text, 0, kMiB), IsOk());
  memory_->ThrowNext();  // The first Read.
  memory_->Hold(false);
  EXPECT_THAT(end->Wait(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory")));
}

// A session's share of the memory of devices is that of the memory of the host.
TEST_F(PassedUploadTest, ASessionHasAShareOfTheDevices) {
  Start(HostCopies::kNone, kRoom, 4 * kSize, 0.5);
  const std::string text = RandomBytes(kSize);
  const auto put = [&](const std::string& name) -> absl::Status {
    const auto begun = Begin(kSize, {.name = name});
    if (!begun.ok()) return begun.status();
    const auto end = EndOf(begun->upload);
    const absl::Status written = WriteAll(begun->upload, text, 0, kSize);
    return written.ok() ? end->Wait().status() : written;
  };
  ASSERT_THAT(put("one"), IsOk());
  ASSERT_TRUE(Eventually([&] { return store_->used_bytes() < kMiB; }));
  ASSERT_THAT(put("two"), IsOk());
  ASSERT_TRUE(Eventually([&] { return store_->used_bytes() < kMiB; }));
  EXPECT_THAT(put("three"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("quota: got 25165824 bytes of device memory, want at most the 0 "
                                 "that are free of the session: 50331648 of 50331648 are used "
                                 "(--tensor-bytes of a session)")));
  ASSERT_TRUE(Eventually([&] { return store_->used_bytes() < kMiB; }));
  session_ = store_->OpenSession("", "b").value();
  EXPECT_THAT(put("one"), IsOk()) << "another session has its own";
}

// What no device can hold is refused before it takes addresses, which all tensors share.
TEST_F(PassedUploadTest, WhatNoDeviceHoldsTakesNoAddresses) {
  const auto is_refused = [](int64_t most) {
    return StatusIs(absl::StatusCode::kResourceExhausted,
                    HasSubstr(absl::StrCat("want at most the ", most, " of device memory")));
  };
  constexpr int64_t kCapacity = 2 * kSize;
  for (const int64_t bytes : {kCapacity + 1, int64_t{1} << 46, int64_t{1} << 58}) {
    EXPECT_THAT(Begin(bytes), is_refused(kCapacity)) << bytes;
    EXPECT_THAT(store_->MakeDraft(session_, Spec(bytes), {}, /*is_result=*/true),
                is_refused(kCapacity))
        << bytes;
  }
  EXPECT_EQ(store_->load().uploads, 0);
  EXPECT_THAT(store_->MakeDraft(session_, Spec(kCapacity), {}, /*is_result=*/true), IsOk());
  Start(HostCopies::kNone, kRoom, kCapacity + 255);
  EXPECT_THAT(Begin(kCapacity + 1), is_refused(kCapacity + 255)) << "a block is larger";
  Start(HostCopies::kNone, kRoom, kCapacity, 0.5);
  EXPECT_THAT(Begin(kSize + 1), is_refused(kSize));
  EXPECT_THAT(store_->MakeDraft(session_, Spec(kSize + 1), {}, /*is_result=*/true),
              is_refused(kSize));
}

// All sessions together take addresses of at most four times the memory of all devices, and one of
// half as many.
TEST_F(PassedUploadTest, AddressesAreLimited) {
  const auto make = [&](const TensorStore::SessionUse& session) {
    return store_->MakeDraft(session, Spec(kSize), {}, /*is_result=*/true);
  };
  std::vector<TensorDraft> drafts;
  for (int i = 0; i < 4; ++i) drafts.push_back(make(session_).value());
  EXPECT_THAT(make(session_),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("quota: got 25165824 bytes of host addresses, want at most the 0 "
                                 "that are free of the session: 100663296 of 100663296 are used "
                                 "(twice the memory of all devices)")));
  const TensorStore::SessionUse second = store_->OpenSession("", "second").value();
  std::vector<TensorDraft> others;
  for (int i = 0; i < 4; ++i) others.push_back(make(second).value());
  const TensorStore::SessionUse other = store_->OpenSession("", "b").value();
  const auto is_refused =
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("quota: got 25165824 bytes of host addresses, want at most the 0 that are "
                         "free of all sessions: 201326592 of 201326592 are used (four times the "
                         "memory of all devices)"));
  EXPECT_THAT(make(other), is_refused);
  EXPECT_EQ(store_->load().uploads, 0);
  drafts.pop_back();
  // Large mappings are given back in the background.
  ASSERT_TRUE(Eventually([&] {
    absl::StatusOr<TensorDraft> draft = make(other);
    if (draft.ok()) others.push_back(*std::move(draft));
    return draft.ok();
  }));
  EXPECT_THAT(Begin(), is_refused) << "its session has room, all together have none";
  EXPECT_EQ(store_->load().uploads, 0);
  others.pop_back();
  // Large mappings are given back in the background.
  ASSERT_TRUE(Eventually([&] { return make(other).ok(); }));
  ASSERT_TRUE(Eventually([&] { return Begin().ok(); }));
  EXPECT_THAT(make(other), is_refused) << "the upload has them";
}

// Waiting for the device is not the client's silence.
TEST_F(PassedUploadTest, ProgressOfTheDeviceRenewsItsLease) {
  const std::string text = RandomBytes(kSize);
  memory_->Hold(true);
  const std::shared_ptr<Upload> upload = Begin(kSize, {.name = "w"}, HashOf(text))->upload;
  const auto is_renewed = [&] {
    clock_.Advance(upload->lease_ns() - 1);
    store_->Expire();
    memory_->Hold(false);
    return Eventually([&] { return upload->expires_ns() == clock_.NowNs() + upload->lease_ns(); });
  };
  ASSERT_TRUE(Eventually([&] { return memory_->held() == 1; }));
  EXPECT_TRUE(is_renewed()) << "it has a block";
  memory_->HoldFrom("Write");
  ASSERT_THAT(WriteAll(upload, text, kMiB, 2 * kMiB), IsOk());
  ASSERT_TRUE(Eventually([&] { return memory_->held() == 1; }));
  EXPECT_TRUE(is_renewed()) << "it has a chunk";
  memory_->HoldFrom("Read");
  ASSERT_THAT(WriteAll(upload, text, 0, kMiB), IsOk());
  ASSERT_TRUE(Eventually([&] { return memory_->calls("Read") == 1; }));
  EXPECT_TRUE(is_renewed()) << "it is hashed";
  const auto end = EndOf(upload);
  ASSERT_THAT(WriteAll(upload, text, 2 * kMiB, kSize), IsOk());
  EXPECT_THAT(end->Wait(), IsOk());
}

TEST_F(PassedUploadTest, IsNotHashedAfterItsEnd) {
  const std::string text = RandomBytes(kSize);
  std::shared_ptr<Upload> upload = Begin(kSize, {.name = "w"}, HashOf(text))->upload;
  ASSERT_THAT(WriteAll(upload, text, kMiB, kSize), IsOk());
  ASSERT_TRUE(Eventually([&] { return upload->Missing().size() == 1; }));
  memory_->HoldFrom("Read");
  ASSERT_THAT(WriteAll(upload, text, 0, kMiB), IsOk());
  ASSERT_TRUE(Eventually([&] { return memory_->calls("Read") == 1; }));
  ASSERT_THAT(store_->DropSession(store_->ListSessions(1).sessions[0].id), IsOk());
  upload = nullptr;
  memory_->Hold(false);
  ASSERT_TRUE(Eventually([&] { return memory_->blocks() == 0; }));
  EXPECT_EQ(memory_->calls("Read"), 1);
}

// The device's threads end an upload for whose progress there is no memory.
TEST_F(PassedUploadTest, ALackOfMemoryForItsProgressEndsIt) {
  Told<bool> is_placed;
  const auto upload = std::make_shared<Upload>(
      RandomId::Make().value(), /*lease_ns=*/1, store_->MakeDraft(session_, Spec(kMiB), {}).value(),
      Account::Charge(), std::nullopt, clock_.NowNs(), "fake:0");
  upload->PassTo(copies_, clock_, [&](const std::shared_ptr<Upload>&) {
    if (is_placed.is_there()) throw std::bad_alloc();
    is_placed.Set(true);
  });
  const auto end = EndOf(upload);
  is_placed.Wait();
  EXPECT_THAT(upload->Write(0, {PieceOf("x")}, clock_.NowNs()), IsTaken(true));
  EXPECT_THAT(end->Wait(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory")));
  EXPECT_EQ(upload->Advance(0), Upload::Progress::kFailed);
}

}  // namespace
}  // namespace gemmd
