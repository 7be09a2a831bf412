// SPDX-License-Identifier: Apache-2.0
//
// Conversion of views to requests and of answers to results, and the texts of refusals.
#include "gemmd/product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "client/operand_size.h"
#include "gemmd/v1/gemm.pb.h"
#include "kernels/matrix/sparse24.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string MessageOf(const absl::StatusOr<v1::MultiplyRequest>& request) {
  EXPECT_TRUE(request.ok() || absl::IsInvalidArgument(request.status())) << request.status();
  return std::string(request.status().message());
}

std::vector<std::byte> Bytes(size_t count) { return std::vector<std::byte>(count); }

TEST(BuildRequestTest, FillsShapesTypesAndBytes) {
  const std::vector<double> a = {1, 2, 3, 4, 5, 6};
  const std::array<double, 3> b = {1, 2, 3};
  const auto request = BuildRequest(View(a, 2, 3), View(b, 3, 1));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->m(), 2);
  EXPECT_EQ(request->n(), 1);
  EXPECT_EQ(request->k(), 3);
  EXPECT_EQ(request->a().type(), v1::ELEMENT_TYPE_F64);
  EXPECT_EQ(request->a().data().size(), 48u);
  EXPECT_FALSE(request->has_batch());
  EXPECT_FALSE(request->has_alpha());
  EXPECT_FALSE(request->has_c());
  EXPECT_FALSE(request->has_bias());
}

TEST(BuildRequestTest, KnowsTheNativeTypes) {
  EXPECT_EQ(View(std::vector<float>(1), 1, 1).type, v1::ELEMENT_TYPE_F32);
  EXPECT_EQ(View(std::vector<double>(1), 1, 1).type, v1::ELEMENT_TYPE_F64);
  EXPECT_EQ(View(std::vector<int8_t>(1), 1, 1).type, v1::ELEMENT_TYPE_S8);
  EXPECT_EQ(View(std::vector<uint8_t>(1), 1, 1).type, v1::ELEMENT_TYPE_U8);
  EXPECT_EQ(View(std::vector<int32_t>(1), 1, 1).type, v1::ELEMENT_TYPE_S32);
}

TEST(BuildRequestTest, TransposedViewsExchangeRowsAndColumns) {
  MatrixView a = View(std::vector<float>(6), 3, 2);
  const std::vector<float> stored(6);
  a.data = std::as_bytes(std::span(stored));
  a.transpose = true;
  const std::vector<float> b(12);
  const auto request = BuildRequest(a, View(b, 3, 4));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->m(), 2);
  EXPECT_EQ(request->k(), 3);
  EXPECT_TRUE(request->a().transpose());
  a.rows = 4;
  EXPECT_EQ(MessageOf(BuildRequest(a, View(b, 4, 3))), "a.data: got 24 bytes, want k*m*4 = 32");
}

TEST(BuildRequestTest, SaysWhatItGotAndWhatItWants) {
  const std::vector<float> six(6);
  EXPECT_EQ(MessageOf(BuildRequest(View(six, 2, 2), View(six, 2, 3))),
            "a.data: got 24 bytes, want m*k*4 = 16");
  EXPECT_EQ(MessageOf(BuildRequest(View(six, 2, 3), View(six, 3, 3))),
            "b.data: got 24 bytes, want k*n*4 = 36");
  EXPECT_EQ(MessageOf(BuildRequest(View(six, 2, 3), View(six, 2, 3))),
            "b: got 2 rows of op(B), want k = 3");
  EXPECT_EQ(MessageOf(BuildRequest(View(six, -2, -3), View(six, -3, 2))),
            "a.rows: got -2, want 0 or more");
  EXPECT_EQ(
      MessageOf(BuildRequest(PackedView(v1::ELEMENT_TYPE_UNSPECIFIED, {}, 1, 1), View(six, 1, 6))),
      "a.type: got none, want an element type");
}

