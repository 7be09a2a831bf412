// SPDX-License-Identifier: Apache-2.0
#include "client/load/payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "client/matrix/matrix_reader.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

LoadProduct Product(v1::ElementType type, bool is_sparse = false) {
  LoadProduct product;
  product.name = "p";
  product.m = 9;
  product.n = 7;
  product.k = 24;
  product.type = type;
  product.is_sparse = is_sparse;
  return product;
}

// What a right server answers, element by element in f64; D is of `type`.
v1::MultiplyResponse RightAnswer(const v1::MultiplyRequest& request, v1::ElementType type) {
  const MatrixReader a(request.a(), request.a().type(), request.m(), request.k());
  const MatrixReader b(request.b(), request.b().type(), request.k(), request.n());
  v1::MultiplyResponse response;
  v1::Matrix& d = *response.mutable_d();
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  const size_t width = static_cast<size_t>(ElementBits(type) / 8);
  std::string data;
  for (int64_t matrix = 0; matrix < batch; ++matrix) {
    for (int64_t i = 0; i < request.m(); ++i) {
      std::string line(static_cast<size_t>(request.n()) * width, '\0');
      for (int64_t j = 0; j < request.n(); ++j) {
        double sum = 0;
        for (int64_t l = 0; l < request.k(); ++l) sum += a.At(matrix, i, l) * b.At(matrix, l, j);
        StoreElement(type, ElementPattern(type, sum), j, line.data());
      }
      data += line;
    }
  }
  d.set_type(type);
  d.set_rows(request.m());
  d.set_columns(request.n());
  d.set_batch(batch);
  d.set_leading_dimension(request.n());
  d.set_batch_stride(request.m() * request.n() * static_cast<int64_t>(width));
  d.set_data(data);
  return response;
}

v1::ElementType AccumulationOf(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_F64: return type;
    case v1::ELEMENT_TYPE_S8:
    case v1::ELEMENT_TYPE_U8:
    case v1::ELEMENT_TYPE_S4:
    case v1::ELEMENT_TYPE_U4:
    case v1::ELEMENT_TYPE_B1: return v1::ELEMENT_TYPE_S32;
    default: return v1::ELEMENT_TYPE_F32;
  }
}

constexpr v1::ElementType kTypes[] = {
    v1::ELEMENT_TYPE_F64,  v1::ELEMENT_TYPE_F32,  v1::ELEMENT_TYPE_TF32, v1::ELEMENT_TYPE_F16,
    v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_E4M3, v1::ELEMENT_TYPE_E5M2, v1::ELEMENT_TYPE_E3M2,
    v1::ELEMENT_TYPE_E2M3, v1::ELEMENT_TYPE_E2M1, v1::ELEMENT_TYPE_S8,   v1::ELEMENT_TYPE_U8,
    v1::ELEMENT_TYPE_S4,   v1::ELEMENT_TYPE_U4,   v1::ELEMENT_TYPE_B1};

TEST(PayloadTest, IntegersOfEveryTypeAreCheckedExactly) {
  for (const v1::ElementType type : kTypes) {
    LoadProduct product = Product(type);
    product.batch = 2;
    // Either order with every width of an element.
    for (const v1::Order order : {v1::ORDER_ROW_MAJOR, v1::ORDER_COLUMN_MAJOR}) {
      product.b_order = order;
      const auto payload = MakePayload(product, OperandValues::kIntegers, 5);
      ASSERT_THAT(payload, IsOk()) << ElementTypeName(type);
      ASSERT_TRUE(payload->fingerprint.has_value()) << ElementTypeName(type);
      const v1::MultiplyResponse right = RightAnswer(*payload->request, AccumulationOf(type));
      EXPECT_THAT(CheckAnswer(*payload, right), IsOk()) << ElementTypeName(type);
      // Operands that are all zeros would pass anything.
      EXPECT_NE(right.d().data(), std::string(right.d().data().size(), '\0'));
      EXPECT_EQ(payload->request->b().order(), order);
    }
  }
}

TEST(PayloadTest, SumsMayBeLeftToTheTensorCore) {
  LoadProduct product = Product(v1::ELEMENT_TYPE_E4M3);
  for (const bool is_fast : {false, true}) {
    product.fast_accumulation = is_fast;
    const auto payload = MakePayload(product, OperandValues::kNormal, 5);
    ASSERT_THAT(payload, IsOk());
    EXPECT_EQ(payload->request->fast_accumulation(), is_fast);
  }
}

