// SPDX-License-Identifier: Apache-2.0
//
// Products of libraries in panels: no call takes long, the sums are those of one call, and an abort
// takes effect between two calls.
#include "kernels/cpu/panels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/cpu/host.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {

// Found by gtest in the namespace of Engine.
void PrintTo(const Engine* engine, std::ostream* out) { *out << engine->name; }

namespace {

// A product with its own memory. Values are small integers, so that every sum is exact.
struct EngineCase {
  EngineCase(const Engine& engine, int64_t m, int64_t n, int64_t k, int transposed, int64_t padding)
      : d(static_cast<size_t>(m * (n + padding) * BitsOf(engine.accumulator) / 8)) {
    product.m = m;
    product.n = n;
    product.k = k;
    product.leading_dimension = n + padding;
    const auto factor = [&](int64_t rows, int64_t columns, bool is_transposed) {
      return Factor{.type = engine.operand,
                    .leading_dimension = (is_transposed ? rows : columns) + padding,
                    .transposed = is_transposed};
    };
    product.x = factor(m, k, (transposed & 1) != 0);
    product.y = factor(k, n, (transposed & 2) != 0);
  }

  void Fill(RandomSource& random, int64_t low, int64_t high) {
    const auto fill = [&](const Factor& factor, int64_t rows, int64_t columns) {
      const int64_t lines = factor.transposed ? columns : rows;
      const int64_t count = lines * factor.leading_dimension;
      std::vector<float> values(static_cast<size_t>(count));
      for (float& value : values) value = static_cast<float>(random.Between(low, high));
      std::vector<std::byte> bytes(static_cast<size_t>(count * BitsOf(factor.type) / 8));
      EncodeLine(factor.type, values.data(), count, bytes.data());
      return bytes;
    };
    x = fill(product.x, product.m, product.k);
    y = fill(product.y, product.k, product.n);
    product.x.data = x.data();
    product.y.data = y.data();
    product.d = d.data();
  }

  std::vector<std::byte> Run(const Engine& engine, const PanelShape& panel) {
    std::fill(d.begin(), d.end(), std::byte{0xff});
    EXPECT_THAT(MultiplyInPanels(engine, product, panel, nullptr), IsOk());
    return d;
  }

  PanelShape whole() const { return {product.m, product.n, product.k}; }

  PlainProduct product;
  std::vector<std::byte> x;
  std::vector<std::byte> y;
  std::vector<std::byte> d;
};

class PanelTest : public testing::TestWithParam<const Engine*> {
 protected:
  void SetUp() override {
    SetThreads(2);
    const absl::Status available = engine_.available(HostTarget());
    if (!available.ok()) GTEST_SKIP() << available.message();
  }

