// SPDX-License-Identifier: Apache-2.0
//
// Gemm.MultiplyStream over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/wire/gemm_service.h"
#include "tests/server/wire/running_server.h"
#include "tests/testing/patience.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

using Stream = grpc::ClientReaderWriter<v1::MultiplyRequest, v1::MultiplyStreamResponse>;

v1::MultiplyRequest NumberedRequest(int number) {
  v1::MultiplyRequest request = IntegerRequest(number % 7 + 1, number % 5 + 1, number % 11);
  request.set_request_id(absl::StrCat(number));
  return request;
}

// Requests that wait for the only device; -1 where the server does not say.
int64_t QueuedRequests(RunningServer& running) {
  grpc::ClientContext context;
  AllowTime(context);
  v1::ListDevicesResponse response;
  const grpc::Status status = running.registry().ListDevices(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.devices_size() == 1 ? response.devices(0).queued_requests() : -1;
}

TEST(MultiplyStreamTest, AnswersEveryRequestOnce) {
  constexpr int kRequests = 300;
  RunningServer running(TestDevice::kCpu);
  grpc::ClientContext context;
  AllowTime(context);
  const std::unique_ptr<Stream> stream = running.gemm().MultiplyStream(&context);
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(stream->Write(NumberedRequest(i)));
    stream->WritesDone();
  });
  std::set<std::string> answered;
  v1::MultiplyStreamResponse answer;
  while (stream->Read(&answer)) {
    EXPECT_TRUE(answered.insert(answer.request_id()).second) << answer.request_id();
    ASSERT_TRUE(answer.has_response()) << answer.error().message();
    EXPECT_EQ(answer.response().request_id(), answer.request_id());
    const v1::MultiplyRequest request = NumberedRequest(std::stoi(answer.request_id()));
    EXPECT_TRUE(IsRightProduct(request, answer.response()));
    EXPECT_GT(answer.response().timing().total_ns(), 0);
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answered.size(), static_cast<size_t>(kRequests));
}

TEST(MultiplyStreamTest, ARefusedRequestDoesNotEndTheStream) {
  RunningServer running(TestDevice::kCpu);
  grpc::ClientContext context;
  AllowTime(context);
  const std::unique_ptr<Stream> stream = running.gemm().MultiplyStream(&context);
  v1::MultiplyRequest bad = NumberedRequest(3);
  bad.mutable_a()->set_data("x");
  ASSERT_TRUE(stream->Write(bad));
  v1::MultiplyStreamResponse answer;
  ASSERT_TRUE(stream->Read(&answer));
  ASSERT_TRUE(answer.has_error());
  EXPECT_EQ(answer.request_id(), "3");
  EXPECT_EQ(answer.error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(answer.error().message(), HasSubstr("a.data: got 1 bytes"));
  ASSERT_TRUE(stream->Write(NumberedRequest(4)));
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_TRUE(answer.has_response());
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(MultiplyStreamTest, EndsWithOkWhereNothingIsAsked) {
  RunningServer running(TestDevice::kCpu);
  grpc::ClientContext context;
  AllowTime(context);
  const std::unique_ptr<Stream> stream = running.gemm().MultiplyStream(&context);
  stream->WritesDone();
  v1::MultiplyStreamResponse answer;
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(MultiplyStreamTest, StopsReadingWhileTooManyAreUnanswered) {
  RunningServer running(TestDevice::kFake);
  grpc::ClientContext context;
  AllowTime(context);
  const std::unique_ptr<Stream> stream = running.gemm().MultiplyStream(&context);
  constexpr int kRequests = 3 * kMaxStreamRequests;
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(stream->Write(NumberedRequest(i)));
    stream->WritesDone();
  });
  // One is on the device, the others wait; the bound holds however long the writer goes on.
  const auto queued = [&] { return QueuedRequests(running); };
  EXPECT_TRUE(Eventually([&] { return queued() >= kMaxStreamRequests - 1; }))
      << "only " << queued() << " requests wait";
  for (int i = 0; i < 100; ++i) EXPECT_EQ(queued(), kMaxStreamRequests - 1);
  running.fake().RunJobs(true);
  running.fake().CompleteNext();
  int answers = 0;
  v1::MultiplyStreamResponse answer;
  while (stream->Read(&answer)) ++answers;
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answers, kRequests);
}

TEST(MultiplyStreamTest, CancellingDropsWhatWaitsAndAbortsWhatRuns) {
  RunningServer running(TestDevice::kFake);
  const int launched_before = running.fake().submitted();
  {
    grpc::ClientContext context;
    AllowTime(context);
    const std::unique_ptr<Stream> stream = running.gemm().MultiplyStream(&context);
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(stream->Write(NumberedRequest(i + 1)));
    ASSERT_TRUE(Eventually([&] { return QueuedRequests(running) == 9; }));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return QueuedRequests(running) == 0; })) << "requests still wait";
  EXPECT_TRUE(Eventually([&] { return running.fake().held() == 0; })) << "one still runs";
  EXPECT_EQ(running.fake().submitted(), launched_before + 1);
  running.fake().RunJobs(true);
  EXPECT_TRUE(MultiplySmall(running.gemm()).ok());
}

}  // namespace
}  // namespace gemmd
