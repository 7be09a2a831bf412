// SPDX-License-Identifier: Apache-2.0
//
// The positions of metadata compared with the four forms in which sm_90 was observed to read it,
// given here by thread of a quad and bit number.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/mma/fragment.h"
#include "kernels/mma/instructions.h"
#include "kernels/sim/unit.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

using mma::Instruction;
using mma::kInstructions;
using mma::MetadataField;
using mma::Sparsity;

// With threads counted from the first of the four that own a row.
struct BitPlace {
  int thread;
  int bit;
};

// One of the forms: the place of a chunk's nibble in the rows g and g + 8.
struct Form {
  int chunks;
  int selectors;
  BitPlace (*upper)(int selector, int chunk);
  BitPlace (*lower)(int selector, int chunk);
};

constexpr Form kFourChunks = {4, 4,
                              [](int s, int c) {
                                return BitPlace{s, 4 * c};
                              },
                              [](int s, int c) {
                                return BitPlace{s, 16 + 4 * c};
                              }};
// The first four chunks in one thread, the others in the next.
constexpr Form kEightWideChunks = {
    8, 2,
    [](int s, int c) {
      return c < 4 ? BitPlace{2 * s, 4 * c} : BitPlace{2 * s + 1, 4 * (c - 4)};
    },
    [](int s, int c) {
      return c < 4 ? BitPlace{2 * s, 16 + 4 * c} : BitPlace{2 * s + 1, 16 + 4 * (c - 4)};
    }};
// One thread for each half of the rows.
constexpr Form kEightNarrowChunks = {8, 2,
                                     [](int s, int c) {
                                       return BitPlace{2 * s, 4 * c};
                                     },
                                     [](int s, int c) {
                                       return BitPlace{2 * s + 1, 4 * c};
                                     }};
constexpr Form kSixteenChunks = {16, 1,
                                 [](int, int c) {
                                   return c < 8 ? BitPlace{0, 4 * c} : BitPlace{2, 4 * (c - 8)};
                                 },
                                 [](int, int c) {
                                   return c < 8 ? BitPlace{1, 4 * c} : BitPlace{3, 4 * (c - 8)};
                                 }};

// By shape and width of the operands in registers.
const Form& FormOf(const Instruction& instruction) {
  const int bits = mma::ContainerBits(instruction, mma::Operand::kA);
  const int k = instruction.k;
  if (bits == 16) return k == 16 ? kFourChunks : kEightWideChunks;
  if (bits == 32) return k == 8 ? kFourChunks : kEightWideChunks;
  if (bits == 8) return k == 32 ? kEightNarrowChunks : kSixteenChunks;
  return k == 64 ? kEightNarrowChunks : kSixteenChunks;
}

std::vector<const Instruction*> SparseInstructions() {
  std::vector<const Instruction*> sparse;
  for (const Instruction& instruction : kInstructions) {
    if (instruction.is_sparse()) sparse.push_back(&instruction);
  }
  return sparse;
}

// Places in a group of the first and the last kept element, in ascending order.
struct KeptPair {
  int first;
  int last;
};

