// SPDX-License-Identifier: Apache-2.0
//
// Sizes, refusals and their texts.
#include "kernels/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using enum ElementType;
using testing::HasSubstr;

constexpr int64_t kMax = INT64_MAX;

MatrixLayout Tight(ElementType type, int64_t rows, int64_t columns) {
  return TightLayout("x", type, Order::kRowMajor, rows, columns).value();
}

// 4 x 5 x 6.
Problem Small(ElementType a, ElementType b) {
  Problem problem;
  problem.m = 4;
  problem.n = 5;
  problem.k = 6;
  problem.a = Tight(a, 4, 6);
  problem.b = Tight(b, 6, 5);
  problem.accumulation = DefaultAccumulation(a, b).value();
  problem.d = Tight(problem.accumulation, 4, 5);
  return problem;
}

TEST(ProblemTest, TakesEveryPairThatHasAProduct) {
  int taken = 0;
  for (ElementType a : kAllElementTypes) {
    for (ElementType b : kAllElementTypes) {
      if (!DefaultAccumulation(a, b).ok()) continue;
      EXPECT_THAT(Validate(Small(a, b)), IsOk()) << NameOf(a) << " " << NameOf(b);
      ++taken;
    }
  }
  // f64, f32, tf32, f16, bf16 and b1 with themselves, 25 pairs of floats of at most 8 bits, 4 of
  // 8-bit integers and 4 of 4-bit ones, and f16 or bf16 with any of these 9 types, on either side.
  EXPECT_EQ(taken, 6 + 25 + 4 + 4 + 2 * 9 * 2);
}

TEST(ProblemTest, DefaultAccumulations) {
  EXPECT_EQ(DefaultAccumulation(kF64, kF64).value(), kF64);
  EXPECT_EQ(DefaultAccumulation(kF32, kF32).value(), kF32);
  EXPECT_EQ(DefaultAccumulation(kE4m3, kE2m1).value(), kF32);
  EXPECT_EQ(DefaultAccumulation(kS8, kU8).value(), kS32);
  EXPECT_EQ(DefaultAccumulation(kB1, kB1).value(), kS32);
  EXPECT_EQ(DefaultAccumulation(kF16, kS4).value(), kF32);
  EXPECT_EQ(DefaultAccumulation(kU8, kBf16).value(), kF32);
}

TEST(ProblemTest, PairsWithoutAProduct) {
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(DefaultAccumulation(kF32, kS8),
              StatusIs(code, "b.type: got s8, want f32 with a.type f32"));
  EXPECT_THAT(
      DefaultAccumulation(kF16, kBf16),
      StatusIs(code, "b.type: got bf16, want f16 or a type of 4 to 8 bits with a.type f16"));
  EXPECT_THAT(
      DefaultAccumulation(kE4m3, kF32),
      StatusIs(code,
               "b.type: got f32, want f16, bf16, e4m3, e5m2, e3m2, e2m3 or e2m1 with a.type e4m3"));
  EXPECT_THAT(DefaultAccumulation(kS8, kS4),
              StatusIs(code, "b.type: got s4, want f16, bf16, s8 or u8 with a.type s8"));
  EXPECT_THAT(DefaultAccumulation(kU4, kB1),
              StatusIs(code, "b.type: got b1, want f16, bf16, s4 or u4 with a.type u4"));
  EXPECT_THAT(
      DefaultAccumulation(kS32, kS32),
      StatusIs(code, "a.type: got s32, want a type of operands (s32 is for C, D and bias)"));
  EXPECT_THAT(DefaultAccumulation(kS8, kS32), StatusIs(code, HasSubstr("b.type: got s32")));
}

// 4 x 5 x 6 with a sparse A.
Problem SmallSparse(ElementType type) {
  Problem problem = Small(type, type);
  problem.a = TightSparseLayout("a", type, 4, 6).value();
  return problem;
}

struct Refused {
  std::string name;
  std::function<void(Problem&)> spoil;
  std::string message;
  ElementType type = kF32;
};

class RefusalTest : public testing::TestWithParam<Refused> {};

TEST_P(RefusalTest, SaysWhatAndWhy) {
  Problem problem = Small(GetParam().type, GetParam().type);
  ASSERT_THAT(Validate(problem), IsOk());
  GetParam().spoil(problem);
  EXPECT_THAT(Validate(problem), StatusIs(absl::StatusCode::kInvalidArgument, GetParam().message));
}

