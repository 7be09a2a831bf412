// SPDX-License-Identifier: Apache-2.0
//
// Which chip has which instruction: what ptxas 13.0 accepted and emitted, read from the code.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"

namespace gemmd {
namespace {

using mma::Chip;
using mma::Instruction;
using mma::kInstructions;
using mma::Support;

constexpr Chip kTargets[] = {Chip::kSm75, Chip::kSm80,  Chip::kSm89,
                             Chip::kSm90, Chip::kSm100, Chip::kSm120};

// On sm_75, 80, 89, 90, 100 and 120: N native, E emulated, - refused.
struct SupportRows {
  std::string_view support;
  std::vector<std::string_view> names;
};

const std::vector<SupportRows>& AssembledRows() {
  static const auto* const rows = new std::vector<SupportRows>{
      {"NEEEEE",
       {"mma.m8n8k4.row.col.f32.f16.f16.f32", "mma.m8n8k4.col.row.f32.f16.f16.f32",
        "mma.m8n8k4.row.row.f16.f16.f16.f16"}},
      {"NNNNNN",
       {"mma.m16n8k8.f16.f16.f16.f16", "mma.m16n8k8.f32.f16.f16.f32", "mma.m8n8k16.s32.s8.s8.s32",
        "mma.m8n8k16.s32.u8.s8.s32", "mma.m8n8k16.s32.u8.u8.s32",
        "mma.m8n8k16.satfinite.s32.s8.s8.s32", "wmma.m16n16k16.row.col.f16.f16.f16.f16",
        "wmma.m16n16k16.row.col.f32.f16.f16.f32", "wmma.m32n8k16.row.col.f16.f16.f16.f16",
        "wmma.m32n8k16.row.col.f32.f16.f16.f32", "wmma.m8n32k16.row.col.f16.f16.f16.f16",
        "wmma.m8n32k16.row.col.f32.f16.f16.f32", "wmma.m16n16k16.row.col.s32.s8.s8.s32",
        "wmma.m16n16k16.row.col.s32.u8.u8.s32", "wmma.m32n8k16.row.col.s32.s8.s8.s32",
        "wmma.m32n8k16.row.col.s32.u8.u8.s32", "wmma.m8n32k16.row.col.s32.s8.s8.s32",
        "wmma.m8n32k16.row.col.s32.u8.u8.s32"}},
      {"-NNNNN",
       {"mma.m16n8k8.f32.bf16.bf16.f32",
        "mma.m16n8k16.f16.f16.f16.f16",
        "mma.m16n8k16.f32.f16.f16.f32",
        "mma.m16n8k16.f32.bf16.bf16.f32",
        "mma.m16n8k4.f32.tf32.tf32.f32",
        "mma.m16n8k8.f32.tf32.tf32.f32",
        "mma.m8n8k4.f64",
        "mma.m16n8k16.s32.s8.s8.s32",
        "mma.m16n8k16.s32.u8.s8.s32",
        "mma.m16n8k16.s32.u8.u8.s32",
        "mma.m16n8k16.satfinite.s32.s8.s8.s32",
        "mma.m16n8k32.s32.s8.s8.s32",
        "mma.m16n8k32.s32.u8.s8.s32",
        "mma.m16n8k32.s32.u8.u8.s32",
        "mma.m16n8k32.satfinite.s32.s8.s8.s32",
        "mma.sp.m16n8k16.f16.f16.f16.f16",
        "mma.sp.m16n8k16.f32.f16.f16.f32",
        "mma.sp.m16n8k16.f32.bf16.bf16.f32",
        "mma.sp.m16n8k32.f16.f16.f16.f16",
        "mma.sp.m16n8k32.f32.f16.f16.f32",
        "mma.sp.m16n8k32.f32.bf16.bf16.f32",
        "mma.sp.m16n8k8.f32.tf32.tf32.f32",
        "mma.sp.m16n8k16.f32.tf32.tf32.f32",
        "mma.sp.m16n8k32.s32.s8.s8.s32",
        "mma.sp.m16n8k32.s32.u8.s8.s32",
        "mma.sp.m16n8k32.s32.u8.u8.s32",
        "mma.sp.m16n8k64.s32.s8.s8.s32",
        "mma.sp.m16n8k64.s32.u8.s8.s32",
        "mma.sp.m16n8k64.s32.u8.u8.s32",
        "wmma.m16n16k16.row.col.f32.bf16.bf16.f32",
        "wmma.m32n8k16.row.col.f32.bf16.bf16.f32",
        "wmma.m8n32k16.row.col.f32.bf16.bf16.f32",
        "wmma.m16n16k8.row.col.f32.tf32.tf32.f32",
        "wmma.m8n8k4.row.col.f64.f64.f64.f64"}},
      {"---NEE", {"mma.m16n8k4.f64", "mma.m16n8k8.f64", "mma.m16n8k16.f64"}},
      {"NNNEEE",
       {"mma.m8n8k32.s32.s4.s4.s32", "mma.m8n8k32.s32.u4.s4.s32", "mma.m8n8k32.s32.u4.u4.s32",
        "mma.m8n8k128.s32.b1.b1.s32.xor.popc", "wmma.m8n8k32.row.col.s32.s4.s4.s32",
        "wmma.m8n8k32.row.col.s32.u4.u4.s32"}},
      {"-NNEEE",
       {"mma.m16n8k32.s32.s4.s4.s32", "mma.m16n8k32.s32.u4.s4.s32", "mma.m16n8k32.s32.u4.u4.s32",
        "mma.m16n8k64.s32.s4.s4.s32", "mma.m16n8k64.s32.u4.s4.s32", "mma.m16n8k64.s32.u4.u4.s32",
        "mma.m16n8k128.s32.b1.b1.s32.xor.popc", "mma.m16n8k256.s32.b1.b1.s32.xor.popc",
        "mma.sp.m16n8k64.s32.s4.s4.s32", "mma.sp.m16n8k64.s32.u4.u4.s32",
        "mma.sp.m16n8k128.s32.s4.s4.s32", "mma.sp.m16n8k128.s32.u4.u4.s32"}},
      {"-NNNEE",
       {"mma.m8n8k128.s32.b1.b1.s32.and.popc", "mma.m16n8k128.s32.b1.b1.s32.and.popc",
        "mma.m16n8k256.s32.b1.b1.s32.and.popc", "wmma.m8n8k128.row.col.s32.b1.b1.s32.and.popc"}},
      {"--NEEN",
       {"mma.m16n8k16.f32.e4m3.e4m3.f32", "mma.m16n8k16.f16.e4m3.e4m3.f16",
        "mma.m16n8k16.f32.e4m3.e5m2.f32", "mma.m16n8k16.f32.e5m2.e5m2.f32",
        "mma.m16n8k16.f16.e5m2.e5m2.f16", "mma.m16n8k32.f32.e4m3.e4m3.f32",
        "mma.m16n8k32.f16.e4m3.e4m3.f16", "mma.m16n8k32.f32.e4m3.e5m2.f32",
        "mma.m16n8k32.f32.e5m2.e5m2.f32", "mma.m16n8k32.f16.e5m2.e5m2.f16",
        "mma.sp.m16n8k64.f32.e4m3.e4m3.f32", "mma.sp.m16n8k64.f32.e4m3.e5m2.f32",
        "mma.sp.m16n8k64.f32.e5m2.e5m2.f32"}},
      {"----EN",
       {"mma.m16n8k32.kind::f8f6f4.f32.e4m3.e4m3.f32",
        "mma.sp.m16n8k64.kind::f8f6f4.f32.e4m3.e4m3.f32"}},
      {"-----N",
       {"mma.m16n8k32.kind::f8f6f4.f32.e4m3.e2m1.f32",
        "mma.m16n8k32.kind::f8f6f4.f32.e3m2.e3m2.f32",
        "mma.m16n8k32.kind::f8f6f4.f32.e2m3.e2m3.f32",
        "mma.m16n8k32.kind::f8f6f4.f32.e2m1.e2m1.f32",
        "mma.m16n8k32.kind::f8f6f4.f32.e5m2.e3m2.f32",
        "mma.m16n8k32.kind::f8f6f4.f16.e2m1.e2m1.f16",
        "mma.m16n8k32.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0",
        "mma.m16n8k32.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e2m1.e2m1.f32.ue8m0",
        "mma.m16n8k32.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e2m1.f32.ue8m0",
        "mma.m16n8k32.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e3m2.e2m3.f32.ue8m0",
        "mma.m16n8k64.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0",
        "mma.m16n8k64.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0",
        "mma.m16n8k64.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3",
        "mma.sp.m16n8k64.f16.e4m3.e4m3.f16",
        "mma.sp.m16n8k64.kind::f8f6f4.f32.e2m1.e2m1.f32",
        "mma.sp.m16n8k64.kind::f8f6f4.f32.e3m2.e2m3.f32",
        "mma.sp.m16n8k64.kind::f8f6f4.f16.e2m1.e2m1.f16",
        "mma.sp.m16n8k64.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0",
        "mma.sp.m16n8k128.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0",
        "mma.sp.m16n8k128.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"}},
  };
  return *rows;
}

Support SupportFromLetter(char letter) {
  return letter == 'N'   ? Support::kNative
         : letter == 'E' ? Support::kEmulated
                         : Support::kUnavailable;
}

TEST(Support, IsWhatPtxasSays) {
  size_t rows = 0;
  for (const SupportRows& group : AssembledRows()) {
    for (const std::string_view name : group.names) {
      ++rows;
      const Instruction* instruction = mma::FindInstruction(name);
      ASSERT_NE(instruction, nullptr) << name;
      for (size_t i = 0; i < std::size(kTargets); ++i) {
        EXPECT_EQ(mma::SupportOn(*instruction, kTargets[i]), SupportFromLetter(group.support[i]))
            << name << " on " << mma::NameOf(kTargets[i]);
      }
    }
  }
  EXPECT_EQ(rows, 115u);
}

TEST(Support, StartsAtTheLeastTarget) {
  for (const Instruction& instruction : kInstructions) {
    for (const Chip chip : mma::kAllChips) {
      if (mma::CapabilityOf(chip) >= instruction.min_target) continue;
      EXPECT_EQ(mma::SupportOn(instruction, chip), Support::kUnavailable)
          << mma::NameOf(instruction).view() << " on " << mma::NameOf(chip);
    }
  }
}

TEST(Support, OfWarpgroupsIsHoppersAlone) {
  for (const Instruction& instruction : kInstructions) {
    if (!instruction.is_warpgroup()) continue;
    EXPECT_EQ(instruction.min_target, 90);
    for (const Chip chip : mma::kAllChips) {
      EXPECT_EQ(mma::SupportOn(instruction, chip),
                chip == Chip::kSm90 ? Support::kNative : Support::kUnavailable)
          << mma::NameOf(instruction).view() << " on " << mma::NameOf(chip);
    }
  }
}

// Volta, for which ptxas 13.0 no longer assembles, has only f16.
TEST(Support, OfVoltaIsF16) {
  for (const Instruction& instruction : kInstructions) {
    const bool is_f16 = instruction.a == ElementType::kF16 &&
                        (instruction.products() == 4 || instruction.family == mma::Family::kWmma);
    EXPECT_EQ(mma::SupportOn(instruction, Chip::kSm70),
              is_f16 ? Support::kNative : Support::kUnavailable)
        << mma::NameOf(instruction).view();
  }
}

// Chips of one architecture have the same instructions.
TEST(Support, IsTheSameAcrossAnArchitecture) {
  for (const Instruction& instruction : kInstructions) {
    EXPECT_EQ(mma::SupportOn(instruction, Chip::kSm80), mma::SupportOn(instruction, Chip::kSm86));
    EXPECT_EQ(mma::SupportOn(instruction, Chip::kSm100), mma::SupportOn(instruction, Chip::kSm103));
  }
}

TEST(Support, TellsALoweringWhereItIsEmulated) {
  for (const Instruction& instruction : kInstructions) {
    for (const Chip chip : mma::kAllChips) {
      EXPECT_EQ(mma::LoweringOn(instruction, chip).empty(),
                mma::SupportOn(instruction, chip) != Support::kEmulated)
          << mma::NameOf(instruction).view() << " on " << mma::NameOf(chip);
    }
  }
}

}  // namespace
}  // namespace gemmd
