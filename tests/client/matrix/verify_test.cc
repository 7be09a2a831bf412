// SPDX-License-Identifier: Apache-2.0
//
// Verification must accept what correct servers compute and refuse everything else, NaN in
// particular.
#include "client/matrix/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "client/sparse_operand.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/client/matrix/verify_case.h"
#include "tests/testing/special_values.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

TEST(VerifyTest, AcceptsAnyOrderOfSummation) {
  for (const v1::ElementType type :
       {v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_TF32, v1::ELEMENT_TYPE_F16, v1::ELEMENT_TYPE_BF16,
        v1::ELEMENT_TYPE_E4M3, v1::ELEMENT_TYPE_E5M2, v1::ELEMENT_TYPE_E3M2, v1::ELEMENT_TYPE_E2M3,
        v1::ELEMENT_TYPE_E2M1}) {
    for (int64_t k : {1, 2, 33, 1000}) {
      const v1::MultiplyRequest request = RequestFor({.type = type, .k = k});
      const auto result = Verify(request, Compute<float>(request, v1::ELEMENT_TYPE_F32));
      ASSERT_THAT(result, IsOk());
      EXPECT_TRUE(result->passed()) << ElementTypeName(type) << " " << k;
      EXPECT_EQ(result->checked, 35);
      EXPECT_LE(result->worst.error, result->worst.bound);
    }
  }
}

// Sums of 8-bit floats on a tensor core, with errors that 13 fraction bits explain over 128 of k,
// over all of k, or not at all.
TEST(VerifyTest, AcceptsShortSumsOfTensorCoresAlone) {
  constexpr int64_t kDepth = 1024;
  const VerifyCase product = {.type = v1::ELEMENT_TYPE_E4M3, .k = kDepth};
  v1::MultiplyRequest request = RequestFor(product);
  const MatrixReader a(request.a(), v1::ELEMENT_TYPE_E4M3, request.m(), kDepth);
  const MatrixReader b(request.b(), v1::ELEMENT_TYPE_E4M3, kDepth, request.n());
  // The error is relative to the sum of magnitudes.
  const auto with_error = [&](double share) {
    return Compute<double>(request, v1::ELEMENT_TYPE_F32, [&](double, int64_t i, int64_t j) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t l = 0; l < kDepth; ++l) {
        sum += a.At(0, i, l) * b.At(0, l, j);
        magnitude += std::fabs(a.At(0, i, l) * b.At(0, l, j));
      }
      return sum + share * magnitude;
    });
  };
  const auto passes = [&](double share, Summation summation) {
    return Verify(request, with_error(share), {}, summation)->passed();
  };
  EXPECT_FALSE(passes(0.001, Summation::kOfType));
  EXPECT_TRUE(passes(0.001, Summation::kOfTensorCore));
  EXPECT_TRUE(passes(0.03, Summation::kOfTensorCore));
  EXPECT_FALSE(passes(0.04, Summation::kOfTensorCore));
  request.set_fast_accumulation(true);
  EXPECT_TRUE(passes(0.3, Summation::kOfTensorCore));
  EXPECT_FALSE(passes(0.4, Summation::kOfTensorCore));
  EXPECT_FALSE(passes(std::nan(""), Summation::kOfTensorCore));
  EXPECT_EQ(SummationOn("cpu"), Summation::kOfType);
  EXPECT_EQ(SummationOn("cuda:0"), Summation::kOfTensorCore);
  EXPECT_EQ(SummationOn("sim:sm_90"), Summation::kOfTensorCore);
}

TEST(VerifyTest, AcceptsDoubles) {
  const v1::MultiplyRequest request = RequestFor({.type = v1::ELEMENT_TYPE_F64, .k = 500});
  EXPECT_TRUE(Verify(request, Compute<double>(request, v1::ELEMENT_TYPE_F64))->passed());
  // The request did not ask for sums in float.
  EXPECT_FALSE(Verify(request, Compute<float>(request, v1::ELEMENT_TYPE_F64))->passed());
}

TEST(VerifyTest, NanFails) {
  const v1::MultiplyRequest request = RequestFor({});
  v1::Matrix d = Compute<float>(request, v1::ELEMENT_TYPE_F32);
  SetElement(d, 3, 2, kNan);
  const auto result = Verify(request, d);
  ASSERT_THAT(result, IsOk());
  EXPECT_FALSE(result->passed());
  EXPECT_EQ(result->wrong, 1);
  EXPECT_EQ(result->worst.row, 3);
  EXPECT_EQ(result->worst.column, 2);
  EXPECT_TRUE(std::isnan(result->worst.got));
}