const std::vector<Refused>& Refusals() {
  static const std::vector<Refused> refusals = {
      {"NegativeM", [](Problem& p) { p.m = -1; }, "m: got -1, want 0 or more"},
      {"NegativeN", [](Problem& p) { p.n = -2; }, "n: got -2, want 0 or more"},
      {"NegativeK", [](Problem& p) { p.k = -3; }, "k: got -3, want 0 or more"},
      {"NegativeBatch", [](Problem& p) { p.batch = -1; }, "batch: got -1, want 0 or more"},
      {"RowsOfA", [](Problem& p) { p.a.rows = 3; }, "a.rows: got 3, want m = 4"},
      {"ColumnsOfA", [](Problem& p) { p.a.columns = 5; }, "a.columns: got 5, want k = 6"},
      {"RowsOfB", [](Problem& p) { p.b.rows = 7; }, "b.rows: got 7, want k = 6"},
      {"ColumnsOfB", [](Problem& p) { p.b.columns = 4; }, "b.columns: got 4, want n = 5"},
      {"RowsOfD", [](Problem& p) { p.d.rows = 5; }, "d.rows: got 5, want m = 4"},
      {"ColumnsOfD", [](Problem& p) { p.d.columns = 6; }, "d.columns: got 6, want n = 5"},
      {"ShortLines", [](Problem& p) { p.a.leading_dimension = 5; },
       "a.leading_dimension: got 5, want at least the row's 6 elements"},
      {"ShortColumns",
       [](Problem& p) {
         p.b.order = Order::kColumnMajor;
         p.b.leading_dimension = 5;
       },
       "b.leading_dimension: got 5, want at least the column's 6 elements"},
      {"NegativeLeadingDimension", [](Problem& p) { p.d.leading_dimension = -5; },
       "d.leading_dimension: got -5, want at least the row's 5 elements"},
      {"HugeLeadingDimension", [](Problem& p) { p.a.leading_dimension = kMax / 8; },
       "a: got leading_dimension 1152921504606846975 of type f32, want sizes in bytes below 2^63"},
      {"NegativeStride", [](Problem& p) { p.b.batch_stride_bytes = -4; },
       "b.batch_stride: got -4 bytes, want 0 or more"},
      {"OddStride", [](Problem& p) { p.b.batch_stride_bytes = 6; },
       "b.batch_stride: got 6 bytes, want a multiple of 4"},
      {"HugeStride",
       [](Problem& p) {
         p.batch = 3;
         p.a.batch_stride_bytes = kMax - 3;
       },
       "a: got 3 matrices of 4x6 elements of type f32, want sizes in bytes below 2^63"},
      {"OverlappingD",
       [](Problem& p) {
         p.batch = 2;
         p.d.batch_stride_bytes = 76;
       },
       "d.batch_stride: got 76 bytes, want at least one matrix = 80"},
      {"TypeOfA", [](Problem& p) { p.a.type = kS32; },
       "a.type: got s32, want a type of operands (s32 is for C, D and bias)"},
      {"TypeOfD", [](Problem& p) { p.d.type = kB1; }, "d.type: got b1, want any other type"},
      {"TypeOfC",
       [](Problem& p) {
         p.beta = 1;
         p.c = Tight(kB1, 4, 5);
       },
       "c.type: got b1, want any other type"},
      {"RowsOfC",
       [](Problem& p) {
         p.beta = 1;
         p.c = Tight(kF32, 5, 5);
       },
       "c.rows: got 5, want m = 4"},
      {"TypeOfBias",
       [](Problem& p) {
         p.bias_axis = BiasAxis::kRows;
         p.bias_type = kB1;
       },
       "bias.type: got b1, want any other type"},
      {"AccumulationOfF32", [](Problem& p) { p.accumulation = kF16; },
       "accumulation_type: got f16, want f32 or f64 for f32 operands"},
      {"AccumulationOfF16", [](Problem& p) { p.accumulation = kF64; },
       "accumulation_type: got f64, want f16 or f32 for f16 operands", kF16},
      {"AccumulationOfS8", [](Problem& p) { p.accumulation = kF32; },
       "accumulation_type: got f32, want s32 for s8 operands", kS8},
      {"Xor", [](Problem& p) { p.bit_operation = BitOperation::kXor; },
       "bit_operation: got xor, want and for operands of type f32"},
      {"ScaleOfA", [](Problem& p) { p.a_scale = ScaleKind::kTensor; },
       "a.scale: got values for operands of type f32, want none (only e4m3, e5m2, s8 and u8 are "
       "scaled)"},
      {"ScaleOfB", [](Problem& p) { p.b_scale = ScaleKind::kVector; },
       "b.scale: got values for operands of type e2m1, want none (only e4m3, e5m2, s8 and u8 are "
       "scaled)",
       kE2m1},
      {"TooManyOperations",
       [](Problem& p) {
         p.batch = int64_t{1} << 60;
         p.a.batch_stride_bytes = p.b.batch_stride_bytes = 0;
         p.d = Tight(kS4, 4, 5);
         p.d.batch_stride_bytes = 4;
         p.d.rows = p.m = 1;
         p.a.rows = 1;
       },
       "m, n, k: got 1x5x6 and batch 1152921504606846976, want 2*m*n*k*batch below 2^63"},
  };
  return refusals;
}

