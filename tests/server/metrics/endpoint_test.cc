// SPDX-License-Identifier: Apache-2.0
//
// What a scraper gets from a server, when, and that it delays nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "server/metrics/exposition.h"
#include "tests/server/device/shared_host.h"
#include "tests/server/metrics/http_peer.h"
#include "tests/server/wire/running_server.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// The whole answer; empty if nobody listens.
std::string Get(const std::string& address, const std::string& path) {
  const HttpPeerSocket peer(address);
  if (!peer.is_connected()) return "";
  EXPECT_TRUE(peer.Say(
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")));
  std::string answer;
  char part[4096];
  for (ssize_t size = 0; (size = recv(peer.get(), part, sizeof(part), 0)) > 0;) {
    answer.append(part, static_cast<size_t>(size));
  }
  return answer;
}

ServerOptions WithMetrics() {
  ServerOptions options = TestServerOptions();
  options.metrics_listen = "127.0.0.1:0";
  return options;
}

TEST(MetricsAddressTest, IsAnIpAddressAndAPort) {
  for (const char* address : {"127.0.0.1:0", "0.0.0.0:65535", "[::1]:8471", "[::]:1"}) {
    EXPECT_THAT(CheckHttpAddress(address), IsOk()) << address;
  }
  for (const char* address : {"", ":", "8471", ":8471", "localhost:8471", "127.0.0.1", "127.0.0.1:",
                              "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:80s", "+127.0.0.1:80",
                              "::1:80", "[]:80", "[::1]", "unix:/x", "127.0.0.1:1,127.0.0.1:2"}) {
    EXPECT_THAT(CheckHttpAddress(address),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("metrics-listen: got ", address, ", want"))));
  }
}