  const Engine& engine_ = *GetParam();
  RandomSource random_;
};

TEST_P(PanelTest, HaveTheSumsOfOneCall) {
  SCOPED_TRACE(random_.trace());
  for (const int transposed : {0, 1, 2, 3}) {
    for (const int64_t padding : {0, 3}) {
      EngineCase one(engine_, 133, 97, 260, transposed, padding);
      one.Fill(random_, -3, 3);
      const std::vector<std::byte> want = one.Run(engine_, one.whole());
      for (const PanelShape panel :
           {PanelShape{64, 97, 260}, {133, 64, 260}, {133, 97, 64}, {64, 64, 128}}) {
        EXPECT_EQ(one.Run(engine_, panel), want)
            << "transposed " << transposed << ", padding " << padding << ", panels " << panel.m
            << "x" << panel.n << "x" << panel.k;
      }
    }
  }
}

TEST_P(PanelTest, AreThePanelsOfTheShapeAndTheThreadsAlone) {
  const auto panel_of = [&](int64_t m, int64_t n, int64_t k, int threads) {
    const PlainProduct product = {.m = m,
                                  .n = n,
                                  .k = k,
                                  .x = {.type = engine_.operand, .leading_dimension = k},
                                  .y = {.type = engine_.operand, .leading_dimension = n},
                                  .leading_dimension = n};
    return PanelOf(engine_, product, threads);
  };
  EXPECT_EQ(panel_of(64, 64, 64, 1), (PanelShape{64, 64, 64}));
  EXPECT_EQ(panel_of(512, 512, 512, 1), (PanelShape{512, 512, 512}));
  for (const int threads : {1, 4}) {
    for (const PanelShape shape : {PanelShape{40000, 40000, 40000},
                                   {1, 1, int64_t{1} << 33},
                                   {int64_t{1} << 30, 1, 64},
                                   {1, int64_t{1} << 30, 64},
                                   {1, 100000, 100000},
                                   {100000, 100000, 64}}) {
      const PanelShape panel = panel_of(shape.m, shape.n, shape.k, threads);
      const double operations = 2.0 * static_cast<double>(panel.m) * static_cast<double>(panel.n) *
                                static_cast<double>(panel.k);
      EXPECT_LE(operations, 0.02 * PanelRate(engine_) * threads);
      // A line of one element is a cache line of 64 bytes, and 5 GB/s can be read anywhere.
      EXPECT_LE(std::max({panel.m, panel.n, panel.k}), int64_t{1} << 21);
      // Empty panels would never end, and tiny ones would take long.
      EXPECT_GE(panel.m, std::min<int64_t>(shape.m, 256));
      EXPECT_GE(panel.n, std::min<int64_t>(shape.n, 256));
      EXPECT_GE(panel.k, std::min<int64_t>(shape.k, 64));
    }
  }
}

std::vector<float> FloatsOf(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// For products of few rows with a transposed Y, the library makes another call than for their
// narrow panels.
void ExpectBothCallsAgree(std::initializer_list<int64_t> extents_of_m,
                          std::initializer_list<int64_t> extents_of_k) {
  SetThreads(2);
  RandomSource random;
  SCOPED_TRACE(random.trace());
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int64_t m : extents_of_m) {
    for (const int64_t k : extents_of_k) {
      for (const int transposed : {0, 1, 2, 3}) {
        const int64_t padding = random.Between(0, 3);
        EngineCase one(kOneDnnF32, m, random.Between(1023, 1100), k, transposed, padding);
        one.Fill(random, -3, 3);
        auto* const x = reinterpret_cast<float*>(one.x.data());
        auto* const y = reinterpret_cast<float*>(one.y.data());
        x[random.Between(0, k - 1)] = kInfinity;
        y[random.Between(0, k - 1)] = -kInfinity;
        y[one.product.y.leading_dimension] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_THAT(FloatsOf(one.Run(kOneDnnF32, one.whole())),
                    testing::Pointwise(testing::NanSensitiveFloatEq(),
                                       FloatsOf(one.Run(kOneDnnF32, {m, 512, k}))))
            << m << "x" << one.product.n << "x" << k << ", transposed " << transposed
            << ", padding " << padding;
        one.product.adds_to_d = true;
        const std::vector<std::byte> before = one.d;
        const auto sums = [&](const PanelShape& panel) {
          one.d = before;
          EXPECT_THAT(MultiplyInPanels(kOneDnnF32, one.product, panel, nullptr), IsOk());
          return FloatsOf(one.d);
        };
        EXPECT_THAT(sums(one.whole()),
                    testing::Pointwise(testing::NanSensitiveFloatEq(), sums({m, 512, k})));
      }
    }
  }
}

TEST(PanelsTest, BothCallsOfOneDnnForFloatsAgree) {
  ExpectBothCallsAgree({7, 8, 9, 64}, {63, 64, 65, 130});
  ExpectBothCallsAgree({255, 256}, {65});
}
TEST(PanelsExhaustive, BothCallsOfOneDnnForFloatsAgree) {
  ExpectBothCallsAgree({7, 8, 9, 64, 255, 256}, {63, 64, 65, 130});
}

INSTANTIATE_TEST_SUITE_P(Engines, PanelTest,
                         testing::Values(&kOneDnnF32, &kOneDnnBf16, &kOneDnnS8, &kOpenBlasF32,
                                         &kOpenBlasF64),
                         [](const auto& param) {
                           std::string name(param.param->name);
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

// Sums of s8 beyond the integers that f32 represents, and beyond s32.
TEST(PanelsTest, OfIntegersWrapAsTheWholeDoes) {
  SetThreads(2);
  const absl::Status available = kOneDnnS8.available(HostTarget());
  if (!available.ok()) GTEST_SKIP() << available.message();
  RandomSource random;
  for (const bool is_biased : {false, true}) {
    EngineCase one(kOneDnnS8, 2, 3, 200'001, 2, 0);
    one.product.y_is_biased = is_biased;
    one.Fill(random, 120, 127);
    EXPECT_EQ(one.Run(kOneDnnS8, {2, 3, 64'000}), one.Run(kOneDnnS8, one.whole()));
  }
}

std::atomic<bool> abort_flag = false;
int calls = 0;

absl::Status AbortAtTheThirdCall(const PlainProduct&) {
  if (++calls == 3) abort_flag.store(true);
  return absl::OkStatus();
}

TEST(PanelsTest, EndBetweenTwoCalls) {
  Engine engine = kOneDnnF32;
  engine.multiply = AbortAtTheThirdCall;
  const EngineCase one(engine, 1000, 1000, 10, 0, 0);
  EXPECT_THAT(MultiplyInPanels(engine, one.product, {100, 100, 10}, &abort_flag),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace gemmd
