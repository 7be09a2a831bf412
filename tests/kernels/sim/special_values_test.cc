// SPDX-License-Identifier: Apache-2.0
//
// NaN and infinities in fused sums: every cause gives the same NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "tests/kernels/sim/dot_rig.h"

namespace gemmd {
namespace {

// Bits of a type from which specials are made.
struct Bits {
  uint64_t one;
  uint64_t minus_two;
  uint64_t infinity;
  uint64_t sign;
  std::array<uint64_t, 3> nans;  // Quiet, with payload and sign; signalling.
};

constexpr Bits BitsFor(ElementType type) {
  switch (type) {
    case ElementType::kF16: return {0x3c00, 0xc000, 0x7c00, 0x8000, {0x7e01, 0xff55, 0x7c01}};
    case ElementType::kBf16: return {0x3f80, 0xc000, 0x7f80, 0x8000, {0x7fc1, 0xffd5, 0x7f81}};
    case ElementType::kTf32:
      return {0x3f800000, 0xc0000000, 0x7f800000, 0x80000000, {0x7fc02000, 0xffd5e000, 0x7f802000}};
    case ElementType::kF32:
      return {0x3f800000, 0xc0000000, 0x7f800000, 0x80000000, {0x7fc00001, 0xffd55555, 0x7f800001}};
    case ElementType::kE5m2: return {0x3c, 0xc0, 0x7c, 0x80, {0x7e, 0xff, 0x7d}};
    case ElementType::kE4m3: return {0x38, 0xc0, 0, 0x80, {0x7f, 0xff, 0x7f}};
    default: return {};
  }
}

constexpr std::array kInstructions = {"mma.m16n8k16.f32.f16.f16.f32",
                                      "mma.m16n8k16.f32.bf16.bf16.f32",
                                      "mma.m16n8k8.f32.tf32.tf32.f32",
                                      "mma.m16n8k16.f16.f16.f16.f16",
                                      "mma.m16n8k32.f32.e5m2.e5m2.f32",
                                      "mma.m16n8k32.f16.e5m2.e5m2.f16",
                                      "mma.sp.m16n8k32.f32.f16.f16.f32",
                                      "mma.sp.m16n8k64.f32.e5m2.e5m2.f32",
                                      "wgmma.m64n8k16.f32.f16.f16",
                                      "wgmma.m64n8k16.f16.f16.f16",
                                      "wgmma.m64n8k32.f32.e5m2.e5m2",
                                      "wgmma.m64n8k32.f16.e5m2.e5m2",
                                      "wgmma.sp.m64n8k64.f32.e5m2.e5m2",
                                      "wmma.m16n16k16.row.col.f16.f16.f16.f32",
                                      "wmma.m16n16k16.row.col.f32.f16.f16.f16"};

class SpecialValues : public testing::TestWithParam<const char*> {
 protected:
  SpecialValues()
      : rig_(GetParam(), mma::Chip::kSm90),
        x_(BitsFor(rig_.instruction().a)),
        c_(BitsFor(rig_.instruction().c)),
        is_f16_(rig_.instruction().d == ElementType::kF16) {}

  uint64_t nan() const { return is_f16_ ? 0x7fff : 0x7fffffff; }
  uint64_t infinity() const { return is_f16_ ? 0x7c00 : 0x7f800000; }
  uint64_t minus_infinity() const { return is_f16_ ? 0xfc00 : 0xff800000; }

  DotRig rig_;
  const Bits x_;
  const Bits c_;
  const bool is_f16_;
};

TEST_P(SpecialValues, NanIsAlwaysTheSame) {
  for (const uint64_t nan_bits : x_.nans) {
    EXPECT_EQ(rig_.Multiply({{nan_bits}, {x_.one}, c_.one}), nan());
    EXPECT_EQ(rig_.Multiply({{x_.one}, {nan_bits}, c_.one}), nan());
    EXPECT_EQ(rig_.Multiply({{0}, {nan_bits}, 0}), nan());
    EXPECT_EQ(rig_.Multiply({{x_.infinity, nan_bits}, {x_.one, x_.one}, 0}), nan());
  }
  for (const uint64_t nan_bits : c_.nans) {
    EXPECT_EQ(rig_.Multiply({{x_.one}, {x_.one}, nan_bits}), nan());
    EXPECT_EQ(rig_.Multiply({{x_.infinity}, {x_.one}, nan_bits}), nan());
  }
}

TEST_P(SpecialValues, InvalidOperationsGiveNan) {
  EXPECT_EQ(rig_.Multiply({{x_.infinity}, {0}, c_.one}), nan());
  EXPECT_EQ(rig_.Multiply({{x_.sign}, {x_.infinity}, c_.one}), nan());
  EXPECT_EQ(rig_.Multiply({{x_.infinity, x_.infinity | x_.sign}, {x_.one, x_.one}, 0}), nan());
  EXPECT_EQ(rig_.Multiply({{x_.infinity}, {x_.one}, c_.infinity | c_.sign}), nan());
}

TEST_P(SpecialValues, InfinitiesKeepTheirSign) {
  EXPECT_EQ(rig_.Multiply({{x_.infinity}, {x_.minus_two}, c_.one}), minus_infinity());
  EXPECT_EQ(rig_.Multiply({{x_.infinity | x_.sign}, {x_.minus_two}, c_.one}), infinity());
  EXPECT_EQ(rig_.Multiply({{x_.one}, {x_.one}, c_.infinity}), infinity());
  EXPECT_EQ(rig_.Multiply({{x_.infinity}, {x_.one}, c_.infinity}), infinity());
}

std::string TestName(const testing::TestParamInfo<const char*>& row) {
  std::string name(row.param);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Sm90, SpecialValues, testing::ValuesIn(kInstructions), TestName);

// The low 13 bits of tf32 are cleared before its class is determined.
TEST(SpecialValuesOfTf32, IgnoreTheLowBits) {
  for (const char* name : {"mma.m16n8k8.f32.tf32.tf32.f32", "mma.m16n8k4.f32.tf32.tf32.f32",
                           "wgmma.m64n8k8.f32.tf32.tf32", "mma.sp.m16n8k16.f32.tf32.tf32.f32"}) {
    DotRig rig(name, mma::Chip::kSm90);
    EXPECT_EQ(rig.Multiply({{0x7f800001}, {0x3f800000}, 0}), 0x7f800000u) << name;
    EXPECT_EQ(rig.Multiply({{0x7f801fff}, {0x00001fff}, 0}), 0x7fffffffu) << name;
    EXPECT_EQ(rig.Multiply({{0x3f801fff}, {0x3f800fff}, 0}), 0x3f800000u) << name;
  }
}

// e4m3 has NaN but no infinity.
TEST(SpecialValuesOfE4m3, AreNanAlone) {
  for (const char* name : {"mma.m16n8k32.f32.e4m3.e4m3.f32", "wgmma.m64n8k32.f32.e4m3.e4m3"}) {
    DotRig rig(name, mma::Chip::kSm90);
    EXPECT_EQ(rig.Multiply({{0x7f}, {0}, 0}), 0x7fffffffu) << name;
    EXPECT_EQ(rig.Multiply({{0xff}, {0x38}, 0}), 0x7fffffffu) << name;
    EXPECT_EQ(rig.Multiply({{0x7e}, {0x38}, 0}), 0x43e00000u) << name;  // 448.
  }
}

}  // namespace
}  // namespace gemmd