TEST(MetricsEndpointTest, TellsOfAProduct) {
  RunningServer server(TestDevice::kCpu, WithMetrics());
  ASSERT_TRUE(MultiplySmall(server.gemm()).ok());
  const std::string answer = Get(server.server().metrics_address(), "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(answer, HasSubstr("text/plain"));
  for (const char* line :
       {"gemmd_products_total{device=\"cpu\",code=\"OK\"} 1\n", "gemmd_admissions_total 1\n",
        "gemmd_product_duration_seconds_count{device_kind=\"cpu\"} 1\n",
        "gemmd_kernel_products_total{device_kind=\"cpu\",kernel=",
        "gemmd_product_stage_duration_seconds_bucket{stage=\"queue\"", "le=\"1e-06\"", "le=\"50\"",
        "le=\"+Inf\"} 1\n", "# TYPE gemmd_product_stage_duration_seconds histogram\n",
        "gemmd_operations_total{device=\"cpu\"} 120\n",
        "gemmd_canaries_total{device=\"cpu\",result=\"passed\"} 1\n"}) {
    EXPECT_THAT(answer, HasSubstr(line));
  }
  EXPECT_THAT(answer, Not(HasSubstr("nv_")));
}

TEST(MetricsEndpointTest, TellsTritonsNamesOnAPathOfTheirOwn) {
  RunningServer server(TestDevice::kCpu, WithMetrics());
  ASSERT_TRUE(MultiplySmall(server.gemm()).ok());
  const std::string answer = Get(server.server().metrics_address(), "/metrics/triton");
  EXPECT_THAT(answer, HasSubstr("nv_inference_request_success{model=\"gemm\",version=\"1\"} 1\n"));
  EXPECT_THAT(answer, Not(HasSubstr("gemmd_")));
  EXPECT_THAT(Get(server.server().metrics_address(), "/else"), HasSubstr(" 404 "));
}

TEST(MetricsEndpointTest, CountsEachRefusalByItsReason) {
  ServerOptions options = WithMetrics();
  options.admission.max_requests = 1;
  RunningServer server(TestDevice::kFake, options);
  std::thread first([&] { EXPECT_TRUE(MultiplySmall(server.gemm()).ok()); });
  ASSERT_TRUE(server.fake().WaitForHeld(1, kPatience));
  EXPECT_EQ(MultiplySmall(server.gemm()).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::MultiplyRequest unknown = IntegerRequest(3, 4, 5);
  unknown.set_device("none");
  v1::MultiplyResponse response;
  grpc::ClientContext context;
  AllowTime(context);
  EXPECT_FALSE(server.gemm().Multiply(&context, unknown, &response).ok());
  const std::string& address = server.server().metrics_address();
  EXPECT_THAT(Get(address, "/metrics"),
              AllOf(HasSubstr("gemmd_refusals_total{reason=\"queue_requests\"} 1\n"),
                    HasSubstr("gemmd_refusals_total{reason=\"not_found\"} 1\n"),
                    HasSubstr("gemmd_refusals_total{reason=\"invalid\"} 0\n"),
                    HasSubstr("gemmd_admitted_requests 1\n"),
                    HasSubstr("gemmd_admitted_requests_limit 1\n")));
  server.fake().CompleteNext();
  first.join();
}

// A request that can never fit is not refused for lack of room: more replicas would not help.
TEST(MetricsEndpointTest, CountsApartWhatIsTooLargeAtAnyTime) {
  ServerOptions options = WithMetrics();
  options.admission.max_bytes = 100'000;
  RunningServer server(TestDevice::kCpu, options);
  v1::MultiplyResponse response;
  grpc::ClientContext context;
  AllowTime(context);
  EXPECT_EQ(server.gemm().Multiply(&context, IntegerRequest(128, 128, 128), &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(Get(server.server().metrics_address(), "/metrics"),
              AllOf(HasSubstr("gemmd_refusals_total{reason=\"too_large\"} 1\n"),
                    HasSubstr("gemmd_refusals_total{reason=\"queue_bytes\"} 0\n")));
}

// Scrapers that send nothing, or half a request, delay neither products nor other scrapers.
TEST(MetricsEndpointTest, SilentScrapersHoldUpNobody) {
  RunningServer server(TestDevice::kCpu, WithMetrics());
  const std::string address = server.server().metrics_address();
  std::vector<HttpPeerSocket> silent;
  for (int i = 0; i < 40; ++i) {
    silent.emplace_back(address);
    ASSERT_TRUE(silent.back().is_connected());
    if (i % 2 == 0) send(silent.back().get(), "GET /met", 8, MSG_NOSIGNAL);
  }
  EXPECT_TRUE(MultiplySmall(server.gemm()).ok());
  EXPECT_THAT(Get(address, "/metrics"), HasSubstr("gemmd_admissions_total 1\n"));
}

// The whole drain can be observed; after it nobody listens.
TEST(MetricsEndpointTest, ServesUntilTheDrainIsOver) {
  RunningServer server(TestDevice::kFake, WithMetrics());
  const std::string address = server.server().metrics_address();
  std::thread call([&] { EXPECT_TRUE(MultiplySmall(server.gemm()).ok()); });
  ASSERT_TRUE(server.fake().WaitForHeld(1, kPatience));
  EXPECT_THAT(Get(address, "/metrics"), HasSubstr("gemmd_draining 0\n"));
  auto drained = std::async(std::launch::async,
                            [&] { return server.server().Drain(absl::InfiniteDuration()); });
  EXPECT_TRUE(Eventually(
      [&] { return absl::StrContains(Get(address, "/metrics"), "gemmd_draining 1\n"); }));
  EXPECT_THAT(Get(address, "/metrics"), HasSubstr("gemmd_admitted_requests 1\n"));
  server.fake().CompleteNext();
  call.join();
  EXPECT_THAT(drained.get(), IsOk());
  EXPECT_EQ(Get(address, "/metrics"), "");
}

TEST(MetricsEndpointTest, AnAddressThatIsTakenIsAnErrorOfTheStart) {
  RunningServer first(TestDevice::kFake, WithMetrics());
  ServerOptions options = TestServerOptions();
  options.metrics_listen = first.server().metrics_address();
  auto fake = std::make_unique<ScriptedDevice>("fake", first.fake().profile());
  fake->RunJobs(true);
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::move(fake));
  EXPECT_THAT(
      Server::Start(options, std::move(devices)),
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr(absl::StrCat("metrics-listen: cannot listen on ", options.metrics_listen,
                                      ": Address already in use"))));
}

TEST(MetricsEndpointTest, IsOffUnlessAskedFor) {
  RunningServer server(TestDevice::kFake);
  EXPECT_EQ(server.server().metrics_address(), "");
}

// Counts stay consistent while many products end and scrapes are in progress.
TEST(MetricsEndpointTest, ScrapesDuringLoadSeeEveryProductInTheEnd) {
  RunningServer server(TestDevice::kCpu, WithMetrics());
  const std::string address = server.server().metrics_address();
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) EXPECT_TRUE(MultiplySmall(server.gemm()).ok());
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Get(address, "/metrics"), HasSubstr("gemmd_queue"));
  for (std::thread& caller : callers) caller.join();
  EXPECT_THAT(Get(address, "/metrics"),
              AllOf(HasSubstr("gemmd_products_total{device=\"cpu\",code=\"OK\"} 200\n"),
                    HasSubstr("gemmd_admissions_total 200\n")));
}

