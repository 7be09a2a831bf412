// SPDX-License-Identifier: Apache-2.0
//
// Integers and bits: exact, modulo 2^32 or clamped once for each instruction.
#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "tests/kernels/sim/dot_rig.h"

namespace gemmd {
namespace {

using mma::Chip;
using Names = std::vector<std::string_view>;

std::vector<uint64_t> Repeated(size_t count, uint64_t bits) {
  return std::vector<uint64_t>(count, bits);
}

uint64_t Multiply(std::string_view name, const Dot& dot, Chip chip = Chip::kSm90) {
  DotRig rig(name, chip);
  return rig.Multiply(dot);
}

// Sixteen products of 127 * 127 and as many of the opposite sign.
Dot Opposites(uint64_t c) {
  Dot dot = {Repeated(16, 0x7f), Repeated(32, 0x7f), c};
  dot.a.resize(32, 0x81);
  return dot;
}

// Clamping after each half of k would give less than C.
TEST(Integers, SaturateOnce) {
  for (const std::string_view name :
       {"mma.m16n8k32.satfinite.s32.s8.s8.s32", "mma.sp.m16n8k64.satfinite.s32.s8.s8.s32",
        "wgmma.m64n8k32.satfinite.s32.s8.s8", "wgmma.sp.m64n8k64.satfinite.s32.s8.s8"}) {
    EXPECT_EQ(Multiply(name, Opposites(0x7fffff00)), 0x7fffff00u) << name;
    EXPECT_EQ(Multiply(name, Opposites(0x80000010)), 0x80000010u) << name;
    EXPECT_EQ(Multiply(name, {{0x7f}, {0x7f}, 0x7fffff00}), 0x7fffffffu) << name;
    EXPECT_EQ(Multiply(name, {{0x81}, {0x7f}, 0x80000100}), 0x80000000u) << name;
    EXPECT_EQ(Multiply(name, {{0x01}, {0x01}, 0x7ffffffe}), 0x7fffffffu) << name;
  }
  for (const std::string_view name :
       {"mma.m16n8k64.satfinite.s32.s4.s4.s32", "mma.sp.m16n8k128.satfinite.s32.s4.s4.s32"}) {
    EXPECT_EQ(Multiply(name, {{0x7}, {0x7}, 0x7ffffff0}), 0x7fffffffu) << name;
    EXPECT_EQ(Multiply(name, {{0x7, 0x9}, {0x7, 0x7}, 0x7ffffff0}), 0x7ffffff0u) << name;
  }
}

TEST(Integers, WrapWithoutSatfinite) {
  for (const std::string_view name : {"mma.m16n8k32.s32.s8.s8.s32", "mma.sp.m16n8k64.s32.s8.s8.s32",
                                      "wgmma.m64n8k32.s32.s8.s8", "wgmma.sp.m64n8k64.s32.s8.s8"}) {
    EXPECT_EQ(Multiply(name, {{0x7f}, {0x7f}, 0x7fffff00}), 0x80003e01u) << name;
    EXPECT_EQ(Multiply(name, {Repeated(32, 0x80), Repeated(32, 0x80), 0x7fffffff}), 0x8007ffffu)
        << name;
    EXPECT_EQ(Multiply(name, {{0x81}, {0x7f}, 0x80000000}), 0x7fffc0ffu) << name;
  }
}

// -128 or 128 times -1 or 255; -8 or 8 times -1 or 15.
TEST(Integers, TakeTheSignsOfTheirTypes) {
  const Dot bytes = {{0x80}, {0xff}, 0};
  EXPECT_EQ(Multiply("mma.m16n8k32.s32.s8.s8.s32", bytes), 128u);
  EXPECT_EQ(Multiply("mma.m16n8k32.s32.s8.u8.s32", bytes), 0xffff8080u);
  EXPECT_EQ(Multiply("mma.m16n8k32.s32.u8.s8.s32", bytes), 0xffffff80u);
  EXPECT_EQ(Multiply("mma.m16n8k32.s32.u8.u8.s32", bytes), 0x7f80u);
  EXPECT_EQ(Multiply("wgmma.m64n8k32.s32.s8.u8", bytes), 0xffff8080u);
  EXPECT_EQ(Multiply("wgmma.sp.m64n8k64.s32.u8.s8", bytes), 0xffffff80u);
  const Dot nibbles = {{0x8}, {0xf}, 0};
  EXPECT_EQ(Multiply("mma.m16n8k64.s32.s4.s4.s32", nibbles), 8u);
  EXPECT_EQ(Multiply("mma.m16n8k64.s32.s4.u4.s32", nibbles), 0xffffff88u);
  EXPECT_EQ(Multiply("mma.m16n8k64.s32.u4.s4.s32", nibbles), 0xfffffff8u);
  EXPECT_EQ(Multiply("mma.m16n8k64.s32.u4.u4.s32", nibbles), 120u);
}

TEST(Integers, SumAllOfK) {
  EXPECT_EQ(Multiply("mma.m16n8k32.s32.u8.u8.s32", {Repeated(32, 0xff), Repeated(32, 0xff), 0}),
            2080800u);
  EXPECT_EQ(Multiply("mma.m16n8k64.s32.u4.u4.s32", {Repeated(64, 0xf), Repeated(64, 0xf), 0}),
            14400u);
  EXPECT_EQ(Multiply("mma.sp.m16n8k128.s32.s4.s4.s32", {Repeated(64, 0x8), Repeated(64, 0x8), 0}),
            4096u);
  EXPECT_EQ(Multiply("wmma.m8n8k32.row.col.s32.u4.u4.s32", {Repeated(32, 0xf), Repeated(32, 1), 0}),
            480u);
}

TEST(Bits, AreCounted) {
  const std::vector<uint64_t> ones = Repeated(256, 1);
  std::vector<uint64_t> even = Repeated(256, 0);
  std::vector<uint64_t> odd = Repeated(256, 0);
  for (size_t k = 0; k < 256; ++k) (k % 2 == 0 ? even : odd)[k] = 1;
  for (const std::string_view name :
       {"mma.m16n8k256.s32.b1.b1.s32.and.popc", "wgmma.m64n8k256.and.popc.s32.b1.b1"}) {
    EXPECT_EQ(Multiply(name, {ones, ones, 7}), 263u) << name;
    EXPECT_EQ(Multiply(name, {even, odd, 7}), 7u) << name;
    EXPECT_EQ(Multiply(name, {even, ones, 0}), 128u) << name;
    EXPECT_EQ(Multiply(name, {ones, ones, 0x7fffffff}), 0x800000ffu) << name;
    EXPECT_EQ(Multiply(name, {ones, ones, 0xffffffff}), 0xffu) << name;
  }
  const std::string_view with_xor = "mma.m16n8k256.s32.b1.b1.s32.xor.popc";
  EXPECT_EQ(Multiply(with_xor, {ones, ones, 7}), 7u);
  EXPECT_EQ(Multiply(with_xor, {even, odd, 7}), 263u);
  EXPECT_EQ(Multiply(with_xor, {even, ones, 0}), 128u);
  EXPECT_EQ(Multiply(with_xor, {even, odd, 0x7fffffff}), 0x800000ffu);
}

TEST(Bits, CountAtEveryK) {
  DotRig with_and("mma.m8n8k128.s32.b1.b1.s32.and.popc", Chip::kSm90);
  DotRig with_xor("mma.m8n8k128.s32.b1.b1.s32.xor.popc", Chip::kSm90);
  for (size_t k = 0; k < 128; ++k) {
    Dot dot = {Repeated(128, 0), Repeated(128, 1), 5};
    dot.a[k] = 1;
    EXPECT_EQ(with_and.Multiply(dot), 6u) << k;
    EXPECT_EQ(with_xor.Multiply(dot), 5u + 127u) << k;
  }
}

}  // namespace
}  // namespace gemmd
