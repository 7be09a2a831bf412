// SPDX-License-Identifier: Apache-2.0
//
// Tensors that keep factors of blocks: where the factors lie, those of a part, and every refusal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "server/wire/tensor_convert.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

// Two matrices of s4, 6 x 70, with factors of f32 for blocks of 2 rows and 32 of k: 35 bytes a row
// pair of 70 nibbles.
v1::TensorSpec Spec() {
  v1::TensorSpec spec;
  spec.set_type(v1::ELEMENT_TYPE_S4);
  spec.set_rows(6);
  spec.set_columns(70);
  spec.set_matrices(2);
  v1::BlockScale& blocks = *spec.mutable_scale()->mutable_blocks();
  blocks.set_type(v1::FACTOR_TYPE_F32);
  blocks.set_rows_per_block(2);
  blocks.set_k_per_block(32);
  blocks.set_per_matrix(true);
  return spec;
}

// The whole, as ParsePart has it.
PartOfTensor Whole(const TensorSpec& spec) {
  const absl::StatusOr<PartOfTensor> part = ParsePart("a", v1::TensorPart(), spec);
  EXPECT_THAT(part, IsOk());
  return *part;
}

TEST(TensorBlocksTest, FactorsFollowTheMatricesAtAMultipleOf16) {
  const absl::StatusOr<TensorSpec> spec = ParseTensorSpec(Spec());
  ASSERT_THAT(spec, IsOk());
  ASSERT_TRUE(spec->blocks);
  // 2 matrices of 6 rows of 35 bytes take 420; 2 x 3 x 3 factors of 4 bytes.
  EXPECT_EQ(spec->blocks->offset, 432);
  EXPECT_EQ(spec->bytes, 432 + 2 * 3 * 3 * 4);
  EXPECT_FALSE(spec->blocks->is_k_along_columns);

  v1::TensorSpec down = Spec();
  down.set_k_along_columns(true);
  const absl::StatusOr<TensorSpec> columns = ParseTensorSpec(down);
  ASSERT_THAT(columns, IsOk());
  // Blocks of 2 of the 70 columns, and all 6 of k in one.
  EXPECT_EQ(columns->bytes, 432 + 2 * 35 * 1 * 4);
}

TEST(TensorBlocksTest, NothingHasNoFactors) {
  v1::TensorSpec empty = Spec();
  empty.set_rows(0);
  const absl::StatusOr<TensorSpec> spec = ParseTensorSpec(empty);
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->bytes, 0);
}

TEST(TensorBlocksTest, APartHasItsOwnFactors) {
  const TensorSpec spec = *ParseTensorSpec(Spec());
  const absl::StatusOr<BlocksOfPart> all = BlocksOf("b", Whole(spec), spec, false, 2);
  ASSERT_THAT(all, IsOk());
  EXPECT_TRUE(all->blocks.per_matrix);
  EXPECT_EQ(std::pair(all->offset_bytes, all->bytes), std::pair(int64_t{432}, int64_t{72}));

  PartOfTensor part = Whole(spec);
  part.first_matrix = 1;
  part.matrices = 1;
  part.first_row = 2;
  part.rows = 3;
  const absl::StatusOr<BlocksOfPart> rows = BlocksOf("b", part, spec, false, 1);
  ASSERT_THAT(rows, IsOk());
  EXPECT_FALSE(rows->blocks.per_matrix);
  // Past the first matrix's 9 factors, and past one line of blocks of 3; 2 lines of blocks.
  EXPECT_EQ(std::pair(rows->offset_bytes, rows->bytes),
            std::pair(int64_t{432 + (9 + 3) * 4}, int64_t{2 * 3 * 4}));
}

TEST(TensorBlocksTest, PartsThatFactorsDoNotFitAreRefused) {
  const TensorSpec spec = *ParseTensorSpec(Spec());
  struct Case {
    std::function<void(PartOfTensor&)> change;
    bool is_k_along_columns = false;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](PartOfTensor&) {}, true,
       "b.tensor: got k down the tensor's columns, want it along its rows"},
      {[](PartOfTensor& part) { part.columns = 32; }, false,
       "b.tensor: got a part of k, 32, want all 70"},
      {[](PartOfTensor& part) {
         part.first_row = 1;
         part.rows = 4;
         part.matrices = 1;
       },
       false, "b.tensor: got a part that begins at line 1, want the beginning of a block"},
      {[](PartOfTensor& part) { part.rows = 4; }, false,
       "b.tensor: got 4 lines of 2 matrices, want one matrix, or all lines"},
  };
  for (const Case& test : cases) {
    PartOfTensor part = Whole(spec);
    test.change(part);
    EXPECT_THAT(BlocksOf("b", part, spec, test.is_k_along_columns, part.matrices).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test.text)));
  }
}

TEST(TensorBlocksTest, SpecificationsThatMeanNothingAreRefused) {
  struct Case {
    std::function<void(v1::TensorSpec&)> change;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](v1::TensorSpec& spec) {
         spec.clear_scale();
         spec.set_k_along_columns(true);
       },
       "spec.k_along_columns: got true, want false without scale.blocks"},
      {[](v1::TensorSpec& spec) { spec.set_type(v1::ELEMENT_TYPE_F16); },
       "spec.scale.blocks: got factors for elements of type f16, want none"},
      {[](v1::TensorSpec& spec) { spec.set_type(v1::ELEMENT_TYPE_B1); },
       "spec.scale.blocks: got factors for elements of type b1, want none"},
      {[](v1::TensorSpec& spec) {
         spec.set_type(v1::ELEMENT_TYPE_E4M3);
         spec.set_sparsity(v1::SPARSITY_2_4);
       },
       "spec.scale.blocks: got factors of a sparse tensor, want none"},
      {[](v1::TensorSpec& spec) { spec.mutable_scale()->mutable_blocks()->set_factors("1234"); },
       "spec.scale.blocks.factors: got 4 bytes, want none"},
      {[](v1::TensorSpec& spec) { spec.mutable_scale()->add_values(1); },
       "spec.scale.values: got 1 values, want none beside blocks"},
      {[](v1::TensorSpec& spec) { spec.mutable_scale()->mutable_blocks()->set_k_per_block(0); },
       "spec.scale.blocks.k_per_block: got 0"},
      {[](v1::TensorSpec& spec) {
         spec.set_type(v1::ELEMENT_TYPE_E2M1);
         spec.set_rows(std::numeric_limits<int64_t>::max() / 40);
         spec.set_matrices(1);
         spec.mutable_scale()->mutable_blocks()->set_rows_per_block(1);
         spec.mutable_scale()->mutable_blocks()->set_k_per_block(1);
       },
       "spec.scale.blocks"},
  };
  for (const Case& test : cases) {
    v1::TensorSpec spec = Spec();
    test.change(spec);
    EXPECT_THAT(ParseTensorSpec(spec).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test.text)));
  }
}

}  // namespace
}  // namespace gemmd