TEST(VerifyTest, OneWrongElementFails) {
  const v1::MultiplyRequest request = RequestFor({});
  const v1::Matrix right = Compute<float>(request, v1::ELEMENT_TYPE_F32);
  for (double factor : {1.001, 0.999, -1.0, 0.0, 2.0}) {
    v1::Matrix d = right;
    SetElement(d, 4, 6, GetElement(d, 4, 6) * factor);
    EXPECT_FALSE(Verify(request, d)->passed()) << factor;
  }
  v1::Matrix infinite = right;
  SetElement(infinite, 0, 0, kInfinity);
  EXPECT_FALSE(Verify(request, infinite)->passed());
}

TEST(VerifyTest, ExchangedElementsFail) {
  const v1::MultiplyRequest request = RequestFor({});
  v1::Matrix d = Compute<float>(request, v1::ELEMENT_TYPE_F32);
  const double first = GetElement(d, 0, 0);
  SetElement(d, 0, 0, GetElement(d, 1, 0));
  SetElement(d, 1, 0, first);
  EXPECT_EQ(Verify(request, d)->wrong, 2);
}

TEST(VerifyTest, IntegersAreExact) {
  for (const v1::ElementType type : {v1::ELEMENT_TYPE_S8, v1::ELEMENT_TYPE_U8, v1::ELEMENT_TYPE_S4,
                                     v1::ELEMENT_TYPE_U4, v1::ELEMENT_TYPE_B1}) {
    const v1::MultiplyRequest request = RequestFor({.type = type, .k = 200});
    const v1::Matrix right = Compute<double>(request, v1::ELEMENT_TYPE_S32);
    EXPECT_TRUE(Verify(request, right)->passed()) << ElementTypeName(type);
    EXPECT_EQ(Verify(request, right)->worst.bound, 0);
    for (double off : {1.0, -1.0}) {
      v1::Matrix d = right;
      SetElement(d, 2, 2, GetElement(d, 2, 2) + off);
      EXPECT_FALSE(Verify(request, d)->passed()) << ElementTypeName(type);
    }
  }
}

