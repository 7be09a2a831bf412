// SPDX-License-Identifier: Apache-2.0
//
// Runs of one small product against servers in this process.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/load/load_run.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/client/fake_service.h"
#include "tests/testing/patience.h"
#include "tests/testing/units.h"

namespace gemmd {

// The script of a server that never answers.
inline FakeScript SilentScript() {
  FakeScript script;
  script.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest&,
                       v1::MultiplyResponse&) -> std::optional<grpc::Status> {
    return std::nullopt;
  };
  return script;
}

// Everything that a run of one small product needs.
class LoadRunTest : public testing::Test {
 protected:
  LoadRunTest() {
    mix_.resize(1);
    mix_[0].m = mix_[0].n = mix_[0].k = 8;
    payloads_.push_back(MakePayload(mix_[0], OperandValues::kIntegers, 1).value());
    step_.warmup_ns = 0;
    step_.interval_ns = 100 * kMs;
    step_.timeout = kPatience;
  }

  StepResult Run(const std::vector<std::string>& addresses, double verified_share = 0) {
    ClientOptions options;
    options.max_attempts = 1;
    for (const std::string& address : addresses) {
      targets_.clients.push_back(Client::Create(address, options).value());
      (void)targets_.clients.back().CheckHealth();  // Connects.
    }
    const MixPicker picker(mix_, 1);
    Verifier verifier(payloads_, verified_share, 1);
    targets_.payloads = &payloads_;
    targets_.picker = &picker;
    targets_.verifier = &verifier;
    StepResult result = RunLoad(targets_, step_, stop_, progress_);
    verified_ = verifier.Finish(stop_);
    return result;
  }

  void SetRate(double rate, int64_t max_in_flight = 10000) {
    step_.loop =
        OpenLoop{.arrivals = {.rate = {.from = rate, .to = rate}}, .max_in_flight = max_in_flight};
  }

  Mix mix_;
  std::vector<Payload> payloads_;
  LoadTargets targets_;
  LoadStep step_;
  StopRequests stop_ = 0;
  LoadProgress progress_;
  VerifierCounts verified_;
};

}  // namespace gemmd
