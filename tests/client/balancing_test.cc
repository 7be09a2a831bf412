// SPDX-License-Identifier: Apache-2.0
//
// Which of several servers gets a call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/client/fake_service.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

class BalancingTest : public testing::Test {
 protected:
  // Calls until `is_done`; none may fail.
  template <typename Condition>
  void CallUntil(Condition is_done) {
    EXPECT_TRUE(Eventually([&] {
      EXPECT_THAT(client_->Multiply(v1::MultiplyRequest()), IsOk());
      return is_done();
    }));
  }

  FakeServer one_{ComputingScript()};
  FakeServer other_{ComputingScript()};
  absl::StatusOr<Client> client_ =
      Client::Create(absl::StrCat("ipv4:", one_.address(), ",", other_.address()));
};

TEST_F(BalancingTest, CallsGoRound) {
  CallUntil([&] { return one_.multiply_calls() > 0 && other_.multiply_calls() > 0; });
  const int before = one_.multiply_calls();
  const int other_before = other_.multiply_calls();
  for (int i = 0; i < 10; ++i) EXPECT_THAT(client_->Multiply(v1::MultiplyRequest()), IsOk());
  EXPECT_EQ(one_.multiply_calls() - before, 5);
  EXPECT_EQ(other_.multiply_calls() - other_before, 5);
}

TEST_F(BalancingTest, AServerThatIsNotServingGetsNoCalls) {
  CallUntil([&] { return one_.multiply_calls() > 0 && other_.multiply_calls() > 0; });
  other_.SetServing(false);
  // Until ten calls in a row have avoided it.
  int in_a_row = 0;
  int last = other_.multiply_calls();
  CallUntil([&] {
    in_a_row = other_.multiply_calls() == last ? in_a_row + 1 : 0;
    last = other_.multiply_calls();
    return in_a_row == 10;
  });
  other_.SetServing(true);
  CallUntil([&] { return other_.multiply_calls() > last; });
}

}  // namespace
}  // namespace gemmd
