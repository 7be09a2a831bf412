// SPDX-License-Identifier: Apache-2.0
//
// Verification of scaled, biased, activated and empty products, of any layout, and of special
// values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "client/matrix/random_matrix.h"
#include "client/matrix/verify.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/client/matrix/verify_case.h"
#include "tests/testing/special_values.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

float Gelu(float x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0F))); }
float GeluTanh(float x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265F) * (x + 0.044715F * x * x * x)));
}
float Silu(float x) { return x / (1 + std::exp(-x)); }
float Relu(float x) { return x > 0 ? x : 0; }

TEST(VerifyEpilogueTest, FollowsTheEpilogue) {
  const struct {
    v1::Activation activation;
    float (*function)(float);
  } activations[] = {{v1::ACTIVATION_RELU, Relu},
                     {v1::ACTIVATION_GELU_ERF, Gelu},
                     {v1::ACTIVATION_GELU_TANH, GeluTanh},
                     {v1::ACTIVATION_SILU, Silu}};
  const std::string c = RandomLines(v1::ELEMENT_TYPE_BF16, 7, 5, 3);
  const std::string bias = RandomLines(v1::ELEMENT_TYPE_F32, 5, 1, 4);
  for (const auto& row : activations) {
    const VerifyCase product = {.change = [&](MatrixView&, MatrixView&, ProductOptions& options) {
      options.alpha = 0.3;
      options.beta = -1.7;
      options.c = PackedView(v1::ELEMENT_TYPE_BF16, std::as_bytes(std::span(c)), 5, 7);
      options.bias = BiasView{.type = v1::ELEMENT_TYPE_F32,
                              .axis = v1::BIAS_AXIS_ROWS,
                              .data = std::as_bytes(std::span(bias))};
      options.activation = row.activation;
    }};
    const v1::MultiplyRequest request = RequestFor(product);
    const auto epilogue = [&](float x, int64_t i, int64_t j) {
      const auto term = static_cast<float>(
          ElementValue(v1::ELEMENT_TYPE_BF16, LoadElement(v1::ELEMENT_TYPE_BF16, c, i * 7 + j)));
      x = x * 0.3F + -1.7F * term;
      x += static_cast<float>(
          ElementValue(v1::ELEMENT_TYPE_F32, LoadElement(v1::ELEMENT_TYPE_F32, bias, i)));
      return row.function(x);
    };
    for (const v1::ElementType type :
         {v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_F16, v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_E4M3,
          v1::ELEMENT_TYPE_S8}) {
      EXPECT_TRUE(Verify(request, Compute<float>(request, type, epilogue))->passed())
          << v1::Activation_Name(row.activation) << " " << ElementTypeName(type);
    }
    EXPECT_FALSE(Verify(request, Compute<float>(request, v1::ELEMENT_TYPE_F32))->passed());
  }
}

TEST(VerifyEpilogueTest, FollowsScales) {
  const std::vector<float> rows = {1, 2, 0.5F, -3, 0.1F};
  const std::vector<float> all = {0.25F};
  const VerifyCase product = {.type = v1::ELEMENT_TYPE_E4M3,
                              .change = [&](MatrixView& a, MatrixView& b, ProductOptions&) {
                                a.scale = rows;
                                b.scale = all;
                              }};
  const v1::MultiplyRequest request = RequestFor(product);
  const v1::Matrix d = Compute<float>(
      request, v1::ELEMENT_TYPE_F32,
      [&](float x, int64_t i, int64_t) { return x * (rows[static_cast<size_t>(i)] * 0.25F); });
  EXPECT_TRUE(Verify(request, d)->passed());
  EXPECT_FALSE(Verify(request, Compute<float>(request, v1::ELEMENT_TYPE_F32))->passed());
}