TEST(BuildRequestTest, CountsPaddedAndPackedLines) {
  const auto ninety = Bytes(90);
  MatrixView a = PackedView(v1::ELEMENT_TYPE_BF16, ninety, 3, 5);
  a.leading_dimension = 16;
  a.data = std::span(ninety).first(73);
  const std::vector<float> b(5);
  EXPECT_EQ(MessageOf(BuildRequest(a, View(b, 5, 1))),
            "a.data: got 73 bytes, want 3 lines of 32 bytes = 96 (or 74 without the last padding)");
  a.data = std::span(ninety).first(74);
  EXPECT_THAT(BuildRequest(a, View(b, 5, 1)), IsOk());
  a.leading_dimension = 4;
  EXPECT_EQ(MessageOf(BuildRequest(a, View(b, 5, 1))),
            "a.leading_dimension: got 4, want 0 or at least the length of a row, 5");
  // 5 four-bit elements take 3 bytes, so 7 rows take 21.
  EXPECT_EQ(MessageOf(BuildRequest(PackedView(v1::ELEMENT_TYPE_E2M1, ninety, 7, 5), View(b, 5, 1))),
            "a.data: got 90 bytes, want 7 lines of 3 bytes = 21");
}

TEST(BuildRequestTest, CountsBatches) {
  const std::vector<float> a(24);
  const std::vector<float> b(6);
  MatrixView shared = View(b, 3, 2);
  ProductOptions options;
  options.batch = 4;
  EXPECT_EQ(MessageOf(BuildRequest(View(a, 2, 3), shared, options)),
            "b.data: got 24 bytes, want 3 lines of 8 bytes, batch 4 every 24 bytes = 96");
  shared.batch_stride = 0;
  const auto request = BuildRequest(View(a, 2, 3), shared, options);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->batch(), 4);
  EXPECT_TRUE(request->b().has_batch_stride());
  shared.batch_stride = -1;
  EXPECT_THAT(MessageOf(BuildRequest(View(a, 2, 3), shared, options)),
              HasSubstr("b.batch_stride: got -1"));
  MatrixView narrow = PackedView(v1::ELEMENT_TYPE_S4, Bytes(0), 3, 2);
  narrow.batch_stride = 3;
  EXPECT_EQ(MessageOf(BuildRequest(View(a, 2, 3), narrow, options)),
            "b.batch_stride: got 3, want a whole number of bytes of 4-bit elements");
}

// 3 x 6 of f32: three groups of two in a row, so 3 values and a byte of indices.
TEST(BuildRequestTest, TakesASparseA) {
  const std::vector<std::byte> a_bytes = Bytes(3 * (3 * 4 + 1));
  const std::vector<float> b(6);
  MatrixView a = PackedView(v1::ELEMENT_TYPE_F32, a_bytes, 3, 6);
  a.sparsity = v1::SPARSITY_2_4;
  const auto request = BuildRequest(a, View(b, 6, 1));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->a().sparsity(), v1::SPARSITY_2_4);
  EXPECT_EQ(request->a().data().size(), a_bytes.size());
  EXPECT_EQ(request->m(), 3);
  EXPECT_EQ(request->k(), 6);
  a.batch_stride = 0;
  EXPECT_THAT(BuildRequest(a, View(std::vector<float>(12), 6, 1), {.batch = 2}), IsOk());
}

