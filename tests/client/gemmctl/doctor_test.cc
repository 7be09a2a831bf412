// SPDX-License-Identifier: Apache-2.0
//
// How gemmctl doctor judges a server's answers, and its exit codes.
#include "client/gemmctl/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/matrix/verify.h"
#include "client/terminal/version.h"
#include "gemmd/element_codec.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/incidents.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/statistics.pb.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_service.h"
#include "tests/client/gemmctl/gemmctl_runner.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

v1::MultiplyResponse AnswerOf(const Canary& canary) {
  v1::MultiplyResponse answer;
  answer.set_kernel("fake_kernel");
  v1::Matrix& d = *answer.mutable_d();
  d.set_type(v1::ELEMENT_TYPE_F32);
  d.set_rows(canary.request.m());
  d.set_columns(canary.request.n());
  d.set_batch(1);
  d.set_leading_dimension(canary.request.n());
  std::string bytes(canary.want.size() * 4, '\0');
  for (size_t i = 0; i < canary.want.size(); ++i) {
    StoreElement(d.type(), canary.want[i], static_cast<int64_t>(i), bytes.data());
  }
  d.set_batch_stride(static_cast<int64_t>(canary.want.size()));
  d.set_data(std::move(bytes));
  return answer;
}

TEST(DoctorTest, TheCanaryIsTheProductOfItsOperands) {
  const Canary canary(RandomSource().Bits());
  const v1::MultiplyRequest& request = canary.request;
  const MatrixReader a(request.a(), request.a().type(), request.m(), request.k());
  const MatrixReader b(request.b(), request.b().type(), request.k(), request.n());
  for (int64_t row = 0; row < request.m(); ++row) {
    for (int64_t column = 0; column < request.n(); ++column) {
      int64_t sum = 0;
      for (int64_t l = 0; l < request.k(); ++l) {
        sum += static_cast<int64_t>(a.At(0, row, l)) * static_cast<int64_t>(b.At(0, l, column));
      }
      const uint64_t want = canary.want[static_cast<size_t>(row * request.n() + column)];
      ASSERT_EQ(ElementValue(v1::ELEMENT_TYPE_F32, want), static_cast<double>(sum));
    }
  }
}

