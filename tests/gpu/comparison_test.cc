// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/comparison.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/gpu/product.h"

namespace gemmd {
namespace {

class ComparisonTest : public testing::Test {
 protected:
  // Two matrices of 3 x 5 with gaps; the elements of both outputs are 1.
  void Fill(ElementType type, Order order = Order::kRowMajor) {
    problem_.m = 3;
    problem_.n = 5;
    problem_.k = 1;
    problem_.batch = 2;
    problem_.d = SpacedLayout(type, order, 3, 5, Spacing::kOdd);
    got_ = PoisonedOutput(problem_);
    const MatrixLayout tight = TightLayout("d", type, order, 3, 5).value();
    std::vector<std::byte> ones(static_cast<size_t>(2 * tight.batch_stride_bytes));
    for (int64_t line = 0; line < 2 * tight.lines(); ++line) {
      for (int64_t i = 0; i < tight.line_length(); ++i) {
        StoreBits(type, ones.data() + line * tight.line_stride_bytes(), i, Encode(type, 1));
      }
    }
    CopyElements(tight, ones.data(), problem_.d, got_.data() + kGuardBytes, 2);
    want_ = got_;
  }

  std::byte* Line(std::vector<std::byte>& output, int64_t matrix, int64_t line) const {
    return output.data() + kGuardBytes + matrix * problem_.d.batch_stride_bytes +
           line * problem_.d.line_stride_bytes();
  }
  void Set(std::vector<std::byte>& output, int64_t matrix, int64_t line, int64_t i, uint64_t bits) {
    StoreBits(problem_.d.type, Line(output, matrix, line), i, bits);
  }

  Comparison Run() const { return Compare(problem_, got_, want_); }

  Problem problem_;
  std::vector<std::byte> got_;
  std::vector<std::byte> want_;
};

TEST_F(ComparisonTest, EqualOutputsAreEqual) {
  for (const ElementType type : kAllElementTypes) {
    Fill(type);
    const Comparison comparison = Run();
    EXPECT_EQ(comparison.elements, 30);
    EXPECT_EQ(comparison.mismatches, 0);
    EXPECT_FALSE(comparison.first);
  }
}

TEST_F(ComparisonTest, FindsOneWrongBitOfEveryElement) {
  for (const ElementType type : kAllElementTypes) {
    for (const Order order : {Order::kRowMajor, Order::kColumnMajor}) {
      Fill(type, order);
      const uint64_t wrong = Encode(type, 1) ^ (type == ElementType::kTf32 ? 1 << 13 : 1);
      for (int64_t matrix = 0; matrix < 2; ++matrix) {
        for (int64_t line = 0; line < problem_.d.lines(); ++line) {
          for (int64_t i = 0; i < problem_.d.line_length(); ++i) {
            got_ = want_;
            Set(got_, matrix, line, i, wrong);
            const Comparison comparison = Run();
            EXPECT_EQ(comparison.mismatches, 1);
            ASSERT_TRUE(comparison.first) << std::string(NameOf(type));
            EXPECT_EQ(comparison.first->matrix, matrix);
            EXPECT_EQ(comparison.first->row, order == Order::kRowMajor ? line : i);
            EXPECT_EQ(comparison.first->column, order == Order::kRowMajor ? i : line);
            EXPECT_EQ(comparison.first->got, wrong);
            EXPECT_EQ(comparison.first->want, Encode(type, 1));
          }
        }
      }
    }
  }
}

TEST_F(ComparisonTest, FindsEveryByteAround) {
  Fill(ElementType::kF16);
  for (size_t i = 0; i < got_.size(); ++i) {
    got_ = want_;
    got_[i] ^= std::byte{1};
    EXPECT_EQ(Run().mismatches, 1) << i;
  }
}

TEST_F(ComparisonTest, SaysWhichByteOfAGuard) {
  Fill(ElementType::kF16);
  got_[kGuardBytes - 2] = std::byte{0};
  const Comparison comparison = Run();
  ASSERT_TRUE(comparison.first);
  EXPECT_EQ(Describe(*comparison.first, ElementType::kF16),
            "byte -2 of D, which is no element's: got 0x00, want 0xff");
}

// Bits after the last element of a packed line.
TEST_F(ComparisonTest, FindsBitsBehindALine) {
  Fill(ElementType::kE2m1);
  Line(got_, 1, 2)[2] |= std::byte{0x10};  // Where a sixth element would be.
  EXPECT_EQ(Run().mismatches, 1);
}

TEST_F(ComparisonTest, TakesNoNanForAnother) {
  Fill(ElementType::kF32);
  problem_.alpha = 2;
  Set(got_, 0, 0, 0, 0x7fff'ffff);
  Set(want_, 0, 0, 0, 0xffc0'0000);
  EXPECT_EQ(Run().mismatches, 1);
}

}  // namespace
}  // namespace gemmd
