// SPDX-License-Identifier: Apache-2.0
#include "client/load/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/load/mix.h"

namespace gemmd {
namespace {

// The picker and the verifier have the same seed, as in a run.
TEST(VerifierTest, EveryProductOfAMixIsCheckedAtTheSameShare) {
  constexpr double kShare = 0.1;
  constexpr uint64_t kCalls = 100000;
  for (const uint64_t seed : {1, 2, 99}) {
    const Mix mix(4);
    const MixPicker picker(mix, seed);
    const std::vector<Payload> payloads(mix.size());
    Verifier verifier(payloads, kShare, seed);
    std::vector<double> calls(mix.size());
    std::vector<double> wanted(mix.size());
    for (uint64_t call = 0; call < kCalls; ++call) {
      const size_t product = picker.Pick(call);
      ++calls[product];
      wanted[product] += verifier.Wants(product, call);
    }
    for (size_t i = 0; i < mix.size(); ++i) {
      // Five standard errors, and the first answer.
      const double error = 5 * std::sqrt(kShare * (1 - kShare) / calls[i]) + 1 / calls[i];
      EXPECT_LE(std::fabs(wanted[i] / calls[i] - kShare), error) << "product " << i << ", " << seed;
    }
  }
}

TEST(VerifierTest, WantsAllOrNone) {
  const std::vector<Payload> payloads(1);
  Verifier all(payloads, 1, 1);
  Verifier none(payloads, 0, 1);
  for (uint64_t call = 0; call < 1000; ++call) {
    EXPECT_TRUE(all.Wants(0, call));
    EXPECT_FALSE(none.Wants(0, call));
  }
}

}  // namespace
}  // namespace gemmd
