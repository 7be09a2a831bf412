// SPDX-License-Identifier: Apache-2.0
//
// Matrices of other types, scaled and pruned ones, and C++ types for elements.
#include "gemmd/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "client/sparse_operand.h"
#include "gemmd/element_codec.h"
#include "gemmd/storage_types.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

TEST(PrepareTest, StoredElementsConvertAsTheWireSays) {
  EXPECT_EQ(float{Bf16(1.0f)}, 1.0f);
  EXPECT_EQ(Bf16(1.0f).bits, 0x3F80);
  EXPECT_EQ(F16(1.0f).bits, 0x3C00);
  EXPECT_EQ(float{E4m3(1000.0f)}, 448.0f);
  EXPECT_EQ(float{E5m2(3.0f)}, 3.0f);
  EXPECT_TRUE(std::isinf(float{F16(1e6f)}));
  EXPECT_EQ(Bf16::FromBits(0x4000), 2.0f);
  const std::vector<Bf16> values = {Bf16(1), Bf16(2)};
  const MatrixView view = View(values, 1, 2);
  EXPECT_EQ(view.type, v1::ELEMENT_TYPE_BF16);
  EXPECT_EQ(view.data.size(), 4u);
}

TEST(PrepareTest, EncodesEveryTypeAsElementByElement) {
  std::vector<float> values;
  for (const float value : {0.0f, -0.0f, 1.5f, -2.75f, 3.1415926f, 65504.0f, 1e30f, 1e-30f, 448.5f,
                            1.00390625f, 1.01171875f}) {
    values.push_back(value);
  }
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  for (int type = v1::ELEMENT_TYPE_F64; type <= v1::ELEMENT_TYPE_S32; ++type) {
    const auto element = static_cast<v1::ElementType>(type);
    const auto matrix = Encode(values, 3, 4, element);
    ASSERT_THAT(matrix, IsOk());
    const auto decoded = Decode(matrix->view());
    ASSERT_THAT(decoded, IsOk());
    for (size_t i = 0; i < values.size(); ++i) {
      const float want = static_cast<float>(RoundToElement(element, values[i]));
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan((*decoded)[i])) << ElementTypeName(element);
      } else {
        EXPECT_EQ((*decoded)[i], want) << ElementTypeName(element) << " of " << values[i];
      }
    }
  }
  EXPECT_THAT(Encode(values, 3, 5, v1::ELEMENT_TYPE_F32),
              StatusIs(absl::StatusCode::kInvalidArgument, "values: got 12, want 3x5"));
}

TEST(PrepareTest, DecodesColumnsAndPaddingInRowOrder) {
  const std::vector<float> stored = {1, 2, -1, 3, 4};
  MatrixView view = View(stored, 2, 2);
  view.leading_dimension = 3;
  EXPECT_THAT(*Decode(view), ElementsAre(1, 2, 3, 4));
  view.order = v1::ORDER_COLUMN_MAJOR;
  EXPECT_THAT(*Decode(view), ElementsAre(1, 3, 2, 4));
}

