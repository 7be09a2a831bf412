// SPDX-License-Identifier: Apache-2.0
//
// Instructions and their fragments over the wire. Expected values are from the PTX manual.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/mma/instructions.h"
#include "tests/server/wire/running_server.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

class InstructionTest : public ::testing::Test {
 protected:
  grpc::Status List(const std::string& chip, const std::string& pattern,
                    v1::ListInstructionsResponse* response) {
    v1::ListInstructionsRequest request;
    request.set_chip(chip);
    request.set_name_pattern(pattern);
    grpc::ClientContext context;
    AllowTime(context);
    return running_.registry().ListInstructions(&context, request, response);
  }

  v1::Instruction Find(const std::string& name) {
    v1::ListInstructionsResponse response;
    EXPECT_TRUE(List("", name, &response).ok());
    EXPECT_EQ(response.instructions_size(), 1) << name;
    return response.instructions_size() == 1 ? response.instructions(0) : v1::Instruction();
  }

  grpc::Status Describe(const std::string& name, v1::FragmentOperand operand, int selector,
                        v1::DescribeFragmentResponse* response) {
    v1::DescribeFragmentRequest request;
    request.set_instruction(name);
    request.set_operand(operand);
    request.set_selector(selector);
    grpc::ClientContext context;
    AllowTime(context);
    return running_.registry().DescribeFragment(&context, request, response);
  }