TEST(DoctorTest, OneWrongBitIsFound) {
  const Canary canary(RandomSource().Bits());
  const v1::MultiplyResponse right = AnswerOf(canary);
  EXPECT_THAT(FaultOf(canary, right), IsEmpty());
  for (const size_t bit : {size_t{0}, size_t{31}, canary.want.size() * 32 - 1}) {
    v1::MultiplyResponse wrong = right;
    (*wrong.mutable_d()->mutable_data())[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_THAT(FaultOf(canary, wrong), HasSubstr(absl::StrCat("1 of ", canary.want.size())));
  }
  v1::MultiplyResponse smaller = right;
  smaller.mutable_d()->set_rows(1);
  EXPECT_THAT(FaultOf(canary, smaller), Not(IsEmpty()));
  EXPECT_THAT(FaultOf(canary, v1::MultiplyResponse()), Not(IsEmpty()));
}

TEST(DoctorTest, JudgesTheTransport) {
  EXPECT_EQ(CheckPlainTransport("unix:/run/gemmd.sock").state, CheckState::kOk);
  EXPECT_EQ(CheckPlainTransport("127.0.0.1:8470").state, CheckState::kOk);
  EXPECT_EQ(CheckPlainTransport("[::1]:8470").state, CheckState::kOk);
  EXPECT_EQ(CheckPlainTransport("gemmd.example:8470").state, CheckState::kWarn);
  EXPECT_EQ(CheckPlainTransport("ipv4:127.0.0.1:1,10.0.0.1:2").state, CheckState::kWarn);

  const absl::Time now = absl::FromUnixSeconds(1'800'000'000);
  const auto state = [now](absl::Duration left, const std::string& fault) {
    return CheckTls(TlsPeer{"TLSv1.3", now + left, fault}, now).state;
  };
  EXPECT_EQ(state(absl::Hours(24 * 8), ""), CheckState::kOk);
  EXPECT_EQ(state(absl::Hours(24 * 6), ""), CheckState::kWarn);
  EXPECT_EQ(state(-absl::Seconds(1), ""), CheckState::kFail);
  EXPECT_EQ(state(absl::Hours(24 * 8), "self-signed"), CheckState::kFail);
  EXPECT_EQ(CheckTls(absl::UnavailableError("nobody"), now).state, CheckState::kFail);
}

TEST(DoctorTest, JudgesWhatTheServerSays) {
  v1::GetServerInfoResponse info;
  info.set_version("1.2.3");
  EXPECT_EQ(CheckServer(info, "1.2.3").state, CheckState::kOk);
  EXPECT_EQ(CheckServer(info, "1.2.4").state, CheckState::kWarn);
  info.set_draining(true);
  EXPECT_EQ(CheckServer(info, "1.2.3").state, CheckState::kFail);

  v1::Limits limits;
  limits.set_max_message_bytes(4 << 20);
  limits.set_max_queued_bytes(4 << 20);
  EXPECT_EQ(CheckLimits(limits).state, CheckState::kOk);
  limits.set_max_queued_bytes((4 << 20) - 1);
  EXPECT_EQ(CheckLimits(limits).state, CheckState::kWarn);
  limits.set_max_message_bytes((4 << 20) - 1);
  EXPECT_EQ(CheckLimits(limits).state, CheckState::kWarn);

  EXPECT_EQ(CheckLatency({1'000'000, 2'000'000}).state, CheckState::kOk);
  EXPECT_THAT(CheckLatency({1'000'000, 2'000'000}).seen,
              HasSubstr("p50 1.00 ms, p99 2.00 ms of 2"));
  EXPECT_EQ(CheckLatency({200'000'000}).state, CheckState::kWarn);
}

TEST(DoctorTest, JudgesTheClock) {
  const absl::Time sent = absl::FromUnixSeconds(1'800'000'000);
  const absl::Time received = sent + absl::Milliseconds(40);
  const auto judge = [&](absl::Duration since_sent) {
    return CheckClock(absl::ToUnixNanos(sent + since_sent), sent, received);
  };
  for (const absl::Duration within :
       {absl::ZeroDuration(), absl::Milliseconds(7), absl::Milliseconds(40)}) {
    EXPECT_EQ(judge(within).state, CheckState::kOk);
    EXPECT_THAT(judge(within).seen, HasSubstr("that of this machine, to 40.0 ms"));
  }
  // A long latency in either direction is not a difference between the clocks.
  EXPECT_THAT(judge(absl::Milliseconds(540)).seen, HasSubstr("500 ms ahead of"));
  EXPECT_EQ(judge(absl::Milliseconds(1039)).state, CheckState::kOk);
  EXPECT_EQ(judge(absl::Milliseconds(1040)).state, CheckState::kWarn);
  EXPECT_EQ(judge(-absl::Milliseconds(999)).state, CheckState::kOk);
  EXPECT_EQ(judge(-absl::Seconds(1)).state, CheckState::kWarn);
  EXPECT_THAT(judge(-absl::Seconds(3)).seen, HasSubstr("3.00 s behind that of this machine"));
  EXPECT_EQ(judge(absl::Seconds(60)).state, CheckState::kWarn);
  EXPECT_EQ(judge(absl::Milliseconds(60'040)).state, CheckState::kFail);
  EXPECT_EQ(judge(-absl::Seconds(60)).state, CheckState::kFail);
  EXPECT_EQ(CheckClock(0, sent, received).state, CheckState::kWarn);
  for (const int64_t ns : {int64_t{0}, absl::ToUnixNanos(sent) - int64_t{2'000'000'000}}) {
    EXPECT_FALSE(CheckClock(ns, sent, received).advice.empty());
  }
}

TEST(DoctorTest, JudgesStatistics) {
  v1::GetStatisticsResponse now;
  now.set_max_admitted_requests(100);
  now.set_max_admitted_bytes(100);
  now.mutable_tensors()->set_max_host_bytes(100);
  const auto states = [&now] {
    std::vector<std::string> bad;
    for (const Check& check : CheckStatistics(now)) {
      EXPECT_EQ(check.state == CheckState::kOk, check.advice.empty()) << check.name;
      if (check.state == CheckState::kOk) continue;
      bad.push_back(absl::StrCat(CheckStateName(check.state), " ", check.name));
    }
    return bad;
  };
  using testing::ElementsAre;
  EXPECT_THAT(states(), IsEmpty());
  now.set_admitted_requests(91);
  EXPECT_THAT(states(), ElementsAre("warn load"));
  now.set_admitted_requests(90);
  now.set_admitted_bytes(91);
  EXPECT_THAT(states(), ElementsAre("warn load"));
  now.set_admitted_bytes(0);
  now.mutable_tensors()->set_host_bytes(91);
  EXPECT_THAT(states(), ElementsAre("warn tensors"));
  now.mutable_tensors()->set_host_bytes(0);
  v1::Count& refusal = *now.add_refusals();
  refusal.set_name("memory");
  EXPECT_THAT(states(), IsEmpty());
  refusal.set_count(1);
  EXPECT_THAT(states(), ElementsAre("warn memory"));
}

TEST(DoctorTest, JudgesQuarantineAndIncidents) {
  std::vector<v1::ExplainResponse> explanations(2);
  explanations[1].set_device("cuda:3");
  v1::Refusal& refusal = *explanations[1].add_refusals();
  refusal.set_kernel("kernel_x");
  refusal.set_reason("kernel: got one of another type");
  EXPECT_EQ(CheckQuarantine(explanations).state, CheckState::kOk);
  refusal.set_reason("kernel: got one that is quarantined on this device");
  EXPECT_EQ(CheckQuarantine(explanations).state, CheckState::kWarn);
  EXPECT_THAT(CheckQuarantine(explanations).seen, HasSubstr("kernel_x on cuda:3"));

  v1::ListIncidentsResponse incidents;
  EXPECT_EQ(CheckIncidents(incidents).state, CheckState::kOk);
  incidents.set_found(1);
  EXPECT_EQ(CheckIncidents(incidents).state, CheckState::kWarn);
  EXPECT_EQ(CheckIncidents(absl::PermissionDeniedError("no")).state, CheckState::kWarn);
  EXPECT_EQ(CheckIncidents(absl::InternalError("no")).state, CheckState::kFail);
}

// A server of three devices. Products on `cuda:0` get no answer.
FakeScript HangingScript() {
  FakeScript script;
  script.get_server_info = [](v1::GetServerInfoResponse& response) {
    response.set_version(ToolVersion());
    response.set_unix_ns(absl::GetCurrentTimeNanos());
    response.mutable_limits()->set_max_message_bytes(1 << 30);
    response.mutable_limits()->set_max_queued_bytes(1 << 30);
    return grpc::Status::OK;
  };
  script.get_statistics = [](v1::GetStatisticsResponse&) { return grpc::Status::OK; };
  script.explain = [](const v1::ExplainRequest&, v1::ExplainResponse&) { return grpc::Status::OK; };
  script.list_devices = [](v1::ListDevicesResponse& response) {
    for (const char* name : {"cpu", "cuda:0", "cuda:1"}) {
      response.add_devices()->set_name(name);
      response.mutable_devices()->rbegin()->set_ready(true);
    }
    return grpc::Status::OK;
  };
  script.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest& request,
                       v1::MultiplyResponse& response) -> std::optional<grpc::Status> {
    if (request.device() == "cuda:0") return std::nullopt;  // The call stays open.
    Canary same(0);
    const MatrixReader a(request.a(), request.a().type(), request.m(), request.k());
    const MatrixReader b(request.b(), request.b().type(), request.k(), request.n());
    for (size_t i = 0; i < same.want.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / request.n();
      const auto column = static_cast<int64_t>(i) % request.n();
      double sum = 0;
      for (int64_t l = 0; l < request.k(); ++l) sum += a.At(0, row, l) * b.At(0, l, column);
      same.want[i] = ElementPattern(v1::ELEMENT_TYPE_F32, sum);
    }
    response = AnswerOf(same);
    return grpc::Status::OK;
  };
  return script;
}

std::map<std::string, std::string> StatesOf(const Outcome& run) {
  std::map<std::string, std::string> states;
  const nlohmann::json report = nlohmann::json::parse(run.out);
  for (const auto& check : report["checks"]) {
    states[check["name"]] = check["state"];
  }
  return states;
}

TEST(DoctorTest, ADeviceThatHangsHoldsUpNoOtherOne) {
  const FakeServer server(HangingScript());
  // It uses all of its time, in which a busy machine may not have got the other answers.
  std::map<std::string, std::string> states;
  for (int seconds = 2; seconds <= 64 && states["canary cuda:1"] != "ok"; seconds *= 2) {
    const Outcome run =
        RunGemmctl({"doctor", "--json", "--timeout", absl::StrCat(seconds)}, server.address());
    EXPECT_EQ(run.code, ExitCode::kRefused) << run.out;
    states = StatesOf(run);
  }
  EXPECT_EQ(states["canary cpu"], "ok");
  EXPECT_EQ(states["canary cuda:0"], "fail");
  EXPECT_EQ(states["canary cuda:1"], "ok");
}

}  // namespace
}  // namespace gemmd
