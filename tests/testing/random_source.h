// SPDX-License-Identifier: Apache-2.0
//
// Random numbers for tests: the same in every run unless the environment variable GEMMD_TEST_SEED
// says otherwise. Each source prints its seed, so that the seed is above any failure. With
// GEMMD_TEST_TIMES=100, tests that use Cases() try a hundred times as many cases.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace gemmd {

class RandomSource {
 public:
  RandomSource() : RandomSource(SeedOfThisRun()) {
    std::cout << "[     SEED ] GEMMD_TEST_SEED=" << seed_ << std::endl;
  }
  explicit RandomSource(uint64_t seed) : seed_(seed), engine_(seed) {}

  uint64_t seed() const { return seed_; }
  // For SCOPED_TRACE: how to repeat a failure.
  std::string trace() const { return "GEMMD_TEST_SEED=" + std::to_string(seed_); }

  uint64_t Bits() { return engine_(); }
  // Uniform, both ends included.
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  // The number of cases to try, for a test that usually tries `usual`.
  static int64_t Cases(int64_t usual) {
    const char* text = std::getenv("GEMMD_TEST_TIMES");  // NOLINT(concurrency-mt-unsafe)
    return text == nullptr ? usual : usual * std::max<int64_t>(1, std::strtoll(text, nullptr, 10));
  }
  bool Flip() { return (Bits() & 1) != 0; }
  double Normal() { return std::normal_distribution<double>()(engine_); }
  // A finite double of any sign, with a magnitude between the exponents.
  double AnyMagnitude(int low_exponent, int high_exponent) {
    const double fraction = 1 + std::uniform_real_distribution<double>()(engine_);
    const double magnitude =
        std::ldexp(fraction, static_cast<int>(Between(low_exponent, high_exponent)));
    return Flip() ? -magnitude : magnitude;
  }

 private:
  static uint64_t SeedOfThisRun() {
    constexpr uint64_t kUsual = 20260101;
    const char* text = std::getenv("GEMMD_TEST_SEED");  // NOLINT(concurrency-mt-unsafe)
    if (text == nullptr) return kUsual;
    char* end = nullptr;
    const uint64_t seed = std::strtoull(text, &end, 10);
    if (end == text || *end != '\0') {
      std::cerr << "GEMMD_TEST_SEED: got \"" << text << "\", want a number" << std::endl;
      std::exit(2);  // NOLINT(concurrency-mt-unsafe)
    }
    return seed;
  }

  uint64_t seed_;
  std::mt19937_64 engine_;
};

}  // namespace gemmd