TEST(PrepareTest, QuantizesByTheLargestMagnitude) {
  const std::vector<float> values = {1, -2, 4, 100, 50, 25};
  const auto whole = Quantize(values, 2, 3, v1::ELEMENT_TYPE_S8);
  ASSERT_THAT(whole, IsOk());
  EXPECT_THAT(whole->scale, ElementsAre(static_cast<float>(100.0 / 127)));
  EXPECT_THAT(*Decode(whole->view()), ElementsAre(1, -3, 5, 127, 64, 32));
  const auto rows = Quantize(values, 2, 3, v1::ELEMENT_TYPE_E4M3, ScalePer::kRow);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->scale, ElementsAre(4.0f / 448, static_cast<float>(100.0 / 448)));
  EXPECT_THAT(*Decode(rows->view()), ElementsAre(112, -224, 448, 448, 224, 112));
  const auto columns = Quantize(values, 2, 3, v1::ELEMENT_TYPE_S8, ScalePer::kColumn);
  ASSERT_THAT(columns, IsOk());
  EXPECT_EQ(columns->scale.size(), 3u);
  EXPECT_EQ(columns->view().scale.size(), 3u);
  EXPECT_THAT(*Quantize(std::vector<float>(2), 1, 2, v1::ELEMENT_TYPE_U8),
              testing::Field(&OwnedMatrix::scale, ElementsAre(1)));
  EXPECT_THAT(Quantize(values, 2, 3, v1::ELEMENT_TYPE_U8),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "values: got -2 at [0, 1], want a finite value of at least 0"));
  EXPECT_THAT(Quantize(values, 2, 3, v1::ELEMENT_TYPE_BF16),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("type: got bf16")));
  const std::vector<float> nan = {std::nanf("")};
  EXPECT_THAT(Quantize(nan, 1, 1, v1::ELEMENT_TYPE_S8),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PrepareTest, PacksTwoOfFour) {
  const std::vector<float> values = {1, 2, 3, 4, 0, 0, 7, 8};
  const auto dense = Encode(values, 1, 8, v1::ELEMENT_TYPE_BF16);
  ASSERT_THAT(dense, IsOk());
  const auto packed = Pack24(dense->view());
  ASSERT_THAT(packed, IsOk());
  EXPECT_EQ(packed->dropped, 2);
  EXPECT_EQ(packed->sparsity, v1::SPARSITY_2_4);
  v1::Operand operand;
  operand.set_type(packed->type);
  operand.set_data(packed->data);
  OwnedMatrix expanded = *dense;
  expanded.data = ExpandOperand(operand, 1, 8);
  EXPECT_THAT(*Decode(expanded.view()), ElementsAreArray({0, 0, 3, 4, 0, 0, 7, 8}));
  EXPECT_THAT(Pack24(dense->view(), Prune::kRefuse),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 0, group 0")));
  MatrixView padded = dense->view();
  padded.columns = 4;
  padded.leading_dimension = 8;
  EXPECT_THAT(Pack24(padded),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leading_dimension")));
  EXPECT_THAT(Decode(packed->view()), StatusIs(absl::StatusCode::kInvalidArgument));
}

// They are done at once, and none takes memory for its lines.
TEST(PrepareTest, MatricesWithoutElementsMayHaveAnyNumberOfLines) {
  constexpr int64_t kMany = int64_t{1} << 40;
  for (const auto& [rows, columns] : {std::pair{kMany, int64_t{0}}, std::pair{int64_t{0}, kMany},
                                      std::pair<int64_t, int64_t>{}}) {
    for (const v1::ElementType type :
         {v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_F16, v1::ELEMENT_TYPE_S4}) {
      const auto encoded = Encode({}, rows, columns, type);
      ASSERT_THAT(encoded, IsOk());
      EXPECT_EQ(encoded->data, "");
      EXPECT_THAT(*Decode(encoded->view()), testing::IsEmpty());
    }
    for (const ScalePer per : {ScalePer::kMatrix, ScalePer::kRow, ScalePer::kColumn}) {
      const auto quantized = Quantize({}, rows, columns, v1::ELEMENT_TYPE_S8, per);
      ASSERT_THAT(quantized, IsOk());
      EXPECT_EQ(quantized->rows, rows);
      EXPECT_EQ(quantized->columns, columns);
      EXPECT_THAT(quantized->scale, ElementsAre(1));
      EXPECT_EQ(quantized->data, "");
    }
    for (const bool is_k_along_rows : {true, false}) {
      const BlockFormat format = {.lines = 1, .depth = 1, .is_k_along_rows = is_k_along_rows};
      const auto blocks = QuantizeBlocks({}, rows, columns, v1::ELEMENT_TYPE_E4M3, format);
      ASSERT_THAT(blocks, IsOk());
      EXPECT_EQ(blocks->rows, rows);
      EXPECT_EQ(blocks->columns, columns);
      EXPECT_EQ(blocks->factors, "");
      EXPECT_EQ(blocks->data, "");
    }
    const auto packed = Pack24(Encode({}, rows, columns, v1::ELEMENT_TYPE_BF16)->view());
    ASSERT_THAT(packed, IsOk());
    EXPECT_EQ(packed->data, "");
  }
}

}  // namespace
}  // namespace gemmd
