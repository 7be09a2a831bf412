// SPDX-License-Identifier: Apache-2.0
//
// Which calls are retried, how often, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/client/fake_service.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

// Backoff so short that tests do not wait for it.
ClientOptions QuickRetries() {
  ClientOptions options;
  options.initial_backoff = absl::Milliseconds(1);
  options.max_backoff = absl::Milliseconds(1);
  return options;
}

// Fails with `status` the first `failures` times.
FakeScript FailingScript(const grpc::Status& status, int failures) {
  FakeScript script;
  auto left = std::make_shared<std::atomic<int>>(failures);
  script.multiply = [status, left](grpc::CallbackServerContext&, const v1::MultiplyRequest& request,
                                   v1::MultiplyResponse& response) -> std::optional<grpc::Status> {
    if (left->fetch_sub(1) > 0) return status;
    response.set_request_id(request.request_id());
    return grpc::Status::OK;
  };
  return script;
}

TEST(RetryTest, RetriesWhatIsUnavailable) {
  const FakeServer server(FailingScript({grpc::StatusCode::UNAVAILABLE, "draining"}, 3));
  auto client = Client::Create(server.address(), QuickRetries());
  ASSERT_THAT(client, IsOk());
  v1::MultiplyRequest request;
  request.set_request_id("four times");
  const auto response = client->Multiply(request);
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->request_id(), "four times");
  EXPECT_EQ(server.multiply_calls(), 4);
}

TEST(RetryTest, RetriesRequestsBeyondGrpcsOwnBuffer) {
  const FakeServer server(FailingScript({grpc::StatusCode::UNAVAILABLE, "draining"}, 2));
  auto client = Client::Create(server.address(), QuickRetries());
  ASSERT_THAT(client, IsOk());
  v1::MultiplyRequest request;
  request.mutable_a()->set_data(std::string(size_t{8} << 20, 'x'));
  EXPECT_THAT(client->Multiply(request), IsOk());
  EXPECT_EQ(server.multiply_calls(), 3);
}

TEST(RetryTest, StopsAfterTheLastAttempt) {
  const FakeServer server(FailingScript({grpc::StatusCode::UNAVAILABLE, "draining"}, 100));
  ClientOptions options = QuickRetries();
  options.max_attempts = 3;
  auto client = Client::Create(server.address(), options);
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT(client->Multiply(v1::MultiplyRequest()),
              StatusIs(absl::StatusCode::kUnavailable, "draining"));
  EXPECT_EQ(server.multiply_calls(), 3);
}

TEST(RetryTest, OneAttemptMeansNoRetry) {
  const FakeServer server(FailingScript({grpc::StatusCode::UNAVAILABLE, "draining"}, 100));
  ClientOptions options;
  options.max_attempts = 1;
  auto client = Client::Create(server.address(), options);
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT(client->Multiply(v1::MultiplyRequest()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(server.multiply_calls(), 1);
}

TEST(RetryTest, RetriesNothingElse) {
  for (int code = 1; code <= 16; ++code) {
    if (code == grpc::StatusCode::UNAVAILABLE) continue;
    const FakeServer server(
        FailingScript({static_cast<grpc::StatusCode>(code), "the reason"}, 100));
    auto client = Client::Create(server.address(), QuickRetries());
    ASSERT_THAT(client, IsOk());
    EXPECT_THAT(client->Multiply(v1::MultiplyRequest()),
                StatusIs(static_cast<absl::StatusCode>(code), "the reason"));
    EXPECT_EQ(server.multiply_calls(), 1) << code;
  }
}

TEST(RetryTest, WaitsAsLongAsTheServerAsks) {
  FakeScript script = FailingScript({grpc::StatusCode::UNAVAILABLE, "later"}, 1);
  const auto fail_once = script.multiply;
  script.multiply = [fail_once](grpc::CallbackServerContext& context,
                                const v1::MultiplyRequest& request,
                                v1::MultiplyResponse& response) {
    std::optional<grpc::Status> status = fail_once(context, request, response);
    if (!status->ok()) context.AddTrailingMetadata("grpc-retry-pushback-ms", "1");
    return status;
  };
  const FakeServer server(script);
  ClientOptions options;  // Without the server's pushback, the retry would come after the deadline.
  options.initial_backoff = absl::Seconds(500);
  options.max_backoff = absl::Seconds(500);
  options.timeout = absl::Seconds(100);
  auto client = Client::Create(server.address(), options);
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT(client->Multiply(v1::MultiplyRequest()), IsOk());
  EXPECT_EQ(server.multiply_calls(), 2);
}

TEST(RetryTest, PassesOnThePauseOfAFullQueue) {
  FakeScript script;
  script.multiply = [](grpc::CallbackServerContext& context, const v1::MultiplyRequest&,
                       v1::MultiplyResponse&) {
    context.AddTrailingMetadata("grpc-retry-pushback-ms", "250");
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                        "queue: got 1025 requests, want at most 1024");
  };
  const FakeServer server(script);
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  const auto response = client->Multiply(v1::MultiplyRequest());
  EXPECT_THAT(response, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(RetryPushback(response.status()), absl::Milliseconds(250));
  EXPECT_EQ(RetryPushback(absl::ResourceExhaustedError("no word")), std::nullopt);
  EXPECT_EQ(server.multiply_calls(), 1);
}

TEST(RetryTest, ClosedPortIsUnavailable) {
  std::string address;
  {
    const FakeServer server({});
    address = server.address();
  }
  auto client = Client::Create(address, QuickRetries());
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT(client->GetServerInfo(), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace gemmd
