// SPDX-License-Identifier: Apache-2.0
//
// Blocking calls: deadlines, limits, threads, the registry.
#include "gemmd/client.h"

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "tests/client/fake_service.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;

TEST(ClientTest, MultipliesVectorsInFiveLines) {
  const FakeServer server(ComputingScript());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<float> b = {1, 0, 0, 1, 1, 1};
  const auto product = client->Multiply(View(a, 2, 3), View(b, 3, 2));
  ASSERT_THAT(product, IsOk());
  ASSERT_THAT(product->elements<float>(), IsOk());
  EXPECT_THAT(*product->elements<float>(), ElementsAre(4, 5, 10, 11));
  EXPECT_EQ(product->rows(), 2);
  EXPECT_EQ(product->columns(), 2);
  EXPECT_EQ(product->timing().compute_ns, 1000);
  EXPECT_THAT(product->elements<double>(), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    "elements: got f64, want D's type, f32"));
}

// gRPC's shutdown would wait for its threads, for up to 10 s after a long message.
TEST(ClientTest, TheLastClientDoesNotEndGrpc) {
  {
    const absl::StatusOr<Client> client = Client::Create("127.0.0.1:1");
    ASSERT_THAT(client.status(), IsOk());
  }
  EXPECT_EQ(grpc_is_initialized(), 1);
}

TEST(ClientTest, FindsMistakesBeforeSending) {
  const FakeServer server(ComputingScript());
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const std::vector<float> a(6);
  EXPECT_THAT(
      client->Multiply(View(a, 2, 4), View(a, 4, 2)),
      StatusIs(absl::StatusCode::kInvalidArgument, "a.data: got 24 bytes, want m*k*4 = 32"));
  EXPECT_EQ(server.multiply_calls(), 0);
}

