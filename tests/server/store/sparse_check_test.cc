// SPDX-License-Identifier: Apache-2.0
//
// Whatever a caller uploads as a sparse tensor, products only find valid indices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/store/tensor_store.h"
#include "server/store/upload.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

TensorSpec SparseSpec(int64_t rows, int64_t columns, int64_t matrices = 1) {
  const MatrixLayout layout = TightSparseLayout("spec", ElementType::kU8, rows, columns).value();
  return MakeTensorSpec(layout, matrices, {}).value();
}

// Indices 0 and 1 in each group.
std::string GoodBytes(const TensorSpec& spec) {
  return std::string(static_cast<size_t>(spec.bytes), '\x44');
}

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Checks `bytes` at a time.
absl::Status CheckInSteps(const TensorSpec& spec, const std::string& text, int64_t step) {
  SparseCheck check(spec, BytesOf(text).data());
  for (int i = 0; i < 1000; ++i) {
    const absl::StatusOr<bool> is_over = check.Advance(step);
    if (!is_over.ok() || *is_over) return is_over.status();
  }
  return absl::InternalError("it does not end");
}

TEST(SparseCheckTest, FindsTheOneBadGroupWhateverTheSteps) {
  constexpr int64_t kRows = 5;
  const TensorSpec spec = SparseSpec(kRows, 16, /*matrices=*/3);
  constexpr int64_t kIndexBytes = 2;  // The four groups of a row.
  const int64_t matrix_bytes = spec.bytes / 3;
  for (const int64_t step : {1, 10, 33, 1000}) {
    EXPECT_THAT(CheckInSteps(spec, GoodBytes(spec), step), IsOk());
    for (int64_t matrix = 0; matrix < 3; ++matrix) {
      for (int64_t row = 0; row < kRows; ++row) {
        std::string text = GoodBytes(spec);
        const int64_t end = (matrix + 1) * matrix_bytes - (kRows - 1 - row) * kIndexBytes;
        text[static_cast<size_t>(end - 1)] = '\xa4';  // 2 and 2 in the last group.
        const std::string place = absl::StrCat("chunk: matrix ", matrix, ": row ", row);
        EXPECT_THAT(CheckInSteps(spec, text, step),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr(absl::StrCat(place, ", group 3: got indices 2, 2"))));
      }
    }
  }
}

TEST(SparseCheckTest, EmptyTensorsHaveNoIndices) {
  for (const TensorSpec& spec : {SparseSpec(0, 8), SparseSpec(8, 0), SparseSpec(4, 8, 0)}) {
    EXPECT_THAT(CheckInSteps(spec, GoodBytes(spec), 1), IsOk());
  }
}

class SparseUploadTest : public testing::Test {
 protected:
  absl::StatusOr<TensorState> Put(const TensorSpec& spec, const std::string& text) {
    const TensorStore::Beginning begun =
        store_.Begin(session_, spec, {}, Sha256::Of(BytesOf(text))).value();
    if (begun.tensor) return *begun.tensor;
    std::promise<absl::StatusOr<TensorState>> result;
    begun.upload->Listen(store_.Attach(begun.upload).value(),
                         [&result](const auto& told) { result.set_value(told); });
    EXPECT_THAT(store_.Write(session_, begun.upload, 0, {BytesOf(text)}), IsOk());
    return Awaited(result.get_future(), "the end of the upload");
  }

  FakeClock clock_;
  TensorStore store_{{}, clock_};
  TensorStore::SessionUse session_ = store_.OpenSession("", "a").value();
};

TEST_F(SparseUploadTest, BadIndicesLeaveNothing) {
  const TensorSpec spec = SparseSpec(2, 8, /*matrices=*/3);
  std::string text = GoodBytes(spec);
  EXPECT_THAT(Put(spec, text), IsOk());
  text.back() = '\xa4';
  EXPECT_THAT(Put(spec, text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 1")));
  EXPECT_EQ(store_.load().tensors, 1);
  EXPECT_EQ(store_.load().uploads, 0);
  EXPECT_THAT(Put(spec, text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 1")))
      << "nor are its bytes known from then on";
}

// A 4 x 16 tensor has indices where a 2 x 32 tensor has the last values of its rows.
TEST_F(SparseUploadTest, OtherShapesShareNothing) {
  const TensorSpec spec = SparseSpec(4, 16);
  const TensorSpec other = SparseSpec(2, 32);
  ASSERT_EQ(spec.bytes, other.bytes);
  const std::string text = GoodBytes(spec);
  ASSERT_THAT(Put(spec, text), IsOk());
  EXPECT_TRUE(store_.Begin(session_, spec, {}, Sha256::Of(BytesOf(text)))->tensor);
  EXPECT_TRUE(store_.Begin(session_, other, {}, Sha256::Of(BytesOf(text)))->upload != nullptr);
}

}  // namespace
}  // namespace gemmd
