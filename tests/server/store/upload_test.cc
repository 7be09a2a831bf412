// SPDX-License-Identifier: Apache-2.0
//
// Bytes that arrive in any order, twice or from many threads become the tensor, and its hash is
// that of all bytes in order.
#include "server/store/upload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Progress = Upload::Progress;

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string RandomText(size_t bytes) {
  std::mt19937 random(20240611);
  std::string text;
  while (text.size() < bytes) text += static_cast<char>(random());
  return text;
}

class UploadTest : public testing::Test {
 protected:
  std::unique_ptr<Upload> Make(int64_t bytes, const std::optional<Sha256Digest>& digest = {}) {
    const MatrixLayout layout =
        TightLayout("spec", ElementType::kU8, Order::kRowMajor, 1, bytes).value();
    TensorDraft draft;
    draft.spec = MakeTensorSpec(layout, 1, {}).value();
    draft.bytes = TensorBytes::Allocate(bytes, *account_, background_).value();
    tensor_ = draft.bytes;
    return std::make_unique<Upload>(RandomId::Make().value(), 1000, std::move(draft),
                                    account_->Take(0).value(), digest, 0);
  }

  absl::Status Write(Upload& upload, int64_t offset, const std::string& text) {
    return upload.Write(offset, {Bytes(text)}, 0).status();
  }

  std::string Text() const {
    return std::string(reinterpret_cast<const char*>(tensor_->host()),
                       static_cast<size_t>(tensor_->bytes()));
  }

  const std::shared_ptr<Account> account_ =
      std::make_shared<Account>("all", "--all", int64_t{1} << 30, nullptr);
  const std::shared_ptr<ThreadPool> background_ = std::make_shared<ThreadPool>("background", 1);
  std::shared_ptr<TensorBytes> tensor_;
};

TEST(Sha256Test, IsThatOfTheStandard) {
  const Sha256Digest abc = Sha256::Of(Bytes("abc"));
  EXPECT_THAT(std::vector<int>(abc.begin(), abc.begin() + 4), ElementsAre(0xba, 0x78, 0x16, 0xbf));
  EXPECT_THAT(std::vector<int>(abc.end() - 4, abc.end()), ElementsAre(0xf2, 0x00, 0x15, 0xad));
}

TEST_F(UploadTest, TakesPiecesInAnyOrderAndTheFirstOfTwo) {
  const auto upload = Make(6);
  EXPECT_THAT(upload->Missing(), ElementsAre(ByteRange{0, 6}));
  EXPECT_THAT(Write(*upload, 4, "ef"), IsOk());
  EXPECT_EQ(upload->Advance(100), Progress::kWaiting);
  EXPECT_THAT(upload->Write(1, {Bytes("b"), Bytes(""), Bytes("cdXX")}, 0), IsOk());
  EXPECT_THAT(upload->Missing(), ElementsAre(ByteRange{0, 1}));
  EXPECT_THAT(Write(*upload, 0, "aY"), IsOk());
  EXPECT_THAT(upload->Missing(), IsEmpty());
  EXPECT_EQ(upload->Advance(0), Progress::kComplete) << "nothing is to be hashed";
  EXPECT_EQ(upload->Advance(0), Progress::kWaiting) << "one caller is told";
  EXPECT_EQ(Text(), "abcdef");
}

