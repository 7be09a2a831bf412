// SPDX-License-Identifier: Apache-2.0
//
// Verification must accept what correct servers compute and refuse everything else; NaN above all.
#include "client/gemmctl/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "client/gemmctl/element_codec.h"
#include "client/gemmctl/matrix_reader.h"
#include "client/gemmctl/random_matrix.h"
#include "client/gemmctl/reference.h"
#include "gemmd/product.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  v1::ElementType type = v1::ELEMENT_TYPE_F32;
  int64_t m = 5;
  int64_t n = 7;
  int64_t k = 33;
  std::function<void(MatrixView&, MatrixView&, ProductOptions&)> change = {};
};

// A random product; the matrices are row major and tight.
v1::MultiplyRequest RequestFor(const Case& product) {
  const std::string a = RandomLines(product.type, product.k, product.m, 1);
  const std::string b = RandomLines(product.type, product.n, product.k, 2);
  MatrixView a_view = PackedView(product.type, std::as_bytes(std::span(a)), product.m, product.k);
  MatrixView b_view = PackedView(product.type, std::as_bytes(std::span(b)), product.k, product.n);
  ProductOptions options;
  if (product.change) product.change(a_view, b_view, options);
  const auto request = BuildRequest(a_view, b_view, options);
  EXPECT_THAT(request, IsOk());
  return *request;
}

// A server in float (or double, or exact integers), summing from the last product to the first.
template <typename Accumulator>
v1::Matrix Compute(
    const v1::MultiplyRequest& request, v1::ElementType d_type,
    const std::function<Accumulator(Accumulator, int64_t, int64_t)>& finish = nullptr) {
  const MatrixReader a(request.a(), request.a().type(), request.m(), request.k());
  const MatrixReader b(request.b(), request.b().type(), request.k(), request.n());
  const int64_t batches = request.has_batch() ? request.batch() : 1;
  const int64_t line_bytes = (request.n() * ElementBits(d_type) + 7) / 8;
  std::string data(static_cast<size_t>(batches * request.m() * line_bytes), '\0');
  for (int64_t batch = 0; batch < batches; ++batch) {
    for (int64_t i = 0; i < request.m(); ++i) {
      for (int64_t j = 0; j < request.n(); ++j) {
        Accumulator sum = 0;
        for (int64_t l = request.k() - 1; l >= 0; --l) {
          sum += static_cast<Accumulator>(static_cast<Accumulator>(a.At(batch, i, l)) *
                                          static_cast<Accumulator>(b.At(batch, l, j)));
        }
        if (finish) sum = finish(sum, i, j);
        StoreElement(d_type, ElementPattern(d_type, static_cast<double>(sum)), j,
                     data.data() + (batch * request.m() + i) * line_bytes);
      }
    }
  }
  v1::Matrix d;
  d.set_type(d_type);
  d.set_rows(request.m());
  d.set_columns(request.n());
  d.set_batch(batches);
  d.set_leading_dimension(request.n());
  d.set_batch_stride(request.m() * line_bytes);
  d.set_data(data);
  return d;
}

void SetElement(v1::Matrix& d, int64_t row, int64_t column, double value) {
  const int64_t line_bytes = (d.columns() * ElementBits(d.type()) + 7) / 8;
  ASSERT_EQ(ElementBits(d.type()) % 8, 0);
  StoreElement(d.type(), ElementPattern(d.type(), value), column,
               d.mutable_data()->data() + row * line_bytes);
}

double GetElement(const v1::Matrix& d, int64_t row, int64_t column) {
  return MatrixReader(d).At(0, row, column);
}

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

TEST(VerifyTest, AcceptsDoubles) {
  const v1::MultiplyRequest request = RequestFor({.type = v1::ELEMENT_TYPE_F64, .k = 500});
  EXPECT_TRUE(Verify(request, Compute<double>(request, v1::ELEMENT_TYPE_F64))->passed());
  // Sums in float are not what was asked for.
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
  // 2^31 / 127^2 = 133,144 products of 127 * 127 leave 31 bits.
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
  const Case product = {.type = v1::ELEMENT_TYPE_B1,
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

float Gelu(float x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0F))); }
float GeluTanh(float x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265F) * (x + 0.044715F * x * x * x)));
}
float Silu(float x) { return x / (1 + std::exp(-x)); }
float Relu(float x) { return x > 0 ? x : 0; }

