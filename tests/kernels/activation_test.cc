// SPDX-License-Identifier: Apache-2.0
//
// Our own exp and erfc, compared with those of the C library in 80 bits, and activations in f32,
// compared with their definitions.
#include "kernels/activation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/testing/random_source.h"
#include "tests/testing/special_values.h"

namespace gemmd {
namespace {

// The unit in the last place of an f64 of this size; all subnormals have the same one.
long double LastPlace(long double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0L, std::max(exponent - 53, -1074));
}

// The library's long double functions are off by about 2^-63, which `places` allows for.
testing::AssertionResult IsNear(double got, long double want, double places) {
  if (std::fabs(static_cast<long double>(got) - want) <= places * LastPlace(want)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "got " << testing::PrintToString(got) << ", want "
                                     << testing::PrintToString(static_cast<double>(want));
}

struct Range {
  double low;
  double high;
};

// Evenly spread points and random ones.
template <typename Visit>
void ForPoints(const Range& range, int points, const Visit& visit) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const double width = range.high - range.low;
  for (int i = 0; i <= points; ++i) {
    visit(range.low + width * i / points);
    visit(range.low + width * (static_cast<double>(random.Bits() >> 11) * 0x1p-53));
    if (testing::Test::HasFatalFailure()) return;
  }
}

void ExpectExpWithinOnePlace(int points) {
  constexpr Range kRanges[] = {{-1e-9, 1e-9}, {-1, 1}, {-50, 50}, {-708, 709.78}, {-745.2, -700}};
  for (const Range& range : kRanges) {
    ForPoints(range, points, [](double x) {
      ASSERT_TRUE(IsNear(Exp(x), std::exp(static_cast<long double>(x)), 1)) << x;
      ASSERT_TRUE(IsNear(Exp(x), std::exp(x), 1)) << x;
    });
  }
}

void ExpectErfcWithinFourPlaces(int points) {
  constexpr Range kRanges[] = {{-1e-9, 1e-9}, {-1, 1}, {-7, 0}, {0, 6}, {5, 26}, {26, 27.3}};
  for (const Range& range : kRanges) {
    ForPoints(range, points, [](double x) {
      ASSERT_TRUE(IsNear(Erfc(x), std::erfc(static_cast<long double>(x)), 4)) << x;
    });
  }
}

TEST(ActivationTest, ExpIsWithinOnePlace) { ExpectExpWithinOnePlace(20000); }
TEST(ActivationExhaustive, ExpIsWithinOnePlace) { ExpectExpWithinOnePlace(200000); }
TEST(ActivationTest, ErfcIsWithinFourPlaces) { ExpectErfcWithinFourPlaces(20000); }
TEST(ActivationExhaustive, ErfcIsWithinFourPlaces) { ExpectErfcWithinFourPlaces(200000); }

constexpr Activation kCurved[] = {Activation::kGeluErf, Activation::kGeluTanh, Activation::kSilu};

long double ExactActivation(Activation activation, long double x) {
  const long double pi = std::acos(-1.0L);
  switch (activation) {
    case Activation::kGeluErf: return x / 2 * std::erfc(-x / std::sqrt(2.0L));
    case Activation::kGeluTanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / pi) * (x + 0.044715L * x * x * x)));
    default: return x / (1 + std::exp(-x));
  }
}

// Checks every `step`th f32.
void ExpectActivationsInF32AreNear(uint32_t step) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const auto first = static_cast<uint64_t>(random.Between(0, step - 1));
  for (const Activation activation : kCurved) {
    for (uint64_t bits = first; bits >> 32 == 0; bits += step) {
      const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
      if (!std::isfinite(x)) continue;
      const long double error = Activate(activation, x) - ExactActivation(activation, x);
      ASSERT_TRUE(std::fabs(error) <= 6 * 0x1p-24L * std::fabs(x) + 0x1p-149L)
          << static_cast<int>(activation) << " of " << x;
    }
  }
}