TEST(BuildRequestTest, SaysWhatIsWrongWithASparseA) {
  const std::vector<std::byte> bytes = Bytes(39);
  const std::vector<float> b(6);
  MatrixView good = PackedView(v1::ELEMENT_TYPE_F32, bytes, 3, 6);
  good.sparsity = v1::SPARSITY_2_4;
  const auto message = [&](const MatrixView& a, const ProductOptions& options = {}) {
    return MessageOf(BuildRequest(a, View(b, a.transpose ? 3 : 6, 1), options));
  };
  MatrixView a = good;
  a.data = a.data.first(38);
  EXPECT_EQ(message(a),
            "a.data: got 38 bytes, want 3 lines of 12 bytes of values and 1 of indices = 39");
  EXPECT_EQ(message(good, {.batch = 2}),
            "a.data: got 39 bytes, want 3 lines of 12 bytes of values and 1 of indices, batch 2 "
            "every 39 bytes = 78");
  a = good;
  a.order = v1::ORDER_COLUMN_MAJOR;
  EXPECT_EQ(message(a), "a.order: got column, want row where sparsity is 2:4");
  a = good;
  a.transpose = true;
  EXPECT_EQ(message(a), "a.transpose: got true, want false where sparsity is 2:4");
  a = good;
  a.leading_dimension = 6;
  EXPECT_EQ(message(a), "a.leading_dimension: got 6, want 0 where sparsity is 2:4");
  a = good;
  a.batch_stride = 18;
  EXPECT_EQ(message(a), "a.batch_stride: got 18, want none or 0 where sparsity is 2:4");
  a = good;
  a.type = v1::ELEMENT_TYPE_B1;
  EXPECT_EQ(message(a),
            "a.sparsity: got 2:4 of type b1, want none (b1, s32 and f64 have no sparse form)");
}

TEST(BuildRequestTest, OnlyAMayBeSparse) {
  const std::vector<float> elements(4);
  MatrixView sparse = View(elements, 2, 2);
  sparse.sparsity = v1::SPARSITY_2_4;
  EXPECT_EQ(MessageOf(BuildRequest(View(elements, 2, 2), sparse)),
            "b.sparsity: got 2:4, want none: only A may be sparse");
  for (v1::ElementType type : {v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_UNSPECIFIED}) {
    sparse.type = type;
    const ProductOptions options = {.beta = 1, .c = sparse};
    EXPECT_EQ(MessageOf(BuildRequest(View(elements, 2, 2), View(elements, 2, 2), options)),
              "c.sparsity: got 2:4, want none: only A may be sparse");
  }
}

TEST(BuildRequestTest, SizesOfSparseRows) {
  const auto bytes = [](v1::ElementType type, int64_t columns) {
    const auto row = SparseLayoutOf("a", KnownType(type).value(), 1, columns);
    return row.ok() ? std::pair(row->value_line_bytes, row->index_line_bytes)
                    : std::pair(int64_t{-1}, int64_t{-1});
  };
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(bytes(v1::ELEMENT_TYPE_F16, 9), Pair(12, 2));
  EXPECT_EQ(bytes(v1::ELEMENT_TYPE_E3M2, 9), Pair(5, 2));
  EXPECT_EQ(bytes(v1::ELEMENT_TYPE_E2M1, 17), Pair(6, 2));
  EXPECT_EQ(bytes(v1::ELEMENT_TYPE_F32, 9), Pair(20, 2));
  EXPECT_EQ(bytes(v1::ELEMENT_TYPE_F64, 8), Pair(-1, -1));
  EXPECT_EQ(bytes(v1::ELEMENT_TYPE_F32, int64_t{1} << 62), Pair(-1, -1));
  constexpr int64_t kEighth = int64_t{1} << 60;  // The largest k has this many groups of u4.
  EXPECT_EQ(bytes(v1::ELEMENT_TYPE_U4, INT64_MAX), Pair(2 * kEighth, kEighth / 2));
}

TEST(BuildRequestTest, RefusesSizesBeyond63Bits) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  EXPECT_THAT(MessageOf(BuildRequest(PackedView(v1::ELEMENT_TYPE_F64, {}, kHuge, kHuge),
                                     PackedView(v1::ELEMENT_TYPE_F64, {}, kHuge, kHuge))),
              HasSubstr("want sizes in bytes below 2^63"));
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(MessageOf(DescribeRequest(PackedView(v1::ELEMENT_TYPE_E3M2, {}, kMax, kMax),
                                        PackedView(v1::ELEMENT_TYPE_E3M2, {}, kMax, kMax))),
              HasSubstr("want sizes in bytes below 2^63"));
}