TEST(ProbesTest, FollowHealth) {
  ServerOptions options = TestServerOptions();
  options.metrics_listen = "127.0.0.1:0";
  RunningServer server(TestDevice::kCpu, options);
  const std::string address = server.server().metrics_address();
  EXPECT_THAT(Get(address, "/healthz"), HasSubstr(" 200 OK"));
  EXPECT_THAT(Get(address, "/readyz"), HasSubstr(" 200 OK"));
  server.server().EnterLameDuck();
  EXPECT_THAT(Get(address, "/healthz"), HasSubstr(" 200 OK"));
  EXPECT_THAT(Get(address, "/readyz"), HasSubstr(" 503 "));
  EXPECT_THAT(Get(address, "/readyz"), HasSubstr("the server is stopping"));
}

TEST(ProbesTest, SeeAThreadThatStandsStill) {
  ServerOptions options = TestServerOptions();
  options.metrics_listen = "127.0.0.1:0";
  std::atomic<int> passed = 0;
  options.life_check = {.interval = absl::Milliseconds(1),
                        .longest_silence = absl::ZeroDuration(),
                        .on_alive = [&passed] { ++passed; }};
  std::vector<std::unique_ptr<Device>> devices;
  auto device = std::make_unique<ScriptedDevice>(SharedHost());
  // Its thread moved when the machine started, and not since.
  device->get_condition = [] { return DeviceCondition{.thread_turn_ns = 1}; };
  devices.push_back(std::move(device));
  auto server = Server::Start(options, std::move(devices));
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string address = (*server)->metrics_address();
  // There is no answer until the first check is over.
  std::string answer;
  EXPECT_TRUE(Eventually([&] {
    answer = Get(address, "/healthz");
    return absl::StrContains(answer, "the thread of device cpu is stuck");
  })) << answer;
  EXPECT_THAT(answer, HasSubstr(" 503 "));
  EXPECT_EQ(passed, 0);
}

TEST(ProbesTest, SeeAHandlerThatStandsStill) {
  ServerOptions options = TestServerOptions();
  options.metrics_listen = "127.0.0.1:0";
  options.life_check = {.interval = absl::Milliseconds(1),
                        .longest_silence = absl::ZeroDuration(),
                        .longest_turn = absl::Milliseconds(100)};
  auto device = std::make_unique<ScriptedDevice>(SharedHost());
  std::atomic<bool> blocks = false;
  absl::Notification released;
  // It can block the thread that submits a job.
  device->on_submit = [&](const Job&, Device::Done&) {
    if (blocks) released.WaitForNotification();
  };
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::move(device));
  auto server = Server::Start(options, std::move(devices));
  ASSERT_TRUE(server.ok()) << server.status();
  blocks = true;
  std::thread caller([&] {
    const auto stub = v1::Gemm::NewStub(NewChannel((*server)->addresses()[0]));
    EXPECT_TRUE(MultiplySmall(*stub).ok());
  });
  std::string answer;
  EXPECT_TRUE(Eventually([&] {
    answer = Get((*server)->metrics_address(), "/healthz");
    return absl::StrContains(answer, "is stuck in a handler");
  })) << answer;
  EXPECT_THAT(answer, HasSubstr(" 503 "));
  released.Notify();
  caller.join();
}

TEST(MetricsListTest, HasEveryMetricOnALineOfItsOwn) {
  const std::string list = MetricsJson();
  EXPECT_THAT(list, StartsWith("[\n{\"path\":\"/metrics\",\"name\":\"gemmd_build_info\","));
  EXPECT_THAT(list, HasSubstr("\n{\"path\":\"/metrics\",\"name\":\"gemmd_queue_bytes\","
                              "\"type\":\"gauge\",\"unit\":\"bytes\",\"labels\":[\"device\"],"
                              "\"help\":\"Bytes of operands"));
  EXPECT_THAT(list,
              HasSubstr("\"name\":\"gemmd_products_total\",\"type\":\"counter\",\"unit\":\"\","
                        "\"labels\":[\"device\",\"code\"],"));
  EXPECT_THAT(list, HasSubstr("{\"path\":\"/metrics/triton\",\"name\":\"nv_inference_count\","));
  EXPECT_THAT(list, EndsWith("\"}\n]\n"));
}

}  // namespace
}  // namespace gemmd