INSTANTIATE_TEST_SUITE_P(All, RefusalTest, testing::ValuesIn(Refusals()),
                         [](const testing::TestParamInfo<Refused>& refused) {
                           return refused.param.name;
                         });

class SparseRefusalTest : public testing::TestWithParam<Refused> {};

TEST_P(SparseRefusalTest, SaysWhatAndWhy) {
  Problem problem = SmallSparse(GetParam().type);
  problem.batch = 2;
  problem.beta = 1;
  problem.c = problem.d;
  ASSERT_THAT(Validate(problem), IsOk());
  GetParam().spoil(problem);
  EXPECT_THAT(Validate(problem), StatusIs(absl::StatusCode::kInvalidArgument, GetParam().message));
}

const std::vector<Refused>& SparseRefusals() {
  static const std::vector<Refused> refusals = {
      {"SparseB", [](Problem& p) { p.b.sparsity = Sparsity::k2To4; },
       "b.sparsity: got 2:4, want none (only A may be sparse)"},
      {"SparseC", [](Problem& p) { p.c.sparsity = Sparsity::k2To4; },
       "c.sparsity: got 2:4, want none (only A may be sparse)"},
      {"SparseD", [](Problem& p) { p.d.sparsity = Sparsity::k2To4; },
       "d.sparsity: got 2:4, want none (only A may be sparse)"},
      {"Order",
       [](Problem& p) {
         p.a.order = Order::kColumnMajor;
         p.a.leading_dimension = 4;
       },
       "a.order: got column, want row where sparsity is 2:4"},
      {"LeadingDimension", [](Problem& p) { p.a.leading_dimension = 8; },
       "a.leading_dimension: got 8, want k = 6 where sparsity is 2:4"},
      {"Rows", [](Problem& p) { p.a.rows = 3; }, "a.rows: got 3, want m = 4"},
      {"Stride", [](Problem& p) { p.a.batch_stride_bytes += 4; },
       "a.batch_stride: got 56 bytes, want 0 or one matrix = 52 where sparsity is 2:4"},
      {"TypeWithoutForm", [](Problem& p) { p.a.type = p.b.type = p.accumulation = kF64; },
       "a.sparsity: got 2:4 of type f64, want none (b1, s32 and f64 have no sparse form)"},
      {"HugeBatch",
       [](Problem& p) {
         p.batch = kMax / 40;
         p.b.batch_stride_bytes = 0;
       },
       "a: got 230584300921369395 matrices of 4x6 elements of type f32, want sizes in bytes below "
       "2^63"},
  };
  return refusals;
}

INSTANTIATE_TEST_SUITE_P(All, SparseRefusalTest, testing::ValuesIn(SparseRefusals()),
                         [](const testing::TestParamInfo<Refused>& refused) {
                           return refused.param.name;
                         });

