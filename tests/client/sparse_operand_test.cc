// SPDX-License-Identifier: Apache-2.0
//
// Packing and unpacking of sparse operands; the bytes are those of tests/kernels/sparse24_test.cc.
#include "client/sparse_operand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <string>
#include <vector>

#include "client/matrix/random_matrix.h"
#include "client/operand_size.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// A row-major matrix of elements given by their patterns.
class Dense {
 public:
  Dense(v1::ElementType type, int64_t rows, int64_t columns)
      : type_(type),
        rows_(rows),
        columns_(columns),
        line_bytes_(*PackedLineBytes(type, columns)),
        data_(static_cast<size_t>(rows * line_bytes_), 0) {}

  Dense& Set(int64_t row, int64_t column, uint64_t pattern) {
    StoreElement(type_, pattern, column, data_.data() + row * line_bytes_);
    return *this;
  }
  MatrixView view() const {
    return PackedView(type_, std::as_bytes(std::span(data_)), rows_, columns_);
  }
  const std::string& data() const { return data_; }

 private:
  v1::ElementType type_;
  int64_t rows_;
  int64_t columns_;
  int64_t line_bytes_;
  std::string data_;
};

std::string Bytes(std::initializer_list<int> values) {
  std::string bytes;
  for (int value : values) bytes.push_back(static_cast<char>(value));
  return bytes;
}

std::string Compressed(const MatrixView& view, int64_t batch = 1) {
  const auto operand = CompressOperand("a", view, batch, Pruning::kNone);
  EXPECT_THAT(operand, IsOk());
  return operand.ok() ? operand->data : "";
}

std::string Expanded(v1::ElementType type, const std::string& data, int64_t rows, int64_t columns) {
  v1::Operand operand;
  operand.set_type(type);
  operand.set_sparsity(v1::SPARSITY_2_4);
  operand.set_data(data);
  return ExpandOperand(operand, rows, columns);
}

TEST(SparseOperandTest, BytesOf2To4) {
  Dense dense(v1::ELEMENT_TYPE_S8, 2, 8);
  dense.Set(0, 1, 11).Set(0, 3, 13).Set(0, 4, 14).Set(0, 5, 15).Set(1, 2, 22);
  EXPECT_EQ(Compressed(dense.view()),
            Bytes({11, 13, 14, 15, 0, 22, 0, 0, 0b0100'1101, 0b0100'1000}));
}

