// SPDX-License-Identifier: Apache-2.0
//
// f64: a chain of fused multiply-adds from C in ascending k, in the instruction's rounding.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kernels/sim/dot_rig.h"

namespace gemmd {
namespace {

using mma::Chip;

constexpr uint64_t kOne = 0x3ff0000000000000;
constexpr uint64_t kInfinity = 0x7ff0000000000000;
constexpr uint64_t kSign = uint64_t{1} << 63;
constexpr uint64_t kNewNan = 0xfff8000000000000;
constexpr std::array kInstructions = {"mma.m8n8k4.f64", "mma.m16n8k4.f64", "mma.m16n8k8.f64",
                                      "mma.m16n8k16.f64", "wmma.m8n8k4.row.col.f64.f64.f64.f64"};

uint64_t Bits(double value) { return std::bit_cast<uint64_t>(value); }

class F64 : public testing::TestWithParam<const char*> {
 protected:
  F64() : rig_(GetParam(), Chip::kSm90) {}

  // One product, the first along k; zeros follow.
  uint64_t Step(uint64_t a, uint64_t b, uint64_t c) { return rig_.Multiply({{a}, {b}, c}); }

  DotRig rig_;
};

// A huge number at i and its negative at j > i absorb every one before j: the remaining sum counts
// those after j.
TEST_P(F64, SumsInAscendingK) {
  const double huge = std::ldexp(1.0, 60);
  for (size_t i = 0; i < rig_.depth(); ++i) {
    for (size_t j = i + 1; j < rig_.depth(); ++j) {
      DotValues values = {std::vector<double>(rig_.depth(), 1.0),
                          std::vector<double>(rig_.depth(), 1.0), 1};
      values.a[i] = huge;
      values.a[j] = -huge;
      const auto left = static_cast<double>(rig_.depth() - 1 - j);
      EXPECT_EQ(rig_.Multiply(rig_.Encoded(values).value()), Bits(left)) << i << " and " << j;
    }
  }
}

TEST_P(F64, StartsFromC) {
  const double huge = std::ldexp(1.0, 60);
  DotValues values = {std::vector<double>(rig_.depth(), 1.0),
                      std::vector<double>(rig_.depth(), 1.0), huge};
  values.a[rig_.depth() - 1] = -huge;
  EXPECT_EQ(rig_.Multiply(rig_.Encoded(values).value()), 0u);
}

TEST_P(F64, RoundsEachStepOnce) {
  const double a = 1 + std::ldexp(1.0, -30);
  const double c = -(1 + std::ldexp(1.0, -29));
  EXPECT_EQ(Step(Bits(a), Bits(a), Bits(c)), Bits(std::ldexp(1.0, -60)));
  // Subnormal operands and results.
  EXPECT_EQ(Step(1, kOne, 1), 2u);
  EXPECT_EQ(Step(0x0010000000000000, Bits(0.5), 0), 0x0008000000000000u);
}

TEST_P(F64, KeepsIeeeZeros) {
  const std::vector<uint64_t> negative_zeros(rig_.depth(), kSign);
  const std::vector<uint64_t> ones(rig_.depth(), kOne);
  EXPECT_EQ(rig_.Multiply({negative_zeros, ones, kSign}), kSign);
  EXPECT_EQ(rig_.Multiply({negative_zeros, ones, 0}), 0u);
}

// The NaN of B precedes that of the sum, which precedes that of A; quiet, with sign and payload.
TEST_P(F64, ReturnsANanOperand) {
  constexpr uint64_t kX = 0x7ff8000000000a01;
  constexpr uint64_t kY = 0xfff8000000000b01;
  constexpr uint64_t kZ = 0x7ff8000000000c01;
  constexpr uint64_t kSignalling = 0x7ff0000000000a01;
  EXPECT_EQ(Step(kX, kY, kZ), kY);
  EXPECT_EQ(Step(kX, kOne, kZ), kZ);
  EXPECT_EQ(Step(kX, kOne, 0), kX);
  EXPECT_EQ(Step(kSignalling, kY, 0), kY);
  EXPECT_EQ(Step(kInfinity, 0, kOne), kNewNan);
  EXPECT_EQ(Step(kInfinity, kOne, kInfinity | kSign), kNewNan);
  EXPECT_EQ(Step(kSignalling, kOne, 0), kX);
  EXPECT_EQ(Step(kOne, kOne, kSignalling), kX);
  // A later B replaces the sum's NaN, a later A does not.
  EXPECT_EQ(rig_.Multiply({{kX, kOne}, {kOne, kY}, 0}), kY);
  EXPECT_EQ(rig_.Multiply({{kX, kZ}, {kOne, kOne}, 0}), kX);
}

std::string TestName(const testing::TestParamInfo<const char*>& row) {
  std::string name(row.param);
  for (char& letter : name) letter = letter == '.' ? '_' : letter;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Sm90, F64, testing::ValuesIn(kInstructions), TestName);

struct RoundingCase {
  std::string_view what;
  Dot dot;
  uint64_t rn;
  uint64_t rz;
  uint64_t rm;
  uint64_t rp;
};

std::vector<RoundingCase> RoundingCases() {
  const uint64_t half_ulp = Bits(std::ldexp(1.0, -53));
  const uint64_t minus_one = kOne | kSign;
  const uint64_t largest = Bits(std::numeric_limits<double>::max());
  const uint64_t two = Bits(2.0);
  const uint64_t half = Bits(0.5);
  return {
      {"half an ulp", {{half_ulp}, {kOne}, kOne}, kOne, kOne, kOne, kOne + 1},
      {"negative",
       {{half_ulp | kSign}, {kOne}, minus_one},
       minus_one,
       minus_one,
       minus_one + 1,
       minus_one},
      {"tie to odd", {{half_ulp}, {kOne}, kOne + 1}, kOne + 2, kOne + 1, kOne + 1, kOne + 2},
      {"cancellation", {{kOne}, {kOne}, minus_one}, 0, 0, kSign, 0},
      {"underflow", {{1}, {half}, 0}, 0, 0, 0, 1},
      {"negative underflow", {{1 | kSign}, {half}, kSign}, 0, 0, 1 | kSign, 0},
      {"overflow", {{largest}, {two}, 0}, kInfinity, largest, largest, kInfinity},
      {"negative overflow",
       {{largest}, {two | kSign}, 0},
       kInfinity | kSign,
       largest | kSign,
       kInfinity | kSign,
       largest | kSign},
  };
}

TEST(F64Rounding, IsThatOfTheInstruction) {
  struct Mode {
    std::string_view suffix;
    uint64_t RoundingCase::*want;
  };
  constexpr std::array kModes = {Mode{"", &RoundingCase::rn}, Mode{".rz", &RoundingCase::rz},
                                 Mode{".rm", &RoundingCase::rm}, Mode{".rp", &RoundingCase::rp}};
  for (const std::string_view shape : {"m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"}) {
    for (const Mode& mode : kModes) {
      const std::string name =
          absl::StrCat("mma.", std::string(shape), std::string(mode.suffix), ".f64");
      DotRig rig(name, Chip::kSm90);
      for (const RoundingCase& one : RoundingCases()) {
        EXPECT_EQ(rig.Multiply(one.dot), one.*mode.want) << std::hex << Describe(rig, one.what);
      }
    }
  }
}

// The caller's own rounding mode is unchanged.
TEST(F64Rounding, EndsWithTheInstruction) {
  DotRig rig("mma.m8n8k4.rp.f64", Chip::kSm90);
  rig.Multiply({{kOne}, {kOne}, kOne});
  volatile double one = 1;
  volatile double half_ulp = std::ldexp(1.0, -53);
  EXPECT_EQ(one + half_ulp, 1.0);
}

}  // namespace
}  // namespace gemmd