TEST(VerifyTest, FollowsTheEpilogue) {
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
    const Case product = {.change = [&](MatrixView&, MatrixView&, ProductOptions& options) {
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

TEST(VerifyTest, FollowsScales) {
  const std::vector<float> rows = {1, 2, 0.5F, -3, 0.1F};
  const std::vector<float> all = {0.25F};
  const Case product = {.type = v1::ELEMENT_TYPE_E4M3,
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

TEST(VerifyTest, ReadsEveryLayout) {
  const std::string a = RandomLines(v1::ELEMENT_TYPE_F32, 9, 20, 1);
  const std::string b = RandomLines(v1::ELEMENT_TYPE_F32, 16, 40, 2);
  // A: 3 matrices, stored 4 x 6 transposed by columns of 4 in lines of 5; B: one matrix for all.
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
  // The reader's own arithmetic, spelled out once: element (5, 2) of op(A) of the last matrix.
  float direct = 0;
  std::memcpy(&direct, a.data() + (2 * 40 + 5 * 5 + 2) * 4, 4);
  EXPECT_EQ(MatrixReader(request->a(), v1::ELEMENT_TYPE_F32, 6, 4).At(2, 5, 2), direct);
}

TEST(VerifyTest, EmptySumsAreZero) {
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

v1::Matrix One(v1::ElementType type, double value) {
  v1::Matrix d;
  d.set_type(type);
  d.set_rows(1);
  d.set_columns(1);
  d.set_batch(1);
  d.set_leading_dimension(1);
  d.set_batch_stride(ElementBits(type) / 8);
  d.set_data(std::string(static_cast<size_t>(ElementBits(type) / 8), '\0'));
  SetElement(d, 0, 0, value);
  return d;
}

TEST(VerifyTest, WantsNanAndInfinityWhereTheOperandsHaveThem) {
  const auto f32 = [](double value) { return One(v1::ELEMENT_TYPE_F32, value); };
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
  // The exact sum of these is 0, but its partial sums overflow: nothing can be said, and that is no
  // pass.
  const v1::MultiplyRequest overflow = RowTimesColumn({3e38F, 3e38F, -3e38F, -3e38F}, {1, 1, 1, 1});
  EXPECT_EQ(Verify(overflow, f32(0))->undecidable, 1);
  EXPECT_FALSE(Verify(overflow, f32(0))->passed());
}

TEST(VerifyTest, AllowsSubnormalsToCountAsZero) {
  const v1::MultiplyRequest request = RowTimesColumn({0x1p-140F, 1}, {1e10F, 1});
  EXPECT_TRUE(Verify(request, One(v1::ELEMENT_TYPE_F32, 1))->passed());
  const v1::MultiplyRequest tiny = RowTimesColumn({0x1p-80F}, {0x1p-60F});
  EXPECT_TRUE(Verify(tiny, One(v1::ELEMENT_TYPE_F32, 0))->passed());
  EXPECT_TRUE(Verify(tiny, One(v1::ELEMENT_TYPE_F32, 0x1p-140))->passed());
  EXPECT_FALSE(Verify(tiny, One(v1::ELEMENT_TYPE_F32, 0x1p-100))->passed());
}

TEST(VerifyTest, ChecksRowsWithinItsBudget) {
  const v1::MultiplyRequest request = RequestFor({.m = 100, .n = 10, .k = 10});
  v1::Matrix d = Compute<float>(request, v1::ELEMENT_TYPE_F32);
  const VerifyBudget budget = {.multiplications = 1000, .elements = 1 << 20};
  EXPECT_EQ(Verify(request, d, budget)->checked, 100);
  EXPECT_EQ(Verify(request, d, budget)->total, 1000);
  EXPECT_EQ(Verify(request, d, {.multiplications = 1, .elements = 1})->checked, 10);
  // First and last row are among the sampled ones.
  SetElement(d, 99, 9, 1e6);
  EXPECT_FALSE(Verify(request, d, budget)->passed());
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
  EXPECT_TRUE(IsWithinBound(v1::ELEMENT_TYPE_F32, 1.5, 1.5, 0));
  EXPECT_TRUE(IsWithinBound(v1::ELEMENT_TYPE_F32, 1.5, 1.25, 0.25));
  EXPECT_FALSE(IsWithinBound(v1::ELEMENT_TYPE_F32, 1.5, 1.25, 0.2));
  EXPECT_FALSE(IsWithinBound(v1::ELEMENT_TYPE_F32, kNan, 1.25, kInfinity));
  EXPECT_FALSE(IsWithinBound(v1::ELEMENT_TYPE_F32, 1, kNan, kInfinity));
  EXPECT_TRUE(IsWithinBound(v1::ELEMENT_TYPE_F32, kNan, kNan, 0));
  EXPECT_TRUE(IsWithinBound(v1::ELEMENT_TYPE_S8, 0, kNan, 0));
  EXPECT_TRUE(IsWithinBound(v1::ELEMENT_TYPE_F16, kInfinity, 70000, 0));
  EXPECT_FALSE(IsWithinBound(v1::ELEMENT_TYPE_F16, 65504, 70000, 0));
  EXPECT_TRUE(IsWithinBound(v1::ELEMENT_TYPE_E4M3, 448, 70000, 0));
  // Half a unit in the last place, and no more.
  EXPECT_TRUE(IsWithinBound(v1::ELEMENT_TYPE_BF16, 1, 1.00390625, 0));
  EXPECT_FALSE(IsWithinBound(v1::ELEMENT_TYPE_BF16, 1, 1.0039063, 0));
}

}  // namespace
}  // namespace gemmd