TEST(VerifyTest, IntegersWrapAndSaturate) {
  // 2^31 / 127^2 = 133,144 products of 127 * 127 exceed 31 bits.
  const std::string ones(140'000, '\x7f');
  const auto bytes = std::as_bytes(std::span(ones));
  ProductOptions options;
  const auto request = BuildRequest(PackedView(v1::ELEMENT_TYPE_S8, bytes, 1, 140'000),
                                    PackedView(v1::ELEMENT_TYPE_S8, bytes, 140'000, 1), options);
  ASSERT_THAT(request, IsOk());
  v1::Matrix d = Compute<double>(*request, v1::ELEMENT_TYPE_S32);
  EXPECT_FALSE(Verify(*request, d)->passed());  // Compute saturates.
  SetElement(d, 0, 0, 140'000.0 * 127 * 127 - 0x1p32);
  EXPECT_TRUE(Verify(*request, d)->passed());

  const v1::MultiplyRequest narrow = RequestFor({.type = v1::ELEMENT_TYPE_S8, .k = 64});
  EXPECT_TRUE(Verify(narrow, Compute<double>(narrow, v1::ELEMENT_TYPE_S8))->passed());
}

TEST(VerifyTest, CountsBits) {
  const VerifyCase product = {.type = v1::ELEMENT_TYPE_B1,
                              .k = 77,
                              .change = [](MatrixView&, MatrixView&, ProductOptions& o) {
                                o.bit_operation = v1::BIT_OPERATION_XOR;
                              }};
  const v1::MultiplyRequest request = RequestFor(product);
  const MatrixReader a(request.a(), v1::ELEMENT_TYPE_B1, request.m(), request.k());
  const MatrixReader b(request.b(), v1::ELEMENT_TYPE_B1, request.k(), request.n());
  const v1::Matrix d =
      Compute<double>(request, v1::ELEMENT_TYPE_S32, [&](double, int64_t i, int64_t j) {
        double count = 0;
        for (int64_t l = 0; l < request.k(); ++l) count += a.At(0, i, l) != b.At(0, l, j) ? 1 : 0;
        return count;
      });
  EXPECT_TRUE(Verify(request, d)->passed());
  EXPECT_FALSE(Verify(request, Compute<double>(request, v1::ELEMENT_TYPE_S32))->passed());
}

TEST(VerifyTest, ChecksRowsWithinItsBudget) {
  const v1::MultiplyRequest request = RequestFor({.m = 100, .n = 10, .k = 10});
  v1::Matrix d = Compute<float>(request, v1::ELEMENT_TYPE_F32);
  const VerifyBudget budget = {.multiplications = 1000, .elements = 1 << 20};
  EXPECT_EQ(Verify(request, d, budget)->checked, 100);
  EXPECT_EQ(Verify(request, d, budget)->total, 1000);
  EXPECT_EQ(Verify(request, d, {.multiplications = 1, .elements = 1})->checked, 10);
  // The first and the last row are always among the samples.
  SetElement(d, 99, 9, 1e6);
  EXPECT_FALSE(Verify(request, d, budget)->passed());
}

TEST(VerifyTest, ReadsASparseA) {
  const std::vector<float> a = {2, 0, 0, 3, 0, 0, 5, 0};
  const std::vector<float> b = {1, 10, 100, 1000};
  const auto sparse = CompressOperand("a", View(a, 2, 4), 1, Pruning::kNone);
  ASSERT_THAT(sparse, IsOk());
  MatrixView view = PackedView(v1::ELEMENT_TYPE_F32, std::as_bytes(std::span(sparse->data)), 2, 4);
  view.sparsity = v1::SPARSITY_2_4;
  const auto request = BuildRequest(view, View(b, 4, 1));
  ASSERT_THAT(request, IsOk());
  const auto dense = BuildRequest(View(a, 2, 4), View(b, 4, 1));
  v1::Matrix d = Compute<float>(*dense, v1::ELEMENT_TYPE_F32);
  EXPECT_EQ(GetElement(d, 0, 0), 3002);
  EXPECT_TRUE(Verify(*request, d)->passed());
  SetElement(d, 1, 0, 501);
  EXPECT_FALSE(Verify(*request, d)->passed());
}

TEST(VerifyTest, RefusesAnotherShape) {
  const v1::MultiplyRequest request = RequestFor({});
  v1::Matrix d = Compute<float>(request, v1::ELEMENT_TYPE_F32);
  d.set_rows(7);
  d.set_columns(5);
  EXPECT_THAT(Verify(request, d), StatusIs(absl::StatusCode::kInvalidArgument,
                                           "d: got 1 matrices of 7x5, want 1 of 5x7"));
}

TEST(WithinBoundTest, IsTrueOnlyForTrue) {
  EXPECT_TRUE(IsConversionOf(ElementType::kF32, 1.5, {.value = 1.5, .error = 0}));
  EXPECT_TRUE(IsConversionOf(ElementType::kF32, 1.5, {.value = 1.25, .error = 0.25}));
  EXPECT_FALSE(IsConversionOf(ElementType::kF32, 1.5, {.value = 1.25, .error = 0.2}));
  EXPECT_FALSE(IsConversionOf(ElementType::kF32, kNan, {.value = 1.25, .error = kInfinity}));
  EXPECT_FALSE(IsConversionOf(ElementType::kF32, 1, {.value = kNan, .error = kInfinity}));
  // An infinite product stays infinite, however the epilogue rounds.
  EXPECT_TRUE(
      IsConversionOf(ElementType::kF32, -kInfinity, {.value = -kInfinity, .error = kInfinity}));
  EXPECT_FALSE(
      IsConversionOf(ElementType::kF32, kInfinity, {.value = -kInfinity, .error = kInfinity}));
  EXPECT_FALSE(IsConversionOf(ElementType::kF32, -1, {.value = -kInfinity, .error = kInfinity}));
  EXPECT_TRUE(IsConversionOf(ElementType::kF32, kNan, {.value = kNan, .error = 0}));
  EXPECT_TRUE(IsConversionOf(ElementType::kS8, 0, {.value = kNan, .error = 0}));
  EXPECT_TRUE(IsConversionOf(ElementType::kF16, kInfinity, {.value = 70000, .error = 0}));
  EXPECT_FALSE(IsConversionOf(ElementType::kF16, 65504, {.value = 70000, .error = 0}));
  EXPECT_TRUE(IsConversionOf(ElementType::kE4m3, 448, {.value = 70000, .error = 0}));
  // Half a unit in the last place, but not more.
  EXPECT_TRUE(IsConversionOf(ElementType::kBf16, 1, {.value = 1.00390625, .error = 0}));
  EXPECT_FALSE(IsConversionOf(ElementType::kBf16, 1, {.value = 1.0039063, .error = 0}));
}

}  // namespace
}  // namespace gemmd