TEST(BuildRequestTest, EmptyProductsNeedNoBytes) {
  EXPECT_THAT(BuildRequest(PackedView(v1::ELEMENT_TYPE_F32, {}, 3, 0),
                           PackedView(v1::ELEMENT_TYPE_F32, {}, 0, 2)),
              IsOk());
  ProductOptions options;
  options.alpha = 0;
  const auto request = BuildRequest(PackedView(v1::ELEMENT_TYPE_F32, {}, 3, 4),
                                    PackedView(v1::ELEMENT_TYPE_F32, {}, 4, 2), options);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->a().source_case(), v1::Operand::SOURCE_NOT_SET);
  EXPECT_EQ(request->alpha(), 0);
}

TEST(BuildRequestTest, ChecksCAndBias) {
  const std::vector<float> four(4);
  const std::vector<float> two(2);
  const MatrixView square = View(four, 2, 2);
  ProductOptions options;
  options.beta = 0.5;
  EXPECT_EQ(MessageOf(BuildRequest(square, square, options)),
            "c: got none, want C where beta is 0.5");
  options.c = View(two, 1, 2);
  EXPECT_EQ(MessageOf(BuildRequest(square, square, options)), "c: got 1 rows of op(C), want m = 2");
  options.c = square;
  EXPECT_THAT(BuildRequest(square, square, options), IsOk());
  options.beta = 0;
  EXPECT_EQ(MessageOf(BuildRequest(square, square, options)),
            "c: got C, want none where beta is 0");
  options.c.reset();
  options.bias = BiasView{.type = v1::ELEMENT_TYPE_F32,
                          .axis = v1::BIAS_AXIS_ROWS,
                          .data = std::as_bytes(std::span(four))};
  EXPECT_EQ(MessageOf(BuildRequest(square, square, options)),
            "bias.data: got 16 bytes, want m = 2 elements of 32 bits = 8");
  options.bias->data = std::as_bytes(std::span(two));
  const auto request = BuildRequest(square, square, options);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->bias().axis(), v1::BIAS_AXIS_ROWS);
}

TEST(BuildRequestTest, PassesEveryChoiceOn) {
  const std::vector<int8_t> a(4);
  const std::vector<float> scale = {0.5F, 0.25F};
  MatrixView view = View(a, 2, 2);
  view.scale = scale;
  view.order = v1::ORDER_COLUMN_MAJOR;
  ProductOptions options;
  options.request_id = "id";
  options.alpha = 2;
  options.activation = v1::ACTIVATION_SILU;
  options.accumulation_type = v1::ELEMENT_TYPE_S32;
  options.output_type = v1::ELEMENT_TYPE_F16;
  options.output_order = v1::ORDER_COLUMN_MAJOR;
  options.kernel = "kernel";
  options.device = "cpu";
  options.require_deterministic = true;
  options.require_batch_invariant = true;
  options.fast_accumulation = true;
  options.priority = v1::PRIORITY_LOW;
  options.verify = {.mode = v1::VERIFY_MODE_SAMPLED, .rate = 0.5};
  const auto request = BuildRequest(view, View(a, 2, 2), options);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->request_id(), "id");
  EXPECT_EQ(request->alpha(), 2);
  EXPECT_THAT(request->a().scale().values(), ElementsAre(0.5F, 0.25F));
  EXPECT_EQ(request->a().order(), v1::ORDER_COLUMN_MAJOR);
  EXPECT_EQ(request->activation(), v1::ACTIVATION_SILU);
  EXPECT_EQ(request->accumulation_type(), v1::ELEMENT_TYPE_S32);
  EXPECT_EQ(request->d().type(), v1::ELEMENT_TYPE_F16);
  EXPECT_EQ(request->d().order(), v1::ORDER_COLUMN_MAJOR);
  EXPECT_EQ(request->kernel(), "kernel");
  EXPECT_EQ(request->device(), "cpu");
  EXPECT_EQ(request->priority(), v1::PRIORITY_LOW);
  EXPECT_EQ(request->verify().mode(), v1::VERIFY_MODE_SAMPLED);
  EXPECT_EQ(request->verify().rate(), 0.5);
  EXPECT_TRUE(request->require_deterministic());
  EXPECT_TRUE(request->require_batch_invariant());
  EXPECT_TRUE(request->fast_accumulation());
}

