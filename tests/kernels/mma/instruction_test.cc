// SPDX-License-Identifier: Apache-2.0
#include "kernels/mma/instruction.h"

#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "kernels/mma/fragment.h"
#include "kernels/mma/instructions.h"
#include "kernels/mma/ptx.h"

namespace gemmd {
namespace {

using mma::Family;
using mma::Instruction;
using mma::kInstructions;
using mma::Operand;

std::string TextOf(const Instruction& instruction) {
  return std::string(mma::NameOf(instruction).view());
}

TEST(Instruction, NamesAreUniqueAndFound) {
  std::set<std::string> names;
  for (const Instruction& instruction : kInstructions) {
    EXPECT_TRUE(names.insert(TextOf(instruction)).second) << TextOf(instruction);
    EXPECT_EQ(mma::FindInstruction(TextOf(instruction)), &instruction) << TextOf(instruction);
  }
  EXPECT_EQ(mma::FindInstruction("mma.m16n8k16.f32.f16.f16"), nullptr);
  EXPECT_EQ(mma::FindInstruction(""), nullptr);
}

// Compares rows, not names: names would not reveal two different rows with the same name.
TEST(Instruction, RowsDifferInMoreThanTheTarget) {
  for (size_t i = 0; i < kInstructions.size(); ++i) {
    for (size_t j = i + 1; j < kInstructions.size(); ++j) {
      Instruction other = kInstructions[j];
      other.min_target = kInstructions[i].min_target;
      ASSERT_FALSE(kInstructions[i] == other) << TextOf(other);
    }
  }
}

// The multiset of a mnemonic's qualifiers, which are separated by dots.
std::multiset<std::string> QualifiersOf(std::string_view mnemonic) {
  std::multiset<std::string> qualifiers;
  while (!mnemonic.empty()) {
    const size_t dot = mnemonic.find('.');
    qualifiers.insert(std::string(mnemonic.substr(0, dot)));
    mnemonic = dot == std::string_view::npos ? "" : mnemonic.substr(dot + 1);
  }
  return qualifiers;
}

// A name contains nothing that PTX does not, and omits only what is always there.
TEST(Instruction, NamesHaveTheQualifiersOfPtx) {
  for (const Instruction& instruction : kInstructions) {
    const mma::PtxMnemonic ptx = mma::PtxOf(instruction);
    std::multiset<std::string> want = QualifiersOf(ptx.view());
    std::multiset<std::string> got = QualifiersOf(TextOf(instruction));
    for (const char* implied : {"sync", "aligned", "mma_async"}) want.erase(implied);
    if (want.erase("sp::ordered_metadata") > 0) want.insert("sp");
    if (!mma::NamesLayouts(instruction)) {
      want.erase("row");
      want.erase("col");
    }
    // PTX omits the types of wmma's f16 operands, and repeats f64.
    if (instruction.family == Family::kWmma) want.erase(want.find("mma"));
    if (instruction.family == Family::kWmma && instruction.a == ElementType::kF16) {
      want.insert({"f16", "f16"});
    }
    if (TextOf(instruction).ends_with(".f64") && instruction.family == Family::kMma) {
      got.insert({"f64", "f64", "f64"});
    }
    EXPECT_EQ(got, want) << TextOf(instruction) << " and " << ptx.view();
  }
}

TEST(Instruction, MnemonicsAreUnique) {
  std::set<std::string> mnemonics;
  for (const Instruction& instruction : kInstructions) {
    const mma::PtxMnemonic ptx = mma::PtxOf(instruction);
    EXPECT_TRUE(mnemonics.insert(std::string(ptx.view())).second) << ptx.view();
  }
}

// One of each form, as ptxas accepted it when the recordings were made.
TEST(Instruction, MnemonicsAreThoseThatWereAssembled) {
  struct Pair {
    std::string_view name;
    std::string_view ptx;
  };
  constexpr Pair kPairs[] = {
      {"mma.m8n8k4.col.row.f32.f16.f16.f32", "mma.sync.aligned.m8n8k4.col.row.f32.f16.f16.f32"},
      {"mma.m16n8k16.f32.bf16.bf16.f32", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"},
      {"mma.m8n8k4.f64", "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"},
      {"mma.m16n8k16.rz.f64", "mma.sync.aligned.m16n8k16.row.col.rz.f64.f64.f64.f64"},
      {"mma.m16n8k32.satfinite.s32.s8.u8.s32",
       "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32"},
      {"mma.m16n8k64.s32.u4.s4.s32", "mma.sync.aligned.m16n8k64.row.col.s32.u4.s4.s32"},
      {"mma.m16n8k256.s32.b1.b1.s32.xor.popc",
       "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc"},
      {"mma.m16n8k32.f16.e4m3.e5m2.f16", "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16"},
      {"mma.sp.m16n8k16.f32.tf32.tf32.f32",
       "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32"},
      {"mma.sp.m16n8k128.satfinite.s32.s4.s4.s32",
       "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.satfinite.s32.s4.s4.s32"},
      {"mma.sp.m16n8k64.f32.e5m2.e4m3.f32",
       "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e5m2.e4m3.f32"},
      {"wmma.m16n16k16.row.col.f32.f16.f16.f16", "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16"},
      {"wmma.m8n32k16.col.row.f32.bf16.bf16.f32",
       "wmma.mma.sync.aligned.col.row.m8n32k16.f32.bf16.bf16.f32"},
      {"wmma.m32n8k16.row.row.satfinite.s32.u8.u8.s32",
       "wmma.mma.sync.aligned.row.row.m32n8k16.s32.u8.u8.s32.satfinite"},
      {"wmma.m16n16k8.row.col.f32.tf32.tf32.f32",
       "wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32"},
      {"wmma.m8n8k4.col.col.rp.f64.f64.f64.f64",
       "wmma.mma.sync.aligned.col.col.m8n8k4.rp.f64.f64.f64.f64"},
      {"wmma.m8n8k128.row.col.s32.b1.b1.s32.xor.popc",
       "wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32"},
  };
  for (const Pair& pair : kPairs) {
    const Instruction* instruction = mma::FindInstruction(pair.name);
    ASSERT_NE(instruction, nullptr) << pair.name;
    EXPECT_EQ(mma::PtxOf(*instruction).view(), pair.ptx);
  }
}

// Counted from the manual's list: per shape the pairs of types, times .satfinite, rounding,
// layouts.
TEST(Instruction, FamiliesAreComplete) {
  std::map<Family, int> counts;
  for (const Instruction& instruction : kInstructions) ++counts[instruction.family];
  constexpr int kScaledFp4 = 3;                                  // mxf4; mxf4nvf4 2X and 4X.
  constexpr int kNarrowFloats = 2 * 5 * 5 + 5 * 5 + kScaledFp4;  // f8f6f4, mxf8f6f4.
  constexpr int kMma = 2 * 3 + 2 + 4 * 4 + 6 * 4 * 2 + 3 * 2 +
                       2 * 4 * 2                 // f16, tf32, f64, ints, b1, fp8.
                       + kNarrowFloats + 4 * 3;  // m8n8k4 with f16.
  constexpr int kMmaSparse = 2 * 3 + 2 + 4 * 4 * 2 + 2 * 4 + kNarrowFloats;
  constexpr int kWmma = 4 * (3 * (4 + 1 + 2 * 2) + 1 + 4) + 2 * 2 + 2;
  constexpr int kWidths = 32;         // 8 to 256.
  constexpr int kIntegerWidths = 18;  // 8, 16, 24, 32, 48 to 256 by 16.
  constexpr int kFloats = 2 + 1 + 1 + 4 * 2;
  EXPECT_EQ(counts[Family::kMma], kMma);
  EXPECT_EQ(counts[Family::kMmaSparse], kMmaSparse);
  EXPECT_EQ(counts[Family::kWmma], kWmma);
  EXPECT_EQ(counts[Family::kWgmma], kWidths * kFloats + kIntegerWidths * (4 * 2 + 1));
  EXPECT_EQ(counts[Family::kWgmmaSparse], kWidths * kFloats + kIntegerWidths * 4 * 2);
}

// Registers per lane of A, B, and of C and D, as they were recorded; one row per shape and width.
// An f64 register has two words. B of a warpgroup is in shared memory.
struct RecordedRegisters {
  std::string_view name;
  int a;
  int b;
  int c;
};

constexpr RecordedRegisters kRecordedRegisters[] = {
    {"mma.m8n8k4.row.row.f16.f16.f16.f16", 2, 2, 4},
    {"mma.m8n8k4.row.row.f32.f16.f16.f32", 2, 2, 8},
    {"mma.m8n8k4.row.col.f16.f16.f16.f16", 2, 2, 4},
    {"mma.m8n8k4.row.col.f32.f16.f16.f32", 2, 2, 8},
    {"mma.m8n8k4.col.row.f16.f16.f16.f16", 2, 2, 4},
    {"mma.m8n8k4.col.row.f32.f16.f16.f32", 2, 2, 8},
    {"mma.m8n8k4.col.col.f16.f16.f16.f16", 2, 2, 4},
    {"mma.m8n8k4.col.col.f32.f16.f16.f32", 2, 2, 8},
    {"mma.m16n8k8.f16.f16.f16.f16", 2, 1, 2},
    {"mma.m16n8k8.f32.f16.f16.f32", 2, 1, 4},
    {"mma.m16n8k16.f16.f16.f16.f16", 4, 2, 2},
    {"mma.m16n8k16.f32.f16.f16.f32", 4, 2, 4},
    {"mma.m16n8k4.f32.tf32.tf32.f32", 2, 1, 4},
    {"mma.m16n8k8.f32.tf32.tf32.f32", 4, 2, 4},
    {"mma.m8n8k4.f64", 1, 1, 2},
    {"mma.m16n8k4.f64", 2, 1, 4},
    {"mma.m16n8k8.f64", 4, 2, 4},
    {"mma.m16n8k16.f64", 8, 4, 4},
    {"mma.m8n8k4.rz.f64", 1, 1, 2},
    {"mma.m16n8k16.rz.f64", 8, 4, 4},
    {"mma.m8n8k16.s32.s8.s8.s32", 1, 1, 2},
    {"mma.m16n8k16.s32.s8.s8.s32", 2, 1, 4},
    {"mma.m16n8k32.s32.s8.s8.s32", 4, 2, 4},
    {"mma.m8n8k32.s32.s4.s4.s32", 1, 1, 2},
    {"mma.m16n8k32.s32.s4.s4.s32", 2, 1, 4},
    {"mma.m16n8k64.s32.s4.s4.s32", 4, 2, 4},
    {"mma.m8n8k128.s32.b1.b1.s32.xor.popc", 1, 1, 2},
    {"mma.m16n8k128.s32.b1.b1.s32.xor.popc", 2, 1, 4},
    {"mma.m16n8k256.s32.b1.b1.s32.xor.popc", 4, 2, 4},
    {"mma.m16n8k16.f16.e4m3.e4m3.f16", 2, 1, 2},
    {"mma.m16n8k16.f32.e4m3.e4m3.f32", 2, 1, 4},
    {"mma.m16n8k32.f16.e4m3.e4m3.f16", 4, 2, 2},
    {"mma.m16n8k32.f32.e4m3.e4m3.f32", 4, 2, 4},
    {"mma.sp.m16n8k16.f16.f16.f16.f16", 2, 2, 2},
    {"mma.sp.m16n8k32.f16.f16.f16.f16", 4, 4, 2},
    {"mma.sp.m16n8k16.f32.f16.f16.f32", 2, 2, 4},
    {"mma.sp.m16n8k32.f32.f16.f16.f32", 4, 4, 4},
    {"mma.sp.m16n8k8.f32.tf32.tf32.f32", 2, 2, 4},
    {"mma.sp.m16n8k16.f32.tf32.tf32.f32", 4, 4, 4},
    {"mma.sp.m16n8k32.s32.s8.s8.s32", 2, 2, 4},
    {"mma.sp.m16n8k64.s32.s8.s8.s32", 4, 4, 4},
    {"mma.sp.m16n8k64.s32.s4.s4.s32", 2, 2, 4},
    {"mma.sp.m16n8k128.s32.s4.s4.s32", 4, 4, 4},
    {"mma.sp.m16n8k64.f32.e4m3.e4m3.f32", 4, 4, 4},
    {"wgmma.m64n8k16.f32.f16.f16", 4, 0, 4},
    {"wgmma.m64n8k16.f16.f16.f16", 4, 0, 2},
    {"wgmma.m64n8k8.f32.tf32.tf32", 4, 0, 4},
    {"wgmma.m64n8k32.f32.e4m3.e4m3", 4, 0, 4},
    {"wgmma.m64n8k32.f16.e4m3.e4m3", 4, 0, 2},
    {"wgmma.m64n8k32.s32.s8.s8", 4, 0, 4},
    {"wgmma.sp.m64n8k32.f32.f16.f16", 4, 0, 4},
    {"wgmma.sp.m64n8k32.f16.f16.f16", 4, 0, 2},
    {"wgmma.sp.m64n8k16.f32.tf32.tf32", 4, 0, 4},
    {"wgmma.sp.m64n8k64.f32.e4m3.e4m3", 4, 0, 4},
    {"wgmma.sp.m64n8k64.f16.e4m3.e4m3", 4, 0, 2},
    {"wgmma.sp.m64n8k64.s32.s8.s8", 4, 0, 4},
    {"wgmma.m64n8k256.and.popc.s32.b1.b1", 4, 0, 4},
    {"wgmma.m64n32k16.f32.f16.f16", 4, 0, 16},
    {"wgmma.m64n32k16.f16.f16.f16", 4, 0, 8},
    {"wgmma.m64n32k8.f32.tf32.tf32", 4, 0, 16},
    {"wgmma.m64n32k32.f32.e4m3.e4m3", 4, 0, 16},
    {"wgmma.m64n32k32.f16.e4m3.e4m3", 4, 0, 8},
    {"wgmma.m64n32k32.s32.s8.s8", 4, 0, 16},
    {"wgmma.sp.m64n32k32.f32.f16.f16", 4, 0, 16},
    {"wgmma.sp.m64n32k32.f16.f16.f16", 4, 0, 8},
    {"wgmma.sp.m64n32k16.f32.tf32.tf32", 4, 0, 16},
    {"wgmma.sp.m64n32k64.f32.e4m3.e4m3", 4, 0, 16},
    {"wgmma.sp.m64n32k64.f16.e4m3.e4m3", 4, 0, 8},
    {"wgmma.sp.m64n32k64.s32.s8.s8", 4, 0, 16},
    {"wgmma.m64n32k256.and.popc.s32.b1.b1", 4, 0, 16},
};

TEST(Instruction, RegistersAreThoseThatWereRecorded) {
  for (const RecordedRegisters& row : kRecordedRegisters) {
    const Instruction* instruction = mma::FindInstruction(row.name);
    ASSERT_NE(instruction, nullptr) << row.name;
    const int words = BitsOf(instruction->a) == 64 ? 2 : 1;
    EXPECT_EQ(mma::WordsPerLane(*instruction, Operand::kA), words * row.a) << row.name;
    EXPECT_EQ(mma::WordsPerLane(*instruction, Operand::kB), words * row.b) << row.name;
    EXPECT_EQ(mma::WordsPerLane(*instruction, Operand::kC), words * row.c) << row.name;
    EXPECT_EQ(mma::WordsPerLane(*instruction, Operand::kD), words * row.c) << row.name;
  }
}

}  // namespace
}  // namespace gemmd