TEST(SparseOperandTest, BytesOf4To8) {
  Dense dense(v1::ELEMENT_TYPE_U4, 1, 11);
  dense.Set(0, 3, 0xa).Set(0, 6, 0xb).Set(0, 10, 0xc);
  EXPECT_EQ(Compressed(dense.view()), Bytes({0xa0, 0x0b, 0x00, 0x0c, 0b0100'1101}));
}

TEST(SparseOperandTest, BytesOf1To2) {
  Dense dense(v1::ELEMENT_TYPE_TF32, 1, 5);
  dense.Set(0, 1, 0x3f80'1234).Set(0, 2, 0x0000'1fff).Set(0, 4, 0xbf80'0000);
  EXPECT_EQ(Compressed(dense.view()),
            Bytes({0x34, 0x12, 0x80, 0x3f, 0, 0, 0, 0, 0, 0, 0x80, 0xbf, 0b00'00'00'01}));
}

TEST(SparseOperandTest, BytesOfSixBits) {
  Dense dense(v1::ELEMENT_TYPE_E2M3, 1, 7);
  dense.Set(0, 0, 0x21).Set(0, 2, 0x12).Set(0, 6, 0x3f);
  EXPECT_EQ(Compressed(dense.view()), Bytes({0xa1, 0x04, 0xfc, 0b1000'1000}));
}

// Pruned random matrices of every type survive a round trip.
TEST(SparseOperandTest, EveryTypeComesBack) {
  int types = 0;
  for (int number = 1; number < v1::ElementType_ARRAYSIZE; ++number) {
    const auto type = static_cast<v1::ElementType>(number);
    if (!HasSparseForm(type)) continue;
    ++types;
    for (int64_t columns = 1; columns <= 19; ++columns) {
      SCOPED_TRACE(std::string(ElementTypeName(type)) + " " + std::to_string(columns));
      const std::string data = RandomLines(type, columns, 3, 7);
      const MatrixView view = PackedView(type, std::as_bytes(std::span(data)), 3, columns);
      const auto pruned = CompressOperand("a", view, 1, Pruning::kByMagnitude);
      ASSERT_THAT(pruned, IsOk());
      const std::string dense = Expanded(type, pruned->data, 3, columns);
      const MatrixView again = PackedView(type, std::as_bytes(std::span(dense)), 3, columns);
      const auto kept = CompressOperand("a", again, 1, Pruning::kByMagnitude);
      ASSERT_THAT(kept, IsOk());
      EXPECT_EQ(kept->data, pruned->data);
      EXPECT_EQ(kept->dropped, 0);
      EXPECT_EQ(kept->nonzeros, pruned->nonzeros - pruned->dropped);
    }
  }
  EXPECT_EQ(types, 13);
}

TEST(SparseOperandTest, DropsTheSmallest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  // Groups of two: a clear case, a tie, NaN beside infinity, nothing to drop.
  const std::vector<float> a = {1, -2, 3, -3, infinity, nan, 0, 5};
  const auto operand = CompressOperand("a", View(a, 1, 8), 1, Pruning::kByMagnitude);
  ASSERT_THAT(operand, IsOk());
  EXPECT_EQ(operand->nonzeros, 7);
  EXPECT_EQ(operand->dropped, 3);
  const std::vector<float> want = {0, -2, 3, 0, 0, nan, 0, 5};
  EXPECT_EQ(Expanded(v1::ELEMENT_TYPE_F32, operand->data, 1, 8),
            std::string(reinterpret_cast<const char*>(want.data()), sizeof(float) * want.size()));
}

TEST(SparseOperandTest, DropsWholePairs) {
  Dense dense(v1::ELEMENT_TYPE_S4, 1, 8);
  dense.Set(0, 0, 1).Set(0, 1, 2).Set(0, 2, 4).Set(0, 5, 0x8).Set(0, 6, 1);
  const auto operand = CompressOperand("a", dense.view(), 1, Pruning::kByMagnitude);
  ASSERT_THAT(operand, IsOk());
  EXPECT_EQ(operand->dropped, 3);  // 1 and 2, then 1: sums of magnitudes are 3, 4, 8, 1.
  EXPECT_EQ(operand->data, Bytes({0x04, 0x80, 0b1001}));
}

TEST(SparseOperandTest, ReadsEveryOrder) {
  const std::vector<float> rows = {1, 0, 0, 2, 3, 0};     // 3 x 2
  const std::vector<float> columns = {1, 0, 3, 0, 2, 0};  // The same by columns: 2 x 3 transposed.
  const std::string want = Compressed(View(rows, 3, 2));
  MatrixView transposed = View(columns, 2, 3);
  transposed.transpose = true;
  EXPECT_EQ(Compressed(transposed), want);
  MatrixView by_columns = View(columns, 3, 2);
  by_columns.order = v1::ORDER_COLUMN_MAJOR;
  EXPECT_EQ(Compressed(by_columns), want);
}

TEST(SparseOperandTest, Batches) {
  const std::vector<float> both = {1, 0, 0, 2, 0, 3, 4, 0};
  const std::string want =
      Compressed(View(std::vector<float>(both.begin(), both.begin() + 4), 2, 2)) +
      Compressed(View(std::vector<float>(both.begin() + 4, both.end()), 2, 2));
  EXPECT_EQ(Compressed(View(both, 2, 2), 2), want);
  MatrixView one = View(std::span(both).first(4), 2, 2);
  one.batch_stride = 0;
  EXPECT_EQ(Compressed(one, 2), Compressed(View(std::span(both).first(4), 2, 2)));
  EXPECT_EQ(Compressed(one, 0), "");
}

TEST(SparseOperandTest, NamesTheFirstBadGroup) {
  Dense elements(v1::ELEMENT_TYPE_U8, 2, 12);
  elements.Set(1, 8, 1).Set(1, 9, 1).Set(1, 11, 1);
  EXPECT_THAT(CompressOperand("a", elements.view(), 1, Pruning::kNone),
              StatusIs(kInvalid, "a.data: row 1, group 2: got 3 nonzero elements, want at most 2"));
  Dense pairs(v1::ELEMENT_TYPE_U4, 1, 8);
  pairs.Set(0, 0, 1).Set(0, 3, 1).Set(0, 4, 1).Set(0, 7, 1);
  EXPECT_THAT(CompressOperand("a", pairs.view(), 1, Pruning::kNone),
              StatusIs(kInvalid, "a.data: row 0, group 0: got 4 nonzero pairs, want at most 2"));
  const std::vector<float> batch = {1, 0, 0, 1, 1, 1};
  EXPECT_THAT(CompressOperand("a", View(batch, 1, 2), 3, Pruning::kNone),
              StatusIs(kInvalid,
                       "a.data: matrix 2: row 0, group 0: got 2 nonzero elements, want at most 1"));
  const std::vector<double> doubles = {1, 0};
  EXPECT_THAT(CompressOperand("a", View(doubles, 1, 2), 1, Pruning::kByMagnitude),
              StatusIs(kInvalid,
                       "a.sparsity: got 2:4 of type f64, want none (b1, s32 and f64 have "
                       "no sparse form)"));
}

}  // namespace
}  // namespace gemmd