TEST(ActivationTest, InF32IsNear) { ExpectActivationsInF32AreNear(30011); }
TEST(ActivationExhaustive, InF32IsNear) { ExpectActivationsInF32AreNear(97); }

TEST(ActivationTest, SpecialsOfF32) {
  constexpr float kLarge = std::numeric_limits<float>::max();
  for (const Activation activation : kCurved) {
    EXPECT_TRUE(std::isnan(Activate(activation, std::numeric_limits<float>::quiet_NaN())));
    EXPECT_TRUE(std::isnan(Activate(activation, -std::numeric_limits<float>::infinity())));
    EXPECT_EQ(Activate(activation, std::numeric_limits<float>::infinity()),
              std::numeric_limits<float>::infinity());
    EXPECT_EQ(Activate(activation, kLarge), kLarge);
    EXPECT_EQ(Activate(activation, -kLarge), 0);
    EXPECT_EQ(std::bit_cast<uint32_t>(Activate(activation, 0.0F)), 0);
    EXPECT_EQ(std::bit_cast<uint32_t>(Activate(activation, -0.0F)), 0x8000'0000);
  }
  EXPECT_EQ(Activate(Activation::kRelu, -3.0F), 0);
  EXPECT_EQ(Activate(Activation::kRelu, 3.0F), 3);
}

TEST(ActivationTest, EndsOfExp) {
  EXPECT_EQ(Exp(0.0), 1);
  EXPECT_EQ(Exp(-0.0), 1);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Exp(1e308), kInfinity);
  EXPECT_EQ(Exp(-kInfinity), 0);
  EXPECT_EQ(Exp(-1e308), 0);
  EXPECT_TRUE(std::isnan(Exp(kNan)));
  EXPECT_TRUE(std::isnan(Exp(-kNan)));
  // The last argument whose result is finite, and the last whose result is not 0.
  EXPECT_TRUE(std::isfinite(Exp(0x1.62e42fefa39efp+9)));
  EXPECT_EQ(Exp(0x1.62e42fefa39f0p+9), kInfinity);
  EXPECT_EQ(Exp(-0x1.74910d52d3051p+9), 0x1p-1074);
  EXPECT_EQ(Exp(-0x1.74910d52d3052p+9), 0);
}

TEST(ActivationTest, EndsOfErfc) {
  EXPECT_EQ(Erfc(0.0), 1);
  EXPECT_EQ(Erfc(-0.0), 1);
  EXPECT_EQ(Erfc(kInfinity), 0);
  EXPECT_EQ(Erfc(-kInfinity), 2);
  EXPECT_EQ(Erfc(1e308), 0);
  EXPECT_EQ(Erfc(28), 0);
  EXPECT_EQ(Erfc(27.3), 0);
  EXPECT_GT(Erfc(27.2), 0);
  EXPECT_EQ(Erfc(-28), 2);
  EXPECT_TRUE(std::isnan(Erfc(kNan)));
}

TEST(ActivationTest, Specials) {
  for (Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGeluErf,
                                Activation::kGeluTanh, Activation::kSilu}) {
    EXPECT_TRUE(std::isnan(Activate(activation, kNan)));
    EXPECT_EQ(Activate(activation, kInfinity), kInfinity);
    EXPECT_EQ(Activate(activation, 0.0), 0);
    EXPECT_EQ(Activate(activation, 1e300), 1e300);
  }
  EXPECT_EQ(Activate(Activation::kRelu, -3.0), 0);
  EXPECT_EQ(Activate(Activation::kSilu, -1e3), 0);
}

// A constant expression gives the same bits, although it cannot call the library.
static_assert(Exp(1) > 2.718281828459044 && Exp(1) < 2.718281828459046);
static_assert(Erfc(1) > 0.15729920705028 && Erfc(1) < 0.15729920705029);

}  // namespace
}  // namespace gemmd