TEST(VerifyEpilogueTest, ReadsEveryLayout) {
  const std::string a = RandomLines(v1::ELEMENT_TYPE_F32, 9, 20, 1);
  const std::string b = RandomLines(v1::ELEMENT_TYPE_F32, 16, 40, 2);
  // A: 3 matrices of 4 x 6, stored transposed in columns of 4 within lines of 5; B: one matrix for
  // all.
  MatrixView a_view =
      PackedView(v1::ELEMENT_TYPE_F32, std::as_bytes(std::span(a)).first(3 * 40 * 4 - 4), 4, 6);
  a_view.order = v1::ORDER_COLUMN_MAJOR;
  a_view.leading_dimension = 5;
  a_view.batch_stride = 40;
  a_view.transpose = true;
  a_view.data = std::as_bytes(std::span(a)).first((2 * 40 + 5 * 5 + 4) * 4);
  MatrixView b_view =
      PackedView(v1::ELEMENT_TYPE_F32, std::as_bytes(std::span(b)).first(4 * 8 * 4), 4, 8);
  b_view.batch_stride = 0;
  ProductOptions options;
  options.batch = 3;
  const auto request = BuildRequest(a_view, b_view, options);
  ASSERT_THAT(request, IsOk());
  const v1::Matrix d = Compute<float>(*request, v1::ELEMENT_TYPE_F32);
  const auto result = Verify(*request, d);
  ASSERT_THAT(result, IsOk());
  EXPECT_TRUE(result->passed());
  EXPECT_EQ(result->checked, 3 * 6 * 8);
  // The same arithmetic as the reader's, spelled out once: element (5, 2) of op(A) of the last
  // matrix.
  float direct = 0;
  std::memcpy(&direct, a.data() + (2 * 40 + 5 * 5 + 2) * 4, 4);
  EXPECT_EQ(MatrixReader(request->a(), v1::ELEMENT_TYPE_F32, 6, 4).At(2, 5, 2), direct);
}

TEST(VerifyEpilogueTest, EmptySumsAreZero) {
  const v1::MultiplyRequest request = RequestFor({.k = 0});
  v1::Matrix d = Compute<float>(request, v1::ELEMENT_TYPE_F32);
  EXPECT_TRUE(Verify(request, d)->passed());
  SetElement(d, 0, 0, 0x1p-126);
  EXPECT_FALSE(Verify(request, d)->passed());
  const v1::MultiplyRequest empty = RequestFor({.m = 0});
  EXPECT_TRUE(Verify(empty, Compute<float>(empty, v1::ELEMENT_TYPE_F32))->passed());
}

// One row times one column, given by value.
v1::MultiplyRequest RowTimesColumn(const std::vector<float>& a, const std::vector<float>& b,
                                   const ProductOptions& options = {}) {
  const auto k = static_cast<int64_t>(a.size());
  return *BuildRequest(View(a, 1, k), View(b, k, 1), options);
}

TEST(VerifyEpilogueTest, WantsNanAndInfinityWhereTheOperandsHaveThem) {
  const auto f32 = [](double value) { return OneElement(v1::ELEMENT_TYPE_F32, value); };
  constexpr auto kF = std::numeric_limits<float>::infinity();
  const v1::MultiplyRequest nan = RowTimesColumn({1, NAN}, {1, 1});
  EXPECT_TRUE(Verify(nan, f32(kNan))->passed());
  EXPECT_FALSE(Verify(nan, f32(1))->passed());
  EXPECT_FALSE(Verify(nan, f32(kInfinity))->passed());
  const v1::MultiplyRequest infinite = RowTimesColumn({1, kF}, {1, -1});
  EXPECT_TRUE(Verify(infinite, f32(-kInfinity))->passed());
  EXPECT_FALSE(Verify(infinite, f32(kInfinity))->passed());
  EXPECT_FALSE(Verify(infinite, f32(kNan))->passed());
  EXPECT_TRUE(Verify(RowTimesColumn({0, 1}, {kF, 1}), f32(kNan))->passed());
  EXPECT_TRUE(Verify(RowTimesColumn({kF, kF}, {1, -1}), f32(kNan))->passed());
  // The exact sum of these is 0, but its partial sums overflow: no verdict is possible, which is
  // not a pass.
  const v1::MultiplyRequest overflow = RowTimesColumn({3e38F, 3e38F, -3e38F, -3e38F}, {1, 1, 1, 1});
  EXPECT_EQ(Verify(overflow, f32(0))->undecidable, 1);
  EXPECT_FALSE(Verify(overflow, f32(0))->passed());
}

TEST(VerifyEpilogueTest, AllowsSubnormalsToCountAsZero) {
  const v1::MultiplyRequest request = RowTimesColumn({0x1p-140F, 1}, {1e10F, 1});
  EXPECT_TRUE(Verify(request, OneElement(v1::ELEMENT_TYPE_F32, 1))->passed());
  const v1::MultiplyRequest tiny = RowTimesColumn({0x1p-80F}, {0x1p-60F});
  EXPECT_TRUE(Verify(tiny, OneElement(v1::ELEMENT_TYPE_F32, 0))->passed());
  EXPECT_TRUE(Verify(tiny, OneElement(v1::ELEMENT_TYPE_F32, 0x1p-140))->passed());
  EXPECT_FALSE(Verify(tiny, OneElement(v1::ELEMENT_TYPE_F32, 0x1p-100))->passed());
}

}  // namespace
}  // namespace gemmd
