// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/issue_ceiling.h"

#include <gtest/gtest.h>

#include "kernels/kernel.h"
#include "kernels/mma/instructions.h"

namespace gemmd::bench {
namespace {

double Tera(const char* name) {
  const Target h200 = {.kind = DeviceKind::kCuda, .chip = mma::Chip::kSm90, .multiprocessors = 132};
  return IssueCeilingOf(*mma::FindInstruction(name), h200).value_or(0) / 1e12;
}

TEST(IssueCeilingTest, IsWhatWasMeasured) {
  EXPECT_DOUBLE_EQ(Tera("mma.m16n8k16.f32.bf16.bf16.f32"), 630);
  EXPECT_DOUBLE_EQ(Tera("mma.m16n8k16.f16.f16.f16.f16"), 630);
  EXPECT_DOUBLE_EQ(Tera("mma.m16n8k8.f32.f16.f16.f32"), 454);
  EXPECT_DOUBLE_EQ(Tera("mma.m16n8k8.f32.tf32.tf32.f32"), 315);
  EXPECT_DOUBLE_EQ(Tera("mma.m16n8k16.f64"), 66.4);
  EXPECT_DOUBLE_EQ(Tera("mma.m16n8k32.s32.u8.s8.s32"), 1260);
  EXPECT_DOUBLE_EQ(Tera("mma.m16n8k256.s32.b1.b1.s32.and.popc"), 10094);
  EXPECT_DOUBLE_EQ(Tera("mma.sp.m16n8k32.f32.f16.f16.f32"), 930);
  EXPECT_DOUBLE_EQ(Tera("mma.sp.m16n8k64.s32.s8.s8.s32"), 1869);
}

TEST(IssueCeilingTest, OfWhatNobodyMeasuredThereIsNone) {
  EXPECT_EQ(Tera("mma.m16n8k256.s32.b1.b1.s32.xor.popc"), 0);
  EXPECT_EQ(Tera("mma.m16n8k32.f32.e4m3.e4m3.f32"), 0);
  EXPECT_EQ(Tera("mma.m16n8k16.rz.f64"), 0);
  EXPECT_EQ(Tera("mma.m16n8k32.satfinite.s32.s8.s8.s32"), 0);
  EXPECT_EQ(Tera("wmma.m16n16k16.row.col.f32.f16.f16.f32"), 0);
  const mma::Instruction& half = *mma::FindInstruction("mma.m16n8k16.f32.f16.f16.f32");
  EXPECT_FALSE(IssueCeilingOf(half, {.chip = mma::Chip::kSm80, .multiprocessors = 132}));
  EXPECT_FALSE(IssueCeilingOf(half, {.chip = mma::Chip::kSm90, .multiprocessors = 114}));
}

}  // namespace
}  // namespace gemmd::bench
