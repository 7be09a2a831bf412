// SPDX-License-Identifier: Apache-2.0
//
// Conversion to other types, scaled and pruned matrices, and C++ types for elements.
#include "gemmd/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "client/matrix/verify.h"
#include "client/sparse_operand.h"
#include "gemmd/element_codec.h"
#include "gemmd/storage_types.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/testing/random_source.h"
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

// They take no time, and no memory for their lines.
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

v1::BlockScale WireOf(const OwnedMatrix& matrix) {
  v1::BlockScale wire;
  wire.set_type(matrix.factor_type);
  wire.set_rows_per_block(matrix.rows_per_block);
  wire.set_k_per_block(matrix.k_per_block);
  wire.set_factors(matrix.factors);
  return wire;
}

double ElementAt(const OwnedMatrix& matrix, int64_t row, int64_t column) {
  const auto line = static_cast<size_t>(matrix.data.size()) / static_cast<size_t>(matrix.rows);
  const absl::string_view data(matrix.data);
  return ElementValue(
      matrix.type, LoadElement(matrix.type, data.substr(static_cast<size_t>(row) * line), column));
}

TEST(QuantizeBlocksTest, ElementsTimesFactorsAreTheValues) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  constexpr int64_t kRows = 9;
  constexpr int64_t kColumns = 70;
  std::vector<float> values(kRows * kColumns);
  for (float& value : values) value = static_cast<float>(random.AnyMagnitude(-9, 9));
  std::fill(values.begin() + 2 * kColumns, values.begin() + 3 * kColumns, 0.0F);
  struct Form {
    v1::ElementType type;
    double step;  // Half a step of an element, relative to the block's largest.
    BlockFormat format;
  };
  const std::vector<Form> forms = {
      {v1::ELEMENT_TYPE_E4M3, 0x1p-4, {v1::FACTOR_TYPE_F32, 1, 128}},
      {v1::ELEMENT_TYPE_E4M3, 0x1p-4, {v1::FACTOR_TYPE_F32, 4, 16, false}},
      {v1::ELEMENT_TYPE_E5M2, 0x1p-3, {v1::FACTOR_TYPE_UE8M0, 1, 32}},
      {v1::ELEMENT_TYPE_E2M1, 0x1p-2, {v1::FACTOR_TYPE_UE8M0, 1, 32}},
      {v1::ELEMENT_TYPE_E2M3, 0x1p-4, {v1::FACTOR_TYPE_UE8M0, 2, 7, false}},
      {v1::ELEMENT_TYPE_E3M2, 0x1p-3, {v1::FACTOR_TYPE_UE4M3, 1, 16}},
  };
  for (const Form& form : forms) {
    SCOPED_TRACE(static_cast<int>(form.type));
    const auto matrix = QuantizeBlocks(values, kRows, kColumns, form.type, form.format);
    ASSERT_THAT(matrix, IsOk());
    const bool is_along = form.format.is_k_along_rows;
    const v1::BlockScale wire = WireOf(*matrix);
    const BlockFactors factors(wire, is_along ? kRows : kColumns, is_along ? kColumns : kRows);
    const auto factor_at = [&](int64_t i, int64_t j) {
      return is_along ? factors.At(0, i, j) : factors.At(0, j, i);
    };
    const double largest = RoundToElement(form.type, 1e30);
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) {
        const double value = values[static_cast<size_t>(i * kColumns + j)];
        const double factor = factor_at(i, j);
        // Magnitudes beyond the largest factor of ue4m3 saturate; there are none here.
        ASSERT_LE(std::fabs(value), factor * largest * (1 + 1e-6));
        const double error = std::fabs(ElementAt(*matrix, i, j) * factor - value);
        ASSERT_TRUE(error <= form.step * std::max(std::fabs(value), factor)) << i << " " << j;
      }
    }
    EXPECT_EQ(factor_at(2, 0) > 0, true);
    EXPECT_EQ(matrix->view().blocks.k_per_block, form.format.depth);
    EXPECT_EQ(matrix->view().blocks.factors.size(), matrix->factors.size());
  }
}

// Each factor is the smallest that suffices.
TEST(QuantizeBlocksTest, FactorsAreTheLeast) {
  const auto factor_of = [](float magnitude, v1::ElementType type, v1::FactorType factor) {
    const auto matrix = QuantizeBlocks(std::vector<float>{magnitude}, 1, 1, type, {factor, 1, 1});
    return matrix->factors;
  };
  const auto e8m0 = v1::FACTOR_TYPE_UE8M0;
  EXPECT_EQ(factor_of(6, v1::ELEMENT_TYPE_E2M1, e8m0), "\x7f");
  EXPECT_EQ(factor_of(6.01F, v1::ELEMENT_TYPE_E2M1, e8m0), "\x80");
  EXPECT_EQ(factor_of(3, v1::ELEMENT_TYPE_E2M1, e8m0), "\x7e");
  EXPECT_EQ(factor_of(448, v1::ELEMENT_TYPE_E4M3, e8m0), "\x7f");
  EXPECT_EQ(factor_of(1e-45F, v1::ELEMENT_TYPE_E4M3, e8m0), std::string(1, '\0'));
  EXPECT_EQ(factor_of(std::numeric_limits<float>::max(), v1::ELEMENT_TYPE_E2M1, e8m0), "\xfd");
  const auto e4m3 = v1::FACTOR_TYPE_UE4M3;
  EXPECT_EQ(factor_of(6, v1::ELEMENT_TYPE_E2M1, e4m3), "\x38");
  EXPECT_EQ(factor_of(6.1F, v1::ELEMENT_TYPE_E2M1, e4m3), "\x39");
  EXPECT_EQ(factor_of(1e-9F, v1::ELEMENT_TYPE_E2M1, e4m3), "\x01");
  EXPECT_EQ(factor_of(1e9F, v1::ELEMENT_TYPE_E2M1, e4m3), "\x7e");
}

TEST(QuantizeBlocksTest, Refusals) {
  const std::vector<float> four = {1, 2, 3, 4};
  const auto message = [&](v1::ElementType type, const BlockFormat& format,
                           const std::vector<float>& values) {
    const auto matrix = QuantizeBlocks(values, 2, 2, type, format);
    EXPECT_EQ(matrix.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(matrix.status().message());
  };
  EXPECT_EQ(message(v1::ELEMENT_TYPE_U8, {}, four),
            "type: got u8, want e4m3, e5m2, e3m2, e2m3, e2m1, s8 or s4");
  EXPECT_EQ(message(v1::ELEMENT_TYPE_E4M3, {v1::FACTOR_TYPE_F32, 0, 4}, four),
            "format: got blocks of 0x4, want 1x1 or more");
  EXPECT_EQ(message(v1::ELEMENT_TYPE_E4M3, {v1::FACTOR_TYPE_UNSPECIFIED}, four),
            "format.type: got unknown value 0, want f32, ue8m0 or ue4m3");
  EXPECT_EQ(message(v1::ELEMENT_TYPE_E4M3, {}, {1, 2, 3}), "values: got 3, want 2x2");
  EXPECT_THAT(message(v1::ELEMENT_TYPE_E4M3, {}, {1, 2, NAN, 4}), HasSubstr("at [1, 0]"));
}

}  // namespace
}  // namespace gemmd