TEST(ProblemTest, SparseCountsAndWords) {
  Problem problem = SmallSparse(kBf16);
  EXPECT_THAT(Validate(problem), IsOk());
  const int64_t a_bytes = 4 * (4 * 2 + 1);  // Two groups of 4 in k = 6: 4 kept, 8 bits of indices.
  EXPECT_EQ(BytesOf("a", problem.a, 1)->least, a_bytes);
  EXPECT_EQ(BytesOf("a", problem.a, 3)->least, 3 * a_bytes);
  EXPECT_EQ(BytesOf("a", problem.a, 3)->full, 3 * a_bytes);
  EXPECT_EQ(BytesOf("a", problem.a, 0)->full, 0);
  EXPECT_EQ(BytesRead(problem), a_bytes + 2 * 6 * 5);
  EXPECT_EQ(Operations(problem), 2 * 4 * 5 * 6);
  EXPECT_EQ(Describe(problem), "4x5x6 f32 <- bf16 2:4, bf16 row");
  problem.batch = 3;
  problem.a.batch_stride_bytes = 0;  // One A for all.
  EXPECT_THAT(Validate(problem), IsOk());
  EXPECT_EQ(BytesRead(problem), a_bytes + 3 * 2 * 6 * 5);
}

// D transposed is B transposed times A transposed: the roles of A and B, and of rows and columns,
// are exchanged; bytes stay in place.
TEST(ProblemTest, Transposed) {
  Problem problem;
  problem.m = 3;
  problem.n = 5;
  problem.k = 7;
  problem.a = TightLayout("a", ElementType::kBf16, Order::kRowMajor, 3, 7).value();
  problem.b = TightLayout("b", ElementType::kF16, Order::kColumnMajor, 7, 5).value();
  problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, 3, 5).value();
  problem.bias_axis = BiasAxis::kColumns;
  problem.a_scale = ScaleKind::kTensor;
  problem.b_scale = ScaleKind::kVector;
  const Problem transposed = Transposed(problem);
  EXPECT_EQ(transposed.m, 5);
  EXPECT_EQ(transposed.n, 3);
  EXPECT_EQ(transposed.a, TightLayout("a", ElementType::kF16, Order::kRowMajor, 5, 7).value());
  EXPECT_EQ(transposed.b, TightLayout("b", ElementType::kBf16, Order::kColumnMajor, 7, 3).value());
  EXPECT_EQ(transposed.d, TightLayout("d", ElementType::kF32, Order::kColumnMajor, 5, 3).value());
  EXPECT_EQ(transposed.bias_axis, BiasAxis::kRows);
  EXPECT_EQ(transposed.a_scale, ScaleKind::kVector);
  EXPECT_EQ(transposed.b_scale, ScaleKind::kTensor);
  EXPECT_EQ(Transposed(transposed), problem);
}

TEST(ProblemTest, HugeBiasOfAnEmptyProduct) {
  Problem problem = Small(kF32, kF32);
  problem.m = problem.a.rows = problem.d.rows = kMax / 2;
  problem.n = problem.b.columns = problem.d.columns = 0;
  problem.k = problem.a.columns = problem.b.rows = 0;
  EXPECT_THAT(Validate(problem), IsOk());
  problem.bias_axis = BiasAxis::kRows;
  EXPECT_THAT(Validate(problem), StatusIs(absl::StatusCode::kInvalidArgument,
                                          "bias: got 4611686018427387903 elements of type f32, "
                                          "want sizes in bytes below 2^63"));
}

TEST(ProblemTest, WhatMattersNotIsNotLookedAt) {
  Problem problem = Small(kF32, kF32);
  problem.c = Tight(kB1, 1, 1);
  problem.bias_type = kB1;
  EXPECT_THAT(Validate(problem), IsOk());
}

struct Accumulations {
  ElementType operand;
  std::vector<ElementType> taken;
};

const std::vector<Accumulations>& AllAccumulations() {
  static const std::vector<Accumulations> all = {
      {kF64, {kF64}},        {kF32, {kF32, kF64}},  {kTf32, {kF32}},       {kF16, {kF16, kF32}},
      {kBf16, {kF32}},       {kE4m3, {kF16, kF32}}, {kE5m2, {kF16, kF32}}, {kE3m2, {kF16, kF32}},
      {kE2m3, {kF16, kF32}}, {kE2m1, {kF16, kF32}}, {kS8, {kS32}},         {kU8, {kS32}},
      {kS4, {kS32}},         {kU4, {kS32}},         {kB1, {kS32}}};
  return all;
}