  // The elements that one lane holds, in order: (row, column).
  std::vector<std::pair<int, int>> PlacesOf(const std::string& name, v1::FragmentOperand operand,
                                            int lane, int selector = 0) {
    v1::DescribeFragmentResponse response;
    const grpc::Status status = Describe(name, operand, selector, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::pair<int, int>> places;
    for (const v1::FragmentEntry& entry : response.entries()) {
      if (entry.lane() == lane) places.emplace_back(entry.row(), entry.column());
    }
    return places;
  }

  RunningServer running_{TestDevice::kFake};
};

std::map<std::string, v1::ChipSupport> ByChip(const v1::Instruction& instruction) {
  std::map<std::string, v1::ChipSupport> chips;
  for (const v1::ChipSupport& chip : instruction.chips()) chips[chip.chip()] = chip;
  return chips;
}

TEST_F(InstructionTest, ListsTheWholeTableInOrder) {
  v1::ListInstructionsResponse response;
  ASSERT_TRUE(List("", "", &response).ok());
  ASSERT_EQ(response.instructions_size(), static_cast<int>(mma::kInstructions.size()));
  for (int i = 0; i < response.instructions_size(); ++i) {
    const mma::Instruction& instruction = mma::kInstructions[static_cast<size_t>(i)];
    EXPECT_EQ(response.instructions(i).name(), mma::NameOf(instruction).view());
    EXPECT_EQ(response.instructions(i).chips_size(), 9);
  }
}

TEST_F(InstructionTest, TellsTheFactsOfASparseOne) {
  const v1::Instruction sparse = Find("mma.sp.m16n8k32.f32.bf16.bf16.f32");
  EXPECT_EQ(sparse.family(), "mma.sp");
  EXPECT_EQ((std::vector<int>{sparse.m(), sparse.n(), sparse.k()}), (std::vector<int>{16, 8, 32}));
  EXPECT_EQ(sparse.a_type(), v1::ELEMENT_TYPE_BF16);
  EXPECT_EQ(sparse.d_type(), v1::ELEMENT_TYPE_F32);
  EXPECT_EQ(sparse.a_layout() + sparse.b_layout(), "rowcol");
  EXPECT_EQ(sparse.lanes(), 32);
  EXPECT_EQ(sparse.a_registers(), 4);
  EXPECT_EQ(sparse.b_registers(), 4);
  EXPECT_EQ(sparse.c_registers(), 4);
  EXPECT_EQ(sparse.d_registers(), 4);
  EXPECT_EQ(sparse.sparsity(), "2:4");
  EXPECT_EQ(sparse.selectors(), 2);
  EXPECT_EQ(sparse.scale_type(), "");
  EXPECT_EQ(sparse.min_target(), "sm_80");
  EXPECT_EQ(Find("mma.sp.m16n8k8.f32.tf32.tf32.f32").sparsity(), "1:2");
  EXPECT_EQ(Find("mma.sp.m16n8k64.s32.s4.s4.s32").sparsity(), "4:8");
}

TEST_F(InstructionTest, TellsWhatElseThereIs) {
  const v1::Instruction warpgroup = Find("wgmma.m64n256k16.f32.f16.f16");
  EXPECT_EQ(warpgroup.lanes(), 128);
  EXPECT_EQ(warpgroup.a_registers(), 4);
  EXPECT_EQ(warpgroup.b_registers(), 0);
  EXPECT_EQ(warpgroup.d_registers(), 128);
  const v1::Instruction scaled =
      Find("mma.m16n8k64.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3");
  EXPECT_EQ(scaled.scale_type(), "ue4m3");
  EXPECT_EQ(scaled.scale_block(), 16);
  const v1::Instruction four = Find("mma.m8n8k4.col.row.f32.f16.f16.f32");
  EXPECT_EQ(four.products(), 4);
  EXPECT_EQ(four.a_layout() + four.b_layout(), "colrow");
}

TEST_F(InstructionTest, TellsWhichChipHasIt) {
  auto chips = ByChip(Find("mma.m16n8k64.s32.s4.s4.s32"));
  EXPECT_EQ(chips["sm_75"].support(), v1::INSTRUCTION_SUPPORT_UNAVAILABLE);
  EXPECT_EQ(chips["sm_80"].support(), v1::INSTRUCTION_SUPPORT_NATIVE);
  EXPECT_EQ(chips["sm_80"].lowering(), "");
  EXPECT_EQ(chips["sm_90"].support(), v1::INSTRUCTION_SUPPORT_EMULATED);
  EXPECT_THAT(chips["sm_90"].lowering(), HasSubstr("8-bit"));
  v1::ListInstructionsResponse response;
  ASSERT_TRUE(List("sm_80", "wgmma*", &response).ok());
  EXPECT_EQ(response.instructions_size(), 0);
  ASSERT_TRUE(List("sm_90", "wgmma*", &response).ok());
  EXPECT_EQ(response.instructions_size(), 1074);
  ASSERT_TRUE(List("sm_70", "mma.*", &response).ok());
  EXPECT_EQ(response.instructions_size(), 12);
  for (const v1::Instruction& instruction : response.instructions()) {
    EXPECT_EQ(ByChip(instruction)["sm_70"].support(), v1::INSTRUCTION_SUPPORT_NATIVE);
  }
}

TEST_F(InstructionTest, DescribesFragmentsAsTheManualDoes) {
  const std::string f16 = "mma.m16n8k16.f32.f16.f16.f32";
  using Places = std::vector<std::pair<int, int>>;
  EXPECT_EQ(PlacesOf(f16, v1::FRAGMENT_OPERAND_A, 5),
            (Places{{1, 2}, {1, 3}, {9, 2}, {9, 3}, {1, 10}, {1, 11}, {9, 10}, {9, 11}}));
  EXPECT_EQ(PlacesOf(f16, v1::FRAGMENT_OPERAND_B, 5), (Places{{2, 1}, {3, 1}, {10, 1}, {11, 1}}));
  EXPECT_EQ(PlacesOf(f16, v1::FRAGMENT_OPERAND_C, 5), (Places{{1, 2}, {1, 3}, {9, 2}, {9, 3}}));
  EXPECT_EQ(PlacesOf(f16, v1::FRAGMENT_OPERAND_D, 31), (Places{{7, 6}, {7, 7}, {15, 6}, {15, 7}}));
  v1::DescribeFragmentResponse response;
  ASSERT_TRUE(Describe(f16, v1::FRAGMENT_OPERAND_A, 0, &response).ok());
  EXPECT_EQ(response.instruction().name(), f16);
  EXPECT_EQ(response.rows(), 16);
  EXPECT_EQ(response.columns(), 16);
  EXPECT_EQ(response.type(), v1::ELEMENT_TYPE_F16);
  EXPECT_EQ(response.entries(3).first_bit(), 48);
}

TEST_F(InstructionTest, Fp4InBytesHasAContainerOfItsOwn) {
  v1::DescribeFragmentResponse response;
  ASSERT_TRUE(
      Describe("mma.m16n8k32.kind::f8f6f4.f32.e2m1.e2m1.f32", v1::FRAGMENT_OPERAND_A, 0, &response)
          .ok());
  EXPECT_EQ(response.element_bits(), 4);
  EXPECT_EQ(response.container_bits(), 8);
  EXPECT_EQ(response.container_shift(), 2);
  EXPECT_EQ(response.entries(1).first_bit(), 8);
}

TEST_F(InstructionTest, DescribesMetadataBySelector) {
  // The selector of m16n8k16 selects the lane of each quad, that of m16n8k32 a pair of lanes.
  using Places = std::vector<std::pair<int, int>>;
  const Places all = {{1, 0}, {1, 1}, {1, 2}, {1, 3}, {9, 0}, {9, 1}, {9, 2}, {9, 3}};
  const std::string shallow = "mma.sp.m16n8k16.f32.f16.f16.f32";
  EXPECT_EQ(PlacesOf(shallow, v1::FRAGMENT_OPERAND_METADATA, 6, 2), all);
  EXPECT_EQ(PlacesOf(shallow, v1::FRAGMENT_OPERAND_METADATA, 5, 2), Places());
  const std::string deep = "mma.sp.m16n8k32.f32.f16.f16.f32";
  EXPECT_EQ(PlacesOf(deep, v1::FRAGMENT_OPERAND_METADATA, 6, 1), all);
  EXPECT_EQ(PlacesOf(deep, v1::FRAGMENT_OPERAND_METADATA, 5, 0),
            (Places{{1, 4}, {1, 5}, {1, 6}, {1, 7}, {9, 4}, {9, 5}, {9, 6}, {9, 7}}));
}

class FragmentTest : public InstructionTest {
 protected:
  // Each position is held equally often, each element of a lane once, in whole registers.
  void ExpectWholeFragments(const std::string& name) {
    for (const v1::FragmentOperand operand :
         {v1::FRAGMENT_OPERAND_A, v1::FRAGMENT_OPERAND_B, v1::FRAGMENT_OPERAND_C,
          v1::FRAGMENT_OPERAND_D, v1::FRAGMENT_OPERAND_METADATA}) {
      v1::DescribeFragmentResponse fragment;
      if (!Describe(name, operand, 0, &fragment).ok()) continue;
      std::map<std::tuple<int, int, int>, int> holders;
      std::map<std::pair<int, int>, int> elements;
      for (const v1::FragmentEntry& entry : fragment.entries()) {
        ++holders[{entry.product(), entry.row(), entry.column()}];
        ++elements[{entry.lane(), entry.first_bit()}];
      }
      const int places =
          fragment.rows() * fragment.columns() *
          (operand == v1::FRAGMENT_OPERAND_METADATA ? 1 : fragment.instruction().products());
      ASSERT_EQ(holders.size(), static_cast<size_t>(places)) << name << " " << operand;
      ASSERT_EQ(elements.size(), static_cast<size_t>(fragment.entries_size())) << name;
      for (const auto& [place, count] : holders) {
        ASSERT_EQ(count, fragment.entries_size() / places) << name << " " << operand;
      }
    }
  }
};
using FragmentExhaustive = FragmentTest;

// The first instruction of each family, and every hundredth.
TEST_F(FragmentTest, FragmentsOfEveryFamilyAreWhole) {
  std::set<std::string> families;
  for (size_t i = 0; i < mma::kInstructions.size(); ++i) {
    const std::string name(mma::NameOf(mma::kInstructions[i]).view());
    const bool is_first = families.insert(name.substr(0, name.find(".m"))).second;
    if (is_first || i % 100 == 0) ExpectWholeFragments(name);
  }
}

TEST_F(FragmentExhaustive, FragmentsOfEveryFamilyAreWhole) {
  for (size_t i = 0; i < mma::kInstructions.size(); i += 17) {
    ExpectWholeFragments(std::string(mma::NameOf(mma::kInstructions[i]).view()));
  }
}

TEST_F(InstructionTest, RefusesWithTheNearestNames) {
  v1::ListInstructionsResponse list;
  grpc::Status status = List("sm_91", "", &list);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("nearest: sm_90"));
  v1::DescribeFragmentResponse fragment;
  status = Describe("mma.m16n8k16.f16.f32", v1::FRAGMENT_OPERAND_A, 0, &fragment);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("nearest: mma.m16n8k16.f"));
}

