// SPDX-License-Identifier: Apache-2.0
//
// Single results of sm_90 in bits, each of which some plausible wrong model gets wrong. The
// comments give the results of the wrong models.
#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "tests/kernels/sim/dot_rig.h"

namespace gemmd {
namespace {

using Names = std::vector<std::string_view>;

struct Vector {
  std::string_view id;
  Dot dot;
  uint64_t d;
};

void ExpectVectors(const Names& names, const std::vector<Vector>& vectors) {
  for (const std::string_view name : names) {
    DotRig rig(name, mma::Chip::kSm90);
    for (const Vector& vector : vectors) {
      EXPECT_EQ(rig.Multiply(vector.dot), vector.d) << std::hex << Describe(rig, vector.id);
    }
  }
}

std::vector<uint64_t> Repeated(size_t count, uint64_t bits) {
  return std::vector<uint64_t>(count, bits);
}

const Names& Bf16() {
  static const auto* const names = new Names{"mma.m16n8k16.f32.bf16.bf16.f32",
                                             "mma.m16n8k8.f32.bf16.bf16.f32",
                                             "mma.sp.m16n8k32.f32.bf16.bf16.f32",
                                             "mma.sp.m16n8k16.f32.bf16.bf16.f32",
                                             "wgmma.m64n8k16.f32.bf16.bf16",
                                             "wgmma.sp.m64n8k32.f32.bf16.bf16",
                                             "wmma.m16n16k16.row.col.f32.bf16.bf16.f32"};
  return *names;
}
const Names& F16IntoF16() {
  static const auto* const names = new Names{"mma.m16n8k16.f16.f16.f16.f16",
                                             "mma.m16n8k8.f16.f16.f16.f16",
                                             "mma.sp.m16n8k32.f16.f16.f16.f16",
                                             "mma.sp.m16n8k16.f16.f16.f16.f16",
                                             "wgmma.m64n8k16.f16.f16.f16",
                                             "wgmma.sp.m64n8k32.f16.f16.f16",
                                             "wmma.m16n16k16.row.col.f16.f16.f16.f16"};
  return *names;
}
const Names& F16IntoF32OfDepth16() {
  static const auto* const names =
      new Names{"mma.m16n8k16.f32.f16.f16.f32", "mma.sp.m16n8k32.f32.f16.f16.f32",
                "wgmma.m64n8k16.f32.f16.f16", "wgmma.sp.m64n8k32.f32.f16.f16",
                "wmma.m16n16k16.row.col.f32.f16.f16.f32"};
  return *names;
}
const Names& Tf32() {
  static const auto* const names =
      new Names{"mma.m16n8k8.f32.tf32.tf32.f32",     "mma.m16n8k4.f32.tf32.tf32.f32",
                "mma.sp.m16n8k16.f32.tf32.tf32.f32", "mma.sp.m16n8k8.f32.tf32.tf32.f32",
                "wgmma.m64n8k8.f32.tf32.tf32",       "wgmma.sp.m64n8k16.f32.tf32.tf32"};
  return *names;
}

// 1 where the floor is at most -131, -132, -133, and -134.
TEST(HandVectors, FloorOfF32) {
  ExpectVectors(Bf16(),
                {{"G1", {{0x1a7e, 0x1700}, Repeated(2, 0x1a00)}, 1},
                 {"G2", {{0x1a7f, 0x1680}, Repeated(2, 0x1a00)}, 1},
                 {"G3", {{0x1a7f, 0x1600, 0x1600}, Repeated(3, 0x1a00)}, 1},
                 {"G4", {{0x1a7f, 0x1580, 0x1580, 0x1580, 0x1580}, Repeated(5, 0x1a00)}, 0}});
  const std::vector<uint64_t> b = Repeated(2, 0x1a000000);
  ExpectVectors(Tf32(), {{"G5", {{0x1a7c0000, 0x17800000}, b}, 1},
                         {"G6", {{0x1a7e0000, 0x17000000}, b}, 1},
                         {"G7", {{0x1a7f0000, 0x16800000}, b}, 1},
                         {"G8", {{0x1a7f8000, 0x16000000}, b}, 1},
                         {"G9", {{0x1a7fc000, 0x15800000}, b}, 0}});
}

// Not 0 where the exponent below which bits are dropped is at most -19, -20, -21, -22 and -23.
TEST(HandVectors, FloorOfF16) {
  const uint64_t steps[] = {0x0010, 0x0008, 0x0004, 0x0002, 0x0001};
  const uint64_t results[] = {0x0001, 0x0001, 0x0001, 0x0000, 0x0000};
  for (size_t i = 0; i < std::size(steps); ++i) {
    const uint64_t negative = results[i] == 0 ? 0 : 0x8000 | results[i];
    ExpectVectors(F16IntoF16(),
                  {{"H", {{0x0c00, steps[i]}, {0x0800, 0x0001}}, results[i]},
                   {"-H", {{0x8c00, 0x8000 | steps[i]}, {0x0800, 0x0001}}, negative}});
  }
}

TEST(HandVectors, ZerosDoNotAlign) {
  ExpectVectors(F16IntoF32OfDepth16(),
                {{"Z1", {{0x0000, 0x0800}, {0x7800, 0x0800}}, 0x32800000}});  // Counted: 0.
  ExpectVectors(
      F16IntoF16(),
      {{"Z2", {{0x8000, 0x0c00, 0x0c00}, {0x7800, 0x0800, 0x0c00}}, 0x0002}});  // Counted: 1.
}

TEST(HandVectors, SubnormalCKeepsItsExponent) {
  const Names deep = {"mma.m16n8k16.f32.bf16.bf16.f32", "wgmma.m64n8k16.f32.bf16.bf16",
                      "mma.sp.m16n8k32.f32.bf16.bf16.f32"};
  ExpectVectors(deep, {{"C1", {Repeated(16, 0x1980), Repeated(16, 0x1980), 1}, 1}});  // Else 3.
  ExpectVectors(F16IntoF16(),
                {{"C2", {{0x0c00, 0x0100}, {0x0800, 0x0001}, 0x0002}, 0x0002}});  // Else 3.
}

TEST(HandVectors, VanishedSumsArePlusZero) {
  ExpectVectors(Bf16(), {{"S1", {{0x9980}, {0x1a00}}, 0}});
  ExpectVectors(F16IntoF16(), {{"S2", {{0x8c00}, {0x0400}}, 0}, {"S3", {{0x8c00}, {0x0800}}, 0}});
}

// An adder with one integer bit less would give c2783ffc and d3c2.
TEST(HandVectors, WidestSums) {
  const std::vector<uint64_t> largest = Repeated(16, 0x3fff);
  ExpectVectors(F16IntoF32OfDepth16(), {{"W1", {largest, largest, 0x3fffffff}, 0x4283e001}});
  const Names deep = {"mma.m16n8k16.f16.f16.f16.f16", "wgmma.m64n8k16.f16.f16.f16",
                      "mma.sp.m16n8k32.f16.f16.f16.f16"};
  ExpectVectors(deep, {{"W2", {largest, largest, 0x3fff}, 0x541f}});
}

TEST(HandVectors, F16OverflowsFrom65520) {
  ExpectVectors(F16IntoF16(), {{"O1", {{0x4400}, {0x4400}, 0x7bff}, 0x7c00},
                               {"O2", {{0x43ff}, {0x4400}, 0x7bff}, 0x7bff}});
}

TEST(HandVectors, F16SumsKeep25Bits) {
  ExpectVectors(F16IntoF16(),
                {{"F1", {{0x5000, 0x1000}, {0x5000, 0x2c00}, 0xe400}, 0x0200},    // 24 bits: 0.
                 {"F2", {{0x5000, 0x0c00}, {0x5000, 0x2c00}, 0xe400}, 0x0000}});  // 26: 0100.
}

// Rounded towards zero to f32, then to nearest; a single rounding would give 3c01.
TEST(HandVectors, F16OfAnF32SumIsRoundedTwice) {
  ExpectVectors({"wmma.m16n16k16.row.col.f16.f16.f16.f32", "wmma.m8n32k16.col.col.f16.f16.f16.f32",
                 "wmma.m32n8k16.row.row.f16.f16.f16.f32"},
                {{"X1", {{0x3c00, 0x1000, 0x0400}, {0x3c00, 0x3c00, 0x1000}}, 0x3c00}});
}

// An f16 C becomes an f32 exactly, and D keeps bits that f16 would not.
TEST(HandVectors, F16CBecomesF32) {
  ExpectVectors({"wmma.m16n16k16.row.col.f32.f16.f16.f16"},
                {{"", {{0x3c00}, {0x1c00}, 0x3c00}, 0x3f808000},    // 1 + 2^-8.
                 {"", {{0x3c00}, {0x0400}, 0x0001}, 0x38802000}});  // 2^-14 + 2^-24: subnormal C.
}

// f16 adds (c + p) + r, where p and r are each of two products; c + (p + r) gives 0800.
TEST(HandVectors, M8n8k4WithoutATensorCore) {
  const Vector order = {"E1", {{0xe400, 0, 0x0600, 0}, {0x3c00, 0, 0x3c00, 0}, 0x6400}, 0x0600};
  ExpectVectors({"mma.m8n8k4.row.col.f16.f16.f16.f16", "mma.m8n8k4.row.row.f16.f16.f16.f16",
                 "mma.m8n8k4.col.row.f16.f16.f16.f16", "mma.m8n8k4.col.col.f16.f16.f16.f16"},
                {order, {"-0", {Repeated(4, 0x8000), Repeated(4, 0x3c00), 0x8000}, 0x8000}});
  // f32: a chain from +0 in ascending k, rounded to nearest each time, then C.
  ExpectVectors({"mma.m8n8k4.row.col.f32.f16.f16.f32", "mma.m8n8k4.col.row.f32.f16.f16.f32"},
                {{"-0", {Repeated(4, 0x8000), Repeated(4, 0x3c00), 0x80000000}, 0},
                 {"chain", {{0x3c00, 0x0c00, 0xbc00, 0}, {0x3c00, 0x0c00, 0x3c00, 0}}, 0},
                 {"nearest", {{0x3c00, 0x0e00, 0, 0}, {0x3c00, 0x0c00, 0, 0}}, 0x3f800001}});
}

}  // namespace
}  // namespace gemmd
