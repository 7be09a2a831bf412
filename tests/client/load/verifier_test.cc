// SPDX-License-Identifier: Apache-2.0
#include "client/load/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/load/mix.h"
#include "gemmd/v1/gemm.pb.h"

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

// A verifier whose first check ends when the test says so.
class HeldVerifierTest : public testing::Test {
 protected:
  HeldVerifierTest() {
    Offer(1);
    began_.WaitForNotification();  // So that nothing waits yet.
  }
  ~HeldVerifierTest() override { Release(); }

  void Offer(size_t bytes) {
    v1::MultiplyResponse response;
    response.mutable_d()->set_data(std::string(bytes, '\0'));
    verifier_.Offer(0, std::move(response));
  }
  void Release() {
    if (!may_end_.HasBeenNotified()) may_end_.Notify();
  }

  absl::Status Check() {
    if (!began_.HasBeenNotified()) began_.Notify();
    may_end_.WaitForNotification();
    return absl::OkStatus();
  }

  const std::vector<Payload> payloads_ = std::vector<Payload>(1);
  absl::Notification began_;
  absl::Notification may_end_;
  StopRequests stop_ = 0;
  Verifier verifier_{payloads_, 1, 1,
                     [this](const Payload&, const v1::MultiplyResponse&) { return Check(); }};
};

TEST_F(HeldVerifierTest, AnswersThatWaitTakeAtMost64MiB) {
  constexpr size_t kMiB = size_t{1} << 20;
  Offer(60 * kMiB);
  Offer(4 * kMiB + 1);  // One byte too many.
  Offer(4 * kMiB);
  Offer(1);
  Release();
  const VerifierCounts counts = verifier_.Finish(stop_);
  EXPECT_EQ(counts.checked, 3);
  EXPECT_EQ(counts.skipped, 2);
}

TEST_F(HeldVerifierTest, OneAnswerMayBeOfAnySize) {
  Offer(size_t{65} << 20);
  Release();
  EXPECT_EQ(verifier_.Finish(stop_).checked, 2);
}

TEST_F(HeldVerifierTest, AnswersThatWaitAreAtMost32) {
  for (int i = 0; i < 34; ++i) Offer(1);
  Release();
  const VerifierCounts counts = verifier_.Finish(stop_);
  EXPECT_EQ(counts.checked, 1 + 32);
  EXPECT_EQ(counts.skipped, 2);
}

// Answers dropped by a second stop are counted with those dropped before.
TEST_F(HeldVerifierTest, NoAnswerIsLostAtASecondStop) {
  for (int i = 0; i < 3; ++i) Offer(1);
  stop_ = 2;
  std::thread releaser([this] {
    absl::SleepFor(absl::Milliseconds(300));  // Finish notices the stop within 20 ms.
    Release();
  });
  const VerifierCounts counts = verifier_.Finish(stop_);
  releaser.join();
  EXPECT_EQ(counts.checked + counts.skipped, 4);
}

}  // namespace
}  // namespace gemmd
