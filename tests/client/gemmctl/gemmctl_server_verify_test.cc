// SPDX-License-Identifier: Apache-2.0
//
// gemmctl multiply --server-verify: the request, and the report of the server's check.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "gemmd/v1/gemm.pb.h"
#include "tests/client/fake_service.h"
#include "tests/client/gemmctl/gemmctl_runner.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

// Without the flag if `mode` is empty.
Outcome Multiply(const FakeServer& server, const std::string& mode) {
  std::vector<std::string> arguments = {"multiply", "--random", "2,2,2"};
  if (!mode.empty()) arguments.insert(arguments.end(), {"--server-verify", mode});
  return RunGemmctl(arguments, server.address());
}

// A check that passes, cannot be made, or finds a wrong answer, depending on its mode.
FakeScript CheckingScript() {
  FakeScript script = ComputingScript();
  const auto multiply = script.multiply;
  script.multiply = [multiply](grpc::CallbackServerContext& context,
                               const v1::MultiplyRequest& request, v1::MultiplyResponse& response) {
    auto status = multiply(context, request, response);
    if (request.verify().mode() == v1::VERIFY_MODE_DUPLICATE) {
      return std::optional<grpc::Status>(grpc::Status(grpc::StatusCode::DATA_LOSS, "d: wrong"));
    }
    v1::Verification& check = *response.mutable_verification();
    check.set_mode(request.verify().mode());
    check.set_outcome(v1::VERIFY_OUTCOME_PASSED);
    check.set_elements_checked(1234);
    check.set_miss_probability(0.75);
    check.set_cost(0.125);
    check.set_verify_ns(1500);
    if (request.verify().mode() == v1::VERIFY_MODE_CHECKSUM) {
      check.set_outcome(v1::VERIFY_OUTCOME_NOT_VERIFIED);
      check.set_reason("nonfinite");
    }
    return status;
  };
  return script;
}

TEST(GemmctlServerVerifyTest, AsksTheServerToCheck) {
  v1::MultiplyRequest sent;
  const FakeServer server(KeepingScript(sent));
  Multiply(server, "");
  EXPECT_FALSE(sent.has_verify());
  Multiply(server, "sampled:0.25");
  EXPECT_EQ(sent.verify().mode(), v1::VERIFY_MODE_SAMPLED);
  EXPECT_EQ(sent.verify().rate(), 0.25);
  Multiply(server, "duplicate");
  EXPECT_EQ(sent.verify().mode(), v1::VERIFY_MODE_DUPLICATE);
  EXPECT_EQ(sent.verify().rate(), 0);
  for (const std::string bad :
       {"some", "sampled:", "sampled:0", "sampled:1.5", "sampled:nan", "checksum:0.5"}) {
    const Outcome refused = Multiply(server, bad);
    EXPECT_EQ(refused.code, ExitCode::kUsage) << bad;
    EXPECT_THAT(refused.err, HasSubstr("--server-verify: got " + bad + ", want none, sampled"));
  }
}

TEST(GemmctlServerVerifyTest, TellsWhatTheCheckSays) {
  const FakeServer server(CheckingScript());
  EXPECT_THAT(
      Multiply(server, "sampled:0.25").out,
      HasSubstr("checked   by the server, sampled: 1,234 elements are right; a wrong one is "
                "missed with probability 0.75\n          cost 0.125 of the product's "
                "operations, 1.50 us of "));
  EXPECT_THAT(Multiply(server, "checksum").out,
              HasSubstr("checked   not by the server (checksum): nonfinite\n"));
  const Outcome wrong = Multiply(server, "duplicate");
  EXPECT_EQ(wrong.code, ExitCode::kVerification);
  EXPECT_EQ(wrong.err, "gemmctl: DATA_LOSS: d: wrong\n");
}

}  // namespace
}  // namespace gemmd