TEST(ClientTest, EveryCallHasADeadline) {
  std::vector<absl::Duration> left;
  FakeScript script;
  script.multiply = [&](grpc::CallbackServerContext& context, const v1::MultiplyRequest&,
                        v1::MultiplyResponse&) {
    left.push_back(absl::FromChrono(context.deadline()) - absl::Now());
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  ClientOptions options;
  options.timeout = absl::Seconds(1000);
  auto client = Client::Create(server.address(), options);
  ASSERT_THAT(client, IsOk());
  ASSERT_THAT(client->Multiply(v1::MultiplyRequest()), IsOk());
  ASSERT_THAT(client->Multiply(v1::MultiplyRequest(), {.timeout = absl::Seconds(5000)}), IsOk());
  ASSERT_THAT(client->Multiply(v1::MultiplyRequest(), {.timeout = absl::InfiniteDuration()}),
              IsOk());
  ASSERT_EQ(left.size(), 3u);
  // gRPC rounds long deadlines up to a unit of the header that carries them.
  EXPECT_GT(left[0], absl::Seconds(900));
  EXPECT_LE(left[0], absl::Seconds(1010));
  EXPECT_GT(left[1], absl::Seconds(4900));
  EXPECT_LE(left[1], absl::Seconds(5100));
  EXPECT_LE(left[2], absl::Hours(366 * 24));
}

TEST(ClientTest, GivesUpAtTheDeadline) {
  FakeScript script;
  script.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest&,
                       v1::MultiplyResponse&) { return std::nullopt; };
  const FakeServer server(script);
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT(client->Multiply(v1::MultiplyRequest(), {.timeout = absl::Milliseconds(50)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(client->Multiply(v1::MultiplyRequest(), {.timeout = -absl::Seconds(1)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(ClientTest, RefusesMessagesOverItsLimit) {
  FakeScript script;
  script.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest& request,
                       v1::MultiplyResponse& response) {
    if (request.request_id() == "long answer")
      response.mutable_d()->set_data(std::string(1 << 20, 'x'));
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  ClientOptions options;
  options.max_message_bytes = 100'000;
  auto client = Client::Create(server.address(), options);
  ASSERT_THAT(client, IsOk());
  v1::MultiplyRequest request;
  request.mutable_a()->set_data(std::string(100'001, 'x'));
  const auto says_what_to_do = StatusIs(absl::StatusCode::kResourceExhausted,
                                        testing::HasSubstr("put large operands on the server"));
  EXPECT_THAT(client->Multiply(request), says_what_to_do);
  EXPECT_EQ(server.multiply_calls(), 0);
  request.mutable_a()->set_data(std::string(99'000, 'x'));
  EXPECT_THAT(client->Multiply(request), IsOk());
  request.set_request_id("long answer");
  EXPECT_THAT(client->Multiply(request), says_what_to_do);
}

TEST(ClientTest, TakesAndSendsManyMegabytes) {
  FakeScript script;
  script.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest& request,
                       v1::MultiplyResponse& response) {
    response.mutable_d()->set_data(request.a().data());
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  v1::MultiplyRequest request;
  request.mutable_a()->set_data(std::string(size_t{64} << 20, 'x'));
  const auto response = client->Multiply(request);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->d().data().size(), size_t{64} << 20);
}

// Answers with the request's id.
FakeScript EchoingScript() {
  FakeScript script;
  script.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest& request,
                       v1::MultiplyResponse& response) {
    response.set_request_id(request.request_id());
    return grpc::Status::OK;
  };
  return script;
}

TEST(ClientTest, ManyThreadsShareOneClient) {
  const FakeServer server(EchoingScript());
  ClientOptions options;
  options.channels = 3;
  auto client = Client::Create(server.address(), options);
  ASSERT_THAT(client, IsOk());
  constexpr int kThreads = 8;
  constexpr int kCalls = 50;
  std::atomic<int> matched = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < kCalls; ++j) {
        v1::MultiplyRequest request;
        request.set_request_id(absl::StrCat(i, "/", j));
        const auto response = client->Multiply(request);
        if (response.ok() && response->request_id() == request.request_id()) matched.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(matched.load(), kThreads * kCalls);
  EXPECT_EQ(server.connections(), 3);
}

TEST(ClientTest, AsksTheRegistry) {
  FakeScript script;
  script.list_kernels = [](const v1::ListKernelsRequest& request,
                           v1::ListKernelsResponse& response) {
    response.add_kernels()->set_name("matches " + request.name_pattern());
    return grpc::Status::OK;
  };
  script.list_devices = [](v1::ListDevicesResponse& response) {
    response.add_devices()->set_name("cpu");
    return grpc::Status::OK;
  };
  script.explain = [](const v1::ExplainRequest& request, v1::ExplainResponse& response) {
    EXPECT_EQ(request.request().a().source_case(), v1::Operand::SOURCE_NOT_SET);
    EXPECT_EQ(request.request().a().type(), v1::ELEMENT_TYPE_F32);
    EXPECT_EQ(request.request().m(), 1);
    response.set_device("cpu");
    return grpc::Status::OK;
  };
  script.get_server_info = [](v1::GetServerInfoResponse& response) {
    response.set_version("1.2.3");
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  EXPECT_EQ(client->ListKernels("*bf16*")->kernels(0).name(), "matches *bf16*");
  EXPECT_EQ(client->ListDevices()->devices(0).name(), "cpu");
  EXPECT_EQ(client->GetServerInfo()->version(), "1.2.3");
  const std::vector<float> one = {1};
  const auto request = BuildRequest(View(one, 1, 1), View(one, 1, 1));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(client->Explain(*request)->device(), "cpu");
}

TEST(ClientTest, MovesItsConnections) {
  const FakeServer server(ComputingScript());
  auto first = Client::Create(server.address());
  ASSERT_THAT(first, IsOk());
  Client second = *std::move(first);
  EXPECT_THAT(second.Multiply(v1::MultiplyRequest()), IsOk());
  auto third = Client::Create(server.address());
  ASSERT_THAT(third, IsOk());
  second = *std::move(third);
  EXPECT_THAT(second.Multiply(v1::MultiplyRequest()), IsOk());
}

}  // namespace
}  // namespace gemmd