// Every type of operands with every type of sums.
TEST(ProblemTest, TakesTheseAccumulationsAndNoOther) {
  EXPECT_EQ(AllAccumulations().size() + 1, kAllElementTypes.size());  // Not s32.
  for (const Accumulations& row : AllAccumulations()) {
    for (const ElementType accumulation : kAllElementTypes) {
      SCOPED_TRACE(testing::Message() << NameOf(accumulation) << " of " << NameOf(row.operand));
      Problem problem = Small(row.operand, row.operand);
      problem.accumulation = accumulation;
      if (std::count(row.taken.begin(), row.taken.end(), accumulation) > 0) {
        EXPECT_THAT(Validate(problem), IsOk());
      } else {
        EXPECT_THAT(Validate(problem), StatusIs(absl::StatusCode::kInvalidArgument,
                                                HasSubstr("accumulation_type: got ")));
      }
    }
  }
}

// Every type of operands, as A and as B.
TEST(ProblemTest, ScalesAreForTypesOfEightBits) {
  for (const Accumulations& row : AllAccumulations()) {
    SCOPED_TRACE(NameOf(row.operand));
    for (const bool is_a : {true, false}) {
      Problem problem = Small(row.operand, row.operand);
      (is_a ? problem.a_scale : problem.b_scale) = ScaleKind::kTensor;
      const std::vector<ElementType> scaled = {kE4m3, kE5m2, kS8, kU8};
      if (std::count(scaled.begin(), scaled.end(), row.operand) > 0) {
        EXPECT_THAT(Validate(problem), IsOk());
      } else {
        EXPECT_THAT(Validate(problem),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr(is_a ? "a.scale: got " : "b.scale: got ")));
      }
    }
  }
}

TEST(ProblemTest, IsOfOneOfFewClasses) {
  const auto class_of = [](int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
    Problem problem;
    problem.m = m;
    problem.n = n;
    problem.k = k;
    problem.batch = batch;
    problem.d = Tight(kF32, m, n);
    return ShapeClassOf(problem);
  };
  EXPECT_EQ(class_of(0, 0, 0), ShapeClass::kNoProduct);
  EXPECT_EQ(class_of(100, 100, 0), ShapeClass::kNoProduct);
  EXPECT_EQ(class_of(1, 1, 1), ShapeClass::kSmall);
  EXPECT_EQ(class_of(1, 1, 1, 1000), ShapeClass::kBatch);
  EXPECT_EQ(class_of(16, 4096, 4096), ShapeClass::kSkinny);
  EXPECT_EQ(class_of(4096, 1, 4096), ShapeClass::kSkinny);
  EXPECT_EQ(class_of(4096, 17, 4096, 3), ShapeClass::kLarge);
  EXPECT_EQ(NameOf(ShapeClass::kSkinny), "skinny");
}

TEST(ProblemTest, CountsAndWords) {
  Problem problem = Small(kBf16, kBf16);
  EXPECT_EQ(Operations(problem), 2 * 4 * 5 * 6);
  EXPECT_EQ(BytesRead(problem), 2 * (4 * 6 + 6 * 5));
  EXPECT_EQ(BytesWritten(problem), 4 * 4 * 5);
  EXPECT_EQ(Describe(problem), "4x5x6 f32 <- bf16 row, bf16 row");
  problem.b = TightLayout("b", kBf16, Order::kColumnMajor, 6, 5).value();
  problem.batch = 3;
  problem.beta = 1;
  problem.c = Tight(kF32, 4, 5);
  problem.c.batch_stride_bytes = 0;
  problem.bias_axis = BiasAxis::kColumns;
  problem.bias_type = kE2m1;
  EXPECT_EQ(BytesRead(problem), 3 * 2 * (4 * 6 + 6 * 5) + 4 * 4 * 5 + 3);
  EXPECT_EQ(BytesWritten(problem), 3 * 4 * 4 * 5);
  EXPECT_EQ(Describe(problem), "4x5x6 f32 <- bf16 row, bf16 column, batch 3");
  problem.alpha = 0;
  EXPECT_EQ(BytesRead(problem), 4 * 4 * 5 + 3);
}

}  // namespace
}  // namespace gemmd