TEST_F(InstructionTest, RefusesOperandsAndSelectorsThatAreNot) {
  const std::string dense = "mma.m16n8k16.f32.f16.f16.f32";
  const std::string sparse = "mma.sp.m16n8k32.f32.f16.f16.f32";
  const std::string warpgroup = "wgmma.m64n8k16.f32.f16.f16";
  const auto refused = [&](const std::string& name, v1::FragmentOperand operand, int selector) {
    v1::DescribeFragmentResponse fragment;
    const grpc::Status status = Describe(name, operand, selector, &fragment);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_EQ(refused(warpgroup, v1::FRAGMENT_OPERAND_B, 0),
            "operand: got B of a warpgroup, which is read from shared memory, want A, C or D");
  EXPECT_EQ(refused(dense, v1::FRAGMENT_OPERAND_METADATA, 0),
            "operand: got METADATA of a dense instruction, want A, B, C or D");
  EXPECT_EQ(refused(sparse, v1::FRAGMENT_OPERAND_UNSPECIFIED, 0),
            "operand: got none, want A, B, C, D or METADATA");
  EXPECT_THAT(refused(dense, static_cast<v1::FragmentOperand>(99), 0), HasSubstr("99"));
  EXPECT_EQ(refused(sparse, v1::FRAGMENT_OPERAND_METADATA, 2), "selector: got 2, want 0 to 1");
  EXPECT_EQ(refused(sparse, v1::FRAGMENT_OPERAND_METADATA, -1), "selector: got -1, want 0 to 1");
  EXPECT_EQ(refused(sparse, v1::FRAGMENT_OPERAND_A, 1), "selector: got 1, want 0");
}

}  // namespace
}  // namespace gemmd