std::vector<KeptPair> LegalPairs(Sparsity sparsity) {
  switch (sparsity) {
    case Sparsity::kNone: return {};
    case Sparsity::kOneOfTwo: return {{0, 0}, {1, 1}};
    case Sparsity::kTwoOfFour: return {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
    case Sparsity::kFourOfEight: return {{0, 3}, {0, 5}, {0, 7}, {2, 5}, {2, 7}, {4, 7}};
  }
  return {};
}

std::string Describe(const Instruction& instruction, int selector) {
  return std::string(mma::NameOf(instruction).view()) + ", selector " + std::to_string(selector);
}

TEST(Metadata, SparsityFollowsFromTheOperands) {
  const auto sparsity = [](std::string_view name) {
    return mma::SparsityOf(*mma::FindInstruction(name));
  };
  EXPECT_EQ(sparsity("mma.m16n8k16.f32.f16.f16.f32"), Sparsity::kNone);
  EXPECT_EQ(sparsity("mma.sp.m16n8k32.f32.bf16.bf16.f32"), Sparsity::kTwoOfFour);
  EXPECT_EQ(sparsity("mma.sp.m16n8k8.f32.tf32.tf32.f32"), Sparsity::kOneOfTwo);
  EXPECT_EQ(sparsity("mma.sp.m16n8k64.s32.s4.u4.s32"), Sparsity::kFourOfEight);
  EXPECT_EQ(sparsity("mma.sp.m16n8k64.kind::f8f6f4.f32.e2m1.e2m1.f32"), Sparsity::kTwoOfFour);
  EXPECT_EQ(
      sparsity("mma.sp.m16n8k128.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"),
      Sparsity::kFourOfEight);
  EXPECT_EQ(sparsity("wgmma.sp.m64n8k64.s32.u8.u8"), Sparsity::kTwoOfFour);
}

TEST(Metadata, LiesWhereTheChipReadsIt) {
  for (const Instruction* instruction : SparseInstructions()) {
    const Form& form = FormOf(*instruction);
    ASSERT_EQ(mma::MetadataGroups(*instruction), form.chunks) << Describe(*instruction, -1);
    ASSERT_EQ(mma::SelectorCount(*instruction), form.selectors) << Describe(*instruction, -1);
    for (int selector = 0; selector < form.selectors; ++selector) {
      for (int row = 0; row < instruction->m; ++row) {
        const int row_of_warp = row % 16;
        const auto place_of = row_of_warp < 8 ? form.upper : form.lower;
        const int first_lane = 32 * (row / 16) + 4 * (row_of_warp % 8);
        for (int chunk = 0; chunk < form.chunks; ++chunk) {
          const BitPlace want = place_of(selector, chunk);
          const MetadataField got = mma::MetadataFieldOf(*instruction, selector, row, chunk);
          ASSERT_EQ(got.lane, first_lane + want.thread)
              << Describe(*instruction, selector) << ", row " << row << ", chunk " << chunk;
          ASSERT_EQ(got.first_bit, want.bit)
              << Describe(*instruction, selector) << ", row " << row << ", chunk " << chunk;
        }
      }
    }
  }
}

// Every nibble that an instruction reads, and no other.
TEST(Metadata, GroupsAreFoundFromLanes) {
  for (const Instruction* instruction : SparseInstructions()) {
    for (int selector = 0; selector < mma::SelectorCount(*instruction); ++selector) {
      int held = 0;
      for (int lane = 0; lane < instruction->lanes(); ++lane) {
        for (int nibble = 0; nibble < 8; ++nibble) {
          const mma::MetadataGroup got = mma::MetadataGroupOf(*instruction, selector, lane, nibble);
          if (!got.is_held) continue;
          ++held;
          ASSERT_EQ(mma::MetadataFieldOf(*instruction, selector, got.row, got.group),
                    (MetadataField{lane, 4 * nibble}))
              << Describe(*instruction, selector) << ", lane " << lane << ", nibble " << nibble;
          const mma::MetadataGroup first =
              mma::MetadataGroupOf(*instruction, selector, lane, nibble / 4 * 4);
          EXPECT_EQ(got.row, first.row);
          EXPECT_EQ(got.group, first.group + nibble % 4);
        }
      }
      EXPECT_EQ(held, instruction->m * mma::MetadataGroups(*instruction))
          << Describe(*instruction, selector);
    }
  }
}

TEST(Metadata, NeverSharesBits) {
  for (const Instruction* instruction : SparseInstructions()) {
    for (int selector = 0; selector < mma::SelectorCount(*instruction); ++selector) {
      std::set<std::pair<int, int>> bits;
      for (int row = 0; row < instruction->m; ++row) {
        for (int group = 0; group < mma::MetadataGroups(*instruction); ++group) {
          const MetadataField field = mma::MetadataFieldOf(*instruction, selector, row, group);
          ASSERT_GE(field.lane, 0);
          ASSERT_LT(field.lane, instruction->lanes());
          for (int bit = field.first_bit; bit < field.first_bit + 4; ++bit) {
            ASSERT_LT(bit, 32);
            EXPECT_TRUE(bits.insert({field.lane, bit}).second)
                << Describe(*instruction, selector) << ", row " << row << ", group " << group;
          }
        }
      }
    }
  }
}

// The codes of the manual: 0x4 means elements 0 and 1, and so on; in 4:8, pairs.
TEST(Metadata, NibblesAreThoseOfTheManual) {
  const std::array<unsigned, 6> kCodes = {0x4, 0x8, 0xc, 0x9, 0xd, 0xe};
  for (const Sparsity sparsity : {Sparsity::kTwoOfFour, Sparsity::kFourOfEight}) {
    const std::vector<KeptPair> pairs = LegalPairs(sparsity);
    ASSERT_EQ(pairs.size(), kCodes.size());
    for (size_t i = 0; i < pairs.size(); ++i) {
      EXPECT_EQ(mma::NibbleOf(sparsity, pairs[i].first, pairs[i].last), kCodes[i]);
    }
  }
  EXPECT_EQ(mma::NibbleOf(Sparsity::kOneOfTwo, 0, 0), 0x4u);
  EXPECT_EQ(mma::NibbleOf(Sparsity::kOneOfTwo, 1, 1), 0xeu);
}

TEST(Metadata, NibbleAndKeptElementsAreInverse) {
  for (const Sparsity sparsity :
       {Sparsity::kTwoOfFour, Sparsity::kOneOfTwo, Sparsity::kFourOfEight}) {
    const int kept = mma::GroupSize(sparsity) / 2;
    for (const KeptPair& pair : LegalPairs(sparsity)) {
      const unsigned nibble = mma::NibbleOf(sparsity, pair.first, pair.last);
      EXPECT_EQ(mma::KeptElement(sparsity, nibble, 0), pair.first);
      EXPECT_EQ(mma::KeptElement(sparsity, nibble, kept - 1), pair.last);
      for (int i = 1; i < kept; ++i) {
        EXPECT_LT(mma::KeptElement(sparsity, nibble, i - 1), mma::KeptElement(sparsity, nibble, i));
      }
    }
  }
}

// Random legal choices for every group, as logical k.
std::vector<int> RandomPattern(const Instruction& instruction, RandomSource& random) {
  const Sparsity sparsity = mma::SparsityOf(instruction);
  const int group_size = mma::GroupSize(sparsity);
  const std::vector<KeptPair> pairs = LegalPairs(sparsity);
  std::vector<int> a_k;
  for (int row = 0; row < instruction.m; ++row) {
    for (int group = 0; group < instruction.k / group_size; ++group) {
      const auto choice =
          static_cast<size_t>(random.Between(0, static_cast<int>(pairs.size()) - 1));
      const KeptPair& pair = pairs[choice];
      const int base = group * group_size;
      a_k.push_back(base + pair.first);
      if (sparsity == Sparsity::kOneOfTwo) continue;
      if (sparsity == Sparsity::kFourOfEight) {
        a_k.push_back(base + pair.first + 1);
        a_k.push_back(base + pair.last - 1);
      }
      a_k.push_back(base + pair.last);
    }
  }
  return a_k;
}

TEST(Metadata, DecodesToWhatWasEncoded) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (const Instruction* instruction : SparseInstructions()) {
    for (int selector = 0; selector < mma::SelectorCount(*instruction); ++selector) {
      const std::vector<int> a_k = RandomPattern(*instruction, random);
      ASSERT_EQ(a_k.size(), static_cast<size_t>(instruction->m * instruction->a_columns()));
      std::vector<uint32_t> metadata(static_cast<size_t>(instruction->lanes()), ~0u);
      sim::EncodeMetadata(*instruction, a_k, selector, metadata);
      std::vector<int> decoded(a_k.size(), -1);
      sim::DecodeMetadata(*instruction, metadata, selector, decoded);
      EXPECT_EQ(decoded, a_k) << Describe(*instruction, selector);
    }
  }
}

// Lanes that the selector leaves out are neither read nor, by our encoder, written.
TEST(Metadata, IgnoresLanesThatTheSelectorLeavesOut) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const Instruction& instruction = *mma::FindInstruction("mma.sp.m16n8k16.f32.f16.f16.f32");
  const std::vector<int> a_k = RandomPattern(instruction, random);
  std::vector<uint32_t> metadata(32);
  sim::EncodeMetadata(instruction, a_k, 2, metadata);
  for (size_t lane = 0; lane < metadata.size(); ++lane) {
    if (lane % 4 == 2) continue;
    EXPECT_EQ(metadata[lane], 0u) << lane;
    metadata[lane] = static_cast<uint32_t>(random.Bits());
  }
  std::vector<int> decoded(a_k.size());
  sim::DecodeMetadata(instruction, metadata, 2, decoded);
  EXPECT_EQ(decoded, a_k);
}

}  // namespace
}  // namespace gemmd
