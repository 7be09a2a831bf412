// SPDX-License-Identifier: Apache-2.0
//
// Records the simulator instead of a GPU: the player reads everything that the recorder writes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "kernels/bench/record/recording.h"
#include "kernels/bench/record/variants.h"
#include "kernels/matrix/element.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/instructions.h"
#include "tests/vectors/replay.h"

namespace gemmd {
namespace {

constexpr uint64_t kSeed = 20260101;

std::vector<OperandFamily> AllFamilies() {
  std::vector<OperandFamily> families;
  for (int i = 0; i < kOrdinaryFamilies; ++i) families.push_back({FamilySet::kOrdinary, i});
  for (int i = 0; i < kDirectedFamilies; ++i) families.push_back({FamilySet::kDirected, i});
  return families;
}

const mma::Instruction& Named(const char* name) { return *mma::FindInstruction(name); }

class RecordTest : public testing::TestWithParam<mma::Chip> {
 protected:
  RecordTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                ("gemmd_record_" + std::string(mma::NameOf(GetParam())) + "_" +
                 std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~RecordTest() override { std::filesystem::remove_all(folder_); }

  ReplayResult WriteAndReplay(const Variant& variant, const Recording& recording) const {
    const std::string path = (folder_ / (NameOf(variant) + ".bin")).string();
    EXPECT_TRUE(WriteFile(path, recording));
    ReplayResult result = ReplayFile(path, GetParam());
    std::filesystem::remove(path);
    return result;
  }

  const std::filesystem::path folder_;
};

// Each variant with three of the families, which differ from variant to variant: every kind of
// variant gets all of them.
TEST_P(RecordTest, PlaysBackAndSeesOneWrongBit) {
  const std::vector<OperandFamily> all = AllFamilies();
  size_t next = 0;
  for (const Variant& variant : VariantsOf(GetParam(), {})) {
    SCOPED_TRACE(NameOf(variant));
    std::vector<OperandFamily> families;
    while (families.size() < 3) families.push_back(all[next++ % all.size()]);
    Recording recording = MakeInputs(variant, families, families.size(), kSeed + next);
    recording.d = Simulate(variant, GetParam(), recording);
    const ReplayResult good = WriteAndReplay(variant, recording);
    ASSERT_EQ(good.error, "");
    ASSERT_EQ(good.cases, 3);
    ASSERT_EQ(good.mismatches, 0) << good.first;

    recording.d[(next * 7919) % recording.d.size()] ^= 1u << next % 32;
    const ReplayResult bad = WriteAndReplay(variant, recording);
    ASSERT_EQ(bad.error, "");
    ASSERT_EQ(bad.mismatches, 1);
  }
}

TEST_P(RecordTest, NamesEveryVariantOnce) {
  std::set<std::string> names;
  for (const Variant& variant : VariantsOf(GetParam(), {.has_all_widths = true})) {
    const std::string name = NameOf(variant);
    EXPECT_TRUE(names.insert(name).second) << name;
    const std::optional<Variant> found = FindVariant(name);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->instruction, variant.instruction) << name;
    EXPECT_EQ(found->selector, variant.selector) << name;
  }
  for (const mma::Instruction& instruction : mma::kInstructions) {
    if (mma::SupportOn(instruction, GetParam()) == mma::Support::kUnavailable) continue;
    EXPECT_TRUE(names.contains(NameOf(
        Variant{&instruction, instruction.is_sparse() ? SelectorCount(instruction) - 1 : 0})));
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, RecordTest, testing::ValuesIn(mma::kAllChips),
                         [](const auto& test) { return std::string(mma::NameOf(test.param)); });

TEST(SelectionTest, TakesAPatternAndFewWidths) {
  EXPECT_EQ(VariantsOf(mma::Chip::kSm90, {.filter = "mma.sp.m16n8k16.f32.f16*"}).size(), 4u);
  EXPECT_EQ(VariantsOf(mma::Chip::kSm90, {.filter = "wgmma.m64n*k16.f32.f16*"}).size(), 3u);
  EXPECT_EQ(
      VariantsOf(mma::Chip::kSm90, {.filter = "wgmma.m64n*k16.f32.f16*", .has_all_widths = true})
          .size(),
      32u);
  EXPECT_TRUE(VariantsOf(mma::Chip::kSm80, {.filter = "wgmma*"}).empty());
}

TEST(InputsTest, FollowFromTheSeed) {
  const Variant variant = {&Named("mma.sp.m16n8k32.f32.f16.f16.f32"), 1};
  const Recording one = MakeInputs(variant, AllFamilies(), 20, 1);
  const Recording same = MakeInputs(variant, AllFamilies(), 20, 1);
  const Recording other = MakeInputs(variant, AllFamilies(), 20, 2);
  EXPECT_EQ(one.cases, 20u);
  EXPECT_EQ(one.a, same.a);
  EXPECT_EQ(one.b, same.b);
  EXPECT_EQ(one.c, same.c);
  EXPECT_EQ(one.metadata, same.metadata);
  EXPECT_NE(one.a, other.a);
  EXPECT_NE(one.metadata, other.metadata);
}

// Lanes that the selector does not choose hold metadata too.
TEST(InputsTest, HoldLegalMetadataInEveryLane) {
  for (const char* name : {"mma.sp.m16n8k16.f32.f16.f16.f32", "mma.sp.m16n8k8.f32.tf32.tf32.f32",
                           "mma.sp.m16n8k64.s32.s4.s4.s32", "wgmma.sp.m64n8k64.s32.s8.s8"}) {
    const Variant variant = {&Named(name), 0};
    const bool keeps_one = SparsityOf(*variant.instruction) == mma::Sparsity::kOneOfTwo;
    const Recording inputs = MakeInputs(variant, AllFamilies(), 20, kSeed);
    ASSERT_EQ(inputs.metadata.size(), 20u * static_cast<size_t>(variant.instruction->lanes()));
    std::set<unsigned> seen;
    for (const uint32_t word : inputs.metadata) {
      for (int bit = 0; bit < 32; bit += 4) seen.insert(word >> bit & 15);
    }
    const std::set<unsigned> legal =
        keeps_one ? std::set<unsigned>{0x4, 0xe} : std::set<unsigned>{4, 8, 9, 12, 13, 14};
    EXPECT_EQ(seen, legal) << name;
  }
}

// Counts of the results of one family, here of f16 sums.
struct Outcome {
  int nan = 0;
  int infinite = 0;
  int zero = 0;
  int subnormal = 0;
  int other = 0;
};

Outcome OutcomeOf(OperandFamily family) {
  const Variant variant = {&Named("mma.m16n8k16.f16.f16.f16.f16"), 0};
  Outcome outcome;
  const Recording inputs = MakeInputs(variant, {family}, 16, kSeed);
  for (const uint32_t word : Simulate(variant, mma::Chip::kSm90, inputs)) {
    for (const uint32_t bits : {word & 0xffff, word >> 16}) {
      const double value = std::abs(Decode(ElementType::kF16, bits));
      const bool is_small = value < std::ldexp(1, -14);
      ++(std::isnan(value)   ? outcome.nan
         : std::isinf(value) ? outcome.infinite
         : value == 0        ? outcome.zero
         : is_small          ? outcome.subnormal
                             : outcome.other);
    }
  }
  return outcome;
}

TEST(FamiliesTest, ReachWhatTheyAreNamedFor) {
  const Outcome normal = OutcomeOf({FamilySet::kOrdinary, 0});
  EXPECT_EQ(normal.nan + normal.infinite, 0);
  const Outcome any = OutcomeOf({FamilySet::kOrdinary, 2});
  EXPECT_GT(any.nan, 0);
  EXPECT_GT(any.infinite, 0);
  EXPECT_GT(any.other, 0);
  EXPECT_GT(OutcomeOf({FamilySet::kOrdinary, 5}).subnormal, 0);
  const Outcome zeros = OutcomeOf({FamilySet::kOrdinary, 7});
  EXPECT_GT(zeros.zero, 0);
  const Outcome large = OutcomeOf({FamilySet::kOrdinary, 8});
  EXPECT_GT(large.infinite, 0);
  EXPECT_GT(large.other, 0);
  EXPECT_GT(OutcomeOf({FamilySet::kDirected, 0}).subnormal, 0);
  const Outcome threshold = OutcomeOf({FamilySet::kDirected, 5});
  EXPECT_GT(threshold.infinite, 100);
  EXPECT_GT(threshold.other, 100);
  EXPECT_GT(OutcomeOf({FamilySet::kDirected, 6}).subnormal, 0);
  const Outcome specials = OutcomeOf({FamilySet::kDirected, 7});
  EXPECT_GT(specials.nan, 0);
  EXPECT_GT(specials.infinite, 0);
  EXPECT_GT(specials.zero + specials.other, 0);
}

}  // namespace
}  // namespace gemmd