TEST(DescribeRequestTest, LeavesTheBytesOut) {
  ProductOptions options;
  options.beta = 1;
  options.c = PackedView(v1::ELEMENT_TYPE_F32, {}, 4095, 4097);
  const auto request = DescribeRequest(PackedView(v1::ELEMENT_TYPE_BF16, {}, 4095, 4093),
                                       PackedView(v1::ELEMENT_TYPE_BF16, {}, 4093, 4097), options);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->n(), 4097);
  EXPECT_EQ(request->a().source_case(), v1::Operand::SOURCE_NOT_SET);
  EXPECT_EQ(request->c().source_case(), v1::Operand::SOURCE_NOT_SET);
}

v1::MultiplyResponse ResponseOf(int64_t batch, int64_t rows, int64_t columns, size_t bytes) {
  v1::MultiplyResponse response;
  v1::Matrix& d = *response.mutable_d();
  d.set_type(v1::ELEMENT_TYPE_F32);
  d.set_batch(batch);
  d.set_rows(rows);
  d.set_columns(columns);
  d.set_leading_dimension(columns);
  d.set_batch_stride(rows * columns * 4);
  d.set_data(std::string(bytes, '\0'));
  return response;
}

TEST(MultiplyResultTest, ChecksTheServersAnswer) {
  EXPECT_THAT(MultiplyResult::FromResponse(ResponseOf(1, 2, 3, 24)), IsOk());
  EXPECT_THAT(MultiplyResult::FromResponse(ResponseOf(5, 2, 3, 120)), IsOk());
  EXPECT_THAT(MultiplyResult::FromResponse(ResponseOf(0, 2, 3, 0)), IsOk());
  EXPECT_THAT(MultiplyResult::FromResponse(ResponseOf(1, 0, 3, 0)), IsOk());
  for (const auto& response :
       {ResponseOf(1, 2, 3, 20), ResponseOf(1, 2, 3, 28), ResponseOf(5, 2, 3, 24),
        ResponseOf(-1, 2, 3, 24), ResponseOf(1, -2, 3, 24), ResponseOf(1, 0, 3, 4),
        ResponseOf(-1, 0, 3, 0), ResponseOf(INT64_MIN, 2, 3, 24),
        ResponseOf(int64_t{1} << 60, 2, 3, 24)}) {
    EXPECT_THAT(MultiplyResult::FromResponse(response), StatusIs(absl::StatusCode::kDataLoss));
  }
  v1::MultiplyResponse overlapping = ResponseOf(2, 2, 3, 28);
  overlapping.mutable_d()->set_batch_stride(4);
  EXPECT_THAT(MultiplyResult::FromResponse(overlapping), StatusIs(absl::StatusCode::kDataLoss));
  v1::MultiplyResponse untyped = ResponseOf(1, 2, 3, 24);
  untyped.mutable_d()->set_type(v1::ELEMENT_TYPE_UNSPECIFIED);
  EXPECT_THAT(MultiplyResult::FromResponse(untyped), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(ElementTypeTest, NamesAndWidthsAgree) {
  for (int i = 1; i < v1::ElementType_ARRAYSIZE; ++i) {
    const auto type = static_cast<v1::ElementType>(i);
    EXPECT_EQ(ParseElementType(ElementTypeName(type)), type);
    EXPECT_GT(ElementBits(type), 0);
    // ELEMENT_TYPE_BF16 is "bf16".
    std::string name = v1::ElementType_Name(type).substr(std::string("ELEMENT_TYPE_").size());
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    EXPECT_EQ(ElementTypeName(type), name);
  }
  EXPECT_EQ(ParseElementType("unspecified"), std::nullopt);
  EXPECT_EQ(ParseElementType(""), std::nullopt);
  EXPECT_EQ(ElementBits(static_cast<v1::ElementType>(99)), 0);
}

}  // namespace
}  // namespace gemmd