TEST_F(UploadTest, HashesNoMoreThanItIsAskedTo) {
  const std::string text = RandomText(10'000);
  const auto upload = Make(10'000, Sha256::Of(Bytes(text)));
  ASSERT_THAT(Write(*upload, 5000, text.substr(5000)), IsOk());
  EXPECT_EQ(upload->Advance(4000), Progress::kWaiting);
  ASSERT_THAT(Write(*upload, 0, text.substr(0, 5000)), IsOk());
  EXPECT_EQ(upload->Advance(4000), Progress::kBehind);
  EXPECT_EQ(upload->Advance(4000), Progress::kBehind);
  EXPECT_EQ(upload->Advance(4000), Progress::kComplete);
}

TEST_F(UploadTest, TellsAnotherHash) {
  const auto upload = Make(3, Sha256::Of(Bytes("abd")));
  ASSERT_THAT(Write(*upload, 0, "abc"), IsOk());
  EXPECT_EQ(upload->Advance(100), Progress::kMismatch);
}

TEST_F(UploadTest, WritesNothingOutside) {
  const auto upload = Make(4);
  for (const int64_t offset : {int64_t{-1}, int64_t{3}, int64_t{5}, INT64_MAX, INT64_MIN}) {
    EXPECT_THAT(Write(*upload, offset, "xy"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of a tensor of 4")));
  }
  EXPECT_THAT(Write(*upload, 4, ""), IsOk());
  EXPECT_THAT(upload->Missing(), ElementsAre(ByteRange{0, 4}));
}

TEST_F(UploadTest, RemembersABoundedNumberOfGaps) {
  const auto upload = Make(1 << 20);
  const auto most = static_cast<int64_t>(Upload::kMaxRanges);
  for (int64_t i = 0; i < most; ++i) ASSERT_THAT(Write(*upload, 2 * i, "x"), IsOk());
  EXPECT_THAT(Write(*upload, 2 * most, "x"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than 1023 gaps")));
  EXPECT_THAT(Write(*upload, 1, "x"), IsOk()) << "it closes a gap";
  EXPECT_THAT(Write(*upload, 2 * most, "x"), IsOk());
  EXPECT_EQ(upload->Missing().size(), Upload::kMaxRanges);
}

TEST_F(UploadTest, ManyThreadsBringOneTensor) {
  constexpr int64_t kBytes = 1 << 20;
  constexpr int64_t kChunk = 4096;
  const std::string text = RandomText(kBytes);
  const auto upload = Make(kBytes, Sha256::Of(Bytes(text)));
  std::atomic<int> complete = 0;
  std::atomic<int> behind = 0;
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      // Each writes every chunk, starting with another one.
      for (int64_t i = 0; i < kBytes / kChunk; ++i) {
        const int64_t offset = (i * kChunk + thread * kBytes / 4) % kBytes;
        EXPECT_THAT(Write(*upload, offset, text.substr(static_cast<size_t>(offset), kChunk)),
                    IsOk());
        const Progress progress = upload->Advance(2 * kChunk);
        if (progress == Progress::kComplete) ++complete;
        if (progress == Progress::kBehind) ++behind;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Progress last = Progress::kBehind; last == Progress::kBehind;) {
    last = upload->Advance(kChunk);
    if (last == Progress::kComplete) ++complete;
  }
  EXPECT_EQ(complete, 1);
  EXPECT_EQ(Text(), text);
}

TEST_F(UploadTest, TellsThoseWhoServeItOnce) {
  const auto upload = Make(1);
  int told = 0;
  const auto listen = [&told](const absl::StatusOr<TensorState>& result) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kNotFound));
    ++told;
  };
  upload->Listen(upload->Attach(0).value(), listen);
  const Upload::StreamId left = upload->Attach(0).value();
  upload->Listen(left, listen);
  upload->Detach(left, 0);
  const Upload::StreamId late = upload->Attach(0).value();
  EXPECT_TRUE(upload->has_streams());
  upload->End(absl::NotFoundError("gone"));
  EXPECT_EQ(told, 1);
  upload->End(absl::InternalError("later"));
  EXPECT_EQ(told, 1);
  upload->Listen(late, listen);
  EXPECT_EQ(told, 2) << "a later listener is told at once";
  upload->Listen(upload->Attach(0).value(), listen);
  EXPECT_EQ(told, 3) << "a later stream is told at once";
}

// A stream takes its place before it listens: those that come at the same time are counted, too.
TEST_F(UploadTest, HasRoomForSoManyStreams) {
  const auto upload = Make(1);
  Upload::StreamId last = 0;
  for (size_t i = 0; i < Upload::kMaxStreams; ++i) {
    const absl::StatusOr<Upload::StreamId> stream = upload->Attach(0);
    ASSERT_THAT(stream, IsOk()) << i;
    last = *stream;
  }
  const auto is_full = StatusIs(absl::StatusCode::kResourceExhausted,
                                testing::HasSubstr("the upload has 64 streams, want at most 64"));
  EXPECT_THAT(upload->Attach(0), is_full);
  upload->Listen(last, [](const absl::StatusOr<TensorState>&) {});
  EXPECT_THAT(upload->Attach(0), is_full) << "the same stream";
  upload->Detach(last, 0);
  EXPECT_THAT(upload->Attach(0), IsOk());
}

TEST_F(UploadTest, ExpiresAfterTheLastSignOfLife) {
  const auto upload = Make(10);
  EXPECT_FALSE(upload->HasExpired(999));
  EXPECT_TRUE(upload->HasExpired(1000));
  ASSERT_THAT(upload->Write(0, {Bytes("x")}, 500), IsOk());
  EXPECT_FALSE(upload->HasExpired(1499));
  EXPECT_TRUE(upload->HasExpired(1500));
}

}  // namespace
}  // namespace gemmd