TEST(PayloadTest, EveryWrongElementIsFound) {
  const auto payload =
      MakePayload(Product(v1::ELEMENT_TYPE_BF16), OperandValues::kIntegers, 5).value();
  const v1::MultiplyResponse right = RightAnswer(*payload.request, v1::ELEMENT_TYPE_F32);
  for (size_t i = 0; i < 63; ++i) {
    for (const float wrong : {1e9F, 0.5F, std::nanf(""), HUGE_VALF}) {
      v1::MultiplyResponse response = right;
      std::memcpy(response.mutable_d()->mutable_data()->data() + 4 * i, &wrong, 4);
      EXPECT_THAT(CheckAnswer(payload, response),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("d[0, ")))
          << i << " " << wrong;
    }
  }
}

TEST(PayloadTest, AnswersOfAnotherShapeAreWrong) {
  const auto payload =
      MakePayload(Product(v1::ELEMENT_TYPE_F32), OperandValues::kIntegers, 5).value();
  const v1::MultiplyResponse right = RightAnswer(*payload.request, v1::ELEMENT_TYPE_F32);
  EXPECT_THAT(CheckAnswer(payload, {}), StatusIs(absl::StatusCode::kDataLoss));
  v1::MultiplyResponse fewer_rows = right;
  fewer_rows.mutable_d()->set_rows(8);
  EXPECT_THAT(CheckAnswer(payload, fewer_rows), StatusIs(absl::StatusCode::kDataLoss));
  v1::MultiplyResponse lying = right;
  lying.mutable_d()->set_leading_dimension(1 << 20);
  EXPECT_THAT(CheckAnswer(payload, lying), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(PayloadTest, SparseOperandsAreCheckedExactly) {
  for (const v1::ElementType type : {v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_S8}) {
    const auto payload = MakePayload(Product(type, true), OperandValues::kIntegers, 5);
    ASSERT_THAT(payload, IsOk());
    EXPECT_EQ(payload->request->a().sparsity(), v1::SPARSITY_2_4);
    EXPECT_THAT(CheckAnswer(*payload, RightAnswer(*payload->request, AccumulationOf(type))),
                IsOk());
  }
  EXPECT_THAT(MakePayload(Product(v1::ELEMENT_TYPE_F64, true), OperandValues::kIntegers, 5),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("p: ")));
}

TEST(PayloadTest, RoundedResultsAreCheckedWithinABound) {
  LoadProduct rounded = Product(v1::ELEMENT_TYPE_BF16);
  rounded.output_type = v1::ELEMENT_TYPE_BF16;
  LoadProduct normal = Product(v1::ELEMENT_TYPE_F32);
  for (const auto& [product, values] :
       {std::pair(rounded, OperandValues::kIntegers), std::pair(normal, OperandValues::kNormal)}) {
    const auto payload = MakePayload(product, values, 5);
    ASSERT_THAT(payload, IsOk());
    EXPECT_FALSE(payload->fingerprint.has_value());
    const v1::ElementType type = product.output_type == v1::ELEMENT_TYPE_UNSPECIFIED
                                     ? v1::ELEMENT_TYPE_F32
                                     : product.output_type;
    v1::MultiplyResponse answer = RightAnswer(*payload->request, type);
    EXPECT_THAT(CheckAnswer(*payload, answer), IsOk());
    (*answer.mutable_d()->mutable_data())[static_cast<size_t>(ElementBits(type) / 8) - 1] ^= 0x04;
    EXPECT_THAT(CheckAnswer(*payload, answer),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("d[0, 0, 0]: got ")));
  }
}

TEST(PayloadTest, DeepProductsOfNarrowFloatsAreNotExact) {
  LoadProduct product = Product(v1::ELEMENT_TYPE_E4M3);
  product.k = 10000;
  EXPECT_FALSE(MakePayload(product, OperandValues::kIntegers, 5).value().fingerprint.has_value());
}

TEST(PayloadTest, RefusesWhatNoMessageHolds) {
  LoadProduct product = Product(v1::ELEMENT_TYPE_F64);
  product.m = product.k = 1 << 20;
  EXPECT_THAT(MakePayload(product, OperandValues::kIntegers, 5),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("bytes of operands, want less than 2^31")));
  product = Product(v1::ELEMENT_TYPE_S8);
  product.m = product.n = 1 << 28;
  product.k = 1;
  EXPECT_THAT(
      MakePayload(product, OperandValues::kIntegers, 5),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bytes of d, want less than 2^31")));
}

}  // namespace
}  // namespace gemmd
