// SPDX-License-Identifier: Apache-2.0
//
// Matrices with a factor for each block, as they are sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "client/matrix/block_factors.h"
#include "gemmd/element_codec.h"
#include "gemmd/prepare.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

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

// Each is the least that will do.
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
  EXPECT_EQ(message(v1::ELEMENT_TYPE_S8, {}, four),
            "type: got s8, want e4m3, e5m2, e3m2, e2m3 or e2m1");
  EXPECT_EQ(message(v1::ELEMENT_TYPE_E4M3, {v1::FACTOR_TYPE_F32, 0, 4}, four),
            "format: got blocks of 0x4, want 1x1 or more");
  EXPECT_THAT(message(v1::ELEMENT_TYPE_E4M3, {v1::FACTOR_TYPE_UNSPECIFIED}, four),
              HasSubstr("want F32, UE8M0 or UE4M3"));
  EXPECT_EQ(message(v1::ELEMENT_TYPE_E4M3, {}, {1, 2, 3}), "values: got 3, want 2x2");
  EXPECT_THAT(message(v1::ELEMENT_TYPE_E4M3, {}, {1, 2, NAN, 4}), HasSubstr("at [1, 0]"));
}

}  // namespace
}  // namespace gemmd
