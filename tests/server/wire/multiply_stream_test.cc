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
#include "server/wire/incoming.h"
#include "server/wire/product_exchange.h"
#include "tests/server/wire/product_stream.h"
#include "tests/server/wire/running_server.h"
#include "tests/testing/patience.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

v1::MultiplyRequest NumberedRequest(int number) {
  v1::MultiplyRequest request = IntegerRequest(number % 7 + 1, number % 5 + 1, number % 11);
  request.set_request_id(absl::StrCat(number));
  return request;
}

// Requests that wait for the only device; -1 if the server does not answer.
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
  ClientStream stream(running.gemm(), &context);
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(stream.Write(NumberedRequest(i)));
    stream.WritesDone();
  });
  std::set<std::string> answered;
  v1::MultiplyStreamAnswer answer;
  while (stream.Read(&answer)) {
    EXPECT_TRUE(answered.insert(answer.request_id()).second) << answer.request_id();
    ASSERT_TRUE(answer.has_response()) << answer.error().message();
    EXPECT_EQ(answer.response().request_id(), answer.request_id());
    const v1::MultiplyRequest request = NumberedRequest(std::stoi(answer.request_id()));
    EXPECT_TRUE(IsRightProduct(request, answer.response()));
    EXPECT_GT(answer.response().timing().total_ns(), 0);
  }
  writer.join();
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(answered.size(), static_cast<size_t>(kRequests));
}

// Messages are read by several threads while the products of earlier ones are started. The device
// runs one product after another; each has its own shape, so that none run as one.
TEST(MultiplyStreamTest, ProductsStartInTheOrderOfTheirMessages) {
  constexpr int kRequests = 600;
  const auto request = [](int i) {
    v1::MultiplyRequest product = IntegerRequest(i % 30 + 1, i / 30 + 1, 3);
    product.set_request_id(absl::StrCat(i));
    return product;
  };
  RunningServer running(TestDevice::kCpu);
  grpc::ClientContext context;
  AllowTime(context);
  ClientStream stream(running.gemm(), &context);
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(stream.Write(request(i)));
    stream.WritesDone();
  });
  int next = 0;
  v1::MultiplyStreamAnswer answer;
  for (; stream.Read(&answer); ++next) EXPECT_EQ(answer.request_id(), absl::StrCat(next));
  writer.join();
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(next, kRequests);
}

TEST(MultiplyStreamTest, ARefusedRequestDoesNotEndTheStream) {
  RunningServer running(TestDevice::kCpu);
  grpc::ClientContext context;
  AllowTime(context);
  ClientStream stream(running.gemm(), &context);
  v1::MultiplyRequest bad = NumberedRequest(3);
  bad.mutable_a()->set_data("x");
  ASSERT_TRUE(stream.Write(bad));
  v1::MultiplyStreamAnswer answer;
  ASSERT_TRUE(stream.Read(&answer));
  ASSERT_TRUE(answer.has_error());
  EXPECT_EQ(answer.request_id(), "3");
  EXPECT_EQ(answer.error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(answer.error().message(), HasSubstr("a.data: got 1 bytes"));
  ASSERT_TRUE(stream.Write(NumberedRequest(4)));
  ASSERT_TRUE(stream.Read(&answer));
  EXPECT_TRUE(answer.has_response());
  stream.WritesDone();
  EXPECT_FALSE(stream.Read(&answer));
  EXPECT_TRUE(stream.Finish().ok());
}

v1::MultiplyStreamRequest Together(int first, int count) {
  v1::MultiplyStreamRequest message;
  for (int i = first; i < first + count; ++i) *message.add_requests() = NumberedRequest(i);
  return message;
}

TEST(MultiplyStreamTest, ProductsOfAMessageAreAnsweredEachByItself) {
  RunningServer running(TestDevice::kCpu);
  grpc::ClientContext context;
  AllowTime(context);
  ClientStream stream(running.gemm(), &context);
  constexpr int kProducts = static_cast<int>(kMaxJointRequests);
  v1::MultiplyStreamRequest message = Together(0, kProducts);
  message.mutable_requests(7)->mutable_a()->set_data("x");
  message.mutable_requests(9)->set_kernel("none");
  ASSERT_TRUE(stream.Write(v1::MultiplyStreamRequest()));  // Asks for no product.
  ASSERT_TRUE(stream.Write(message));
  ASSERT_TRUE(stream.Write(Together(kProducts, 1)));
  stream.WritesDone();
  std::set<std::string> answered;
  v1::MultiplyStreamAnswer answer;
  while (stream.Read(&answer)) {
    EXPECT_TRUE(answered.insert(answer.request_id()).second) << answer.request_id();
    if (answer.request_id() == "7" || answer.request_id() == "9") {
      EXPECT_TRUE(answer.has_error());
      continue;
    }
    const v1::MultiplyRequest request = NumberedRequest(std::stoi(answer.request_id()));
    EXPECT_TRUE(IsRightProduct(request, answer.response()));
  }
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(answered.size(), static_cast<size_t>(kProducts + 1));
}

TEST(MultiplyStreamTest, AnswersThatAreReadyTogetherShareAMessage) {
  RunningServer running(TestDevice::kFake);
  grpc::ClientContext context;
  AllowTime(context);
  ClientStream stream(running.gemm(), &context);
  constexpr int kProducts = 200;
  ASSERT_TRUE(stream.Write(Together(1, kProducts)));
  ASSERT_TRUE(Eventually([&] { return QueuedRequests(running) == kProducts - 1; }));
  running.fake().RunJobs(true);
  running.fake().CompleteNext();
  stream.WritesDone();
  v1::MultiplyStreamAnswer answer;
  int answers = 0;
  while (stream.Read(&answer)) ++answers;
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(answers, kProducts);
  EXPECT_LT(stream.messages(), kProducts);
}

TEST(MultiplyStreamTest, WhatRanAsOneIsAnsweredTogether) {
  RunningServer running(TestDevice::kFake);
  v1::MultiplyRequest request;
  request.set_m(4);
  request.set_n(4);
  request.set_k(4);
  for (v1::Operand* operand : {request.mutable_a(), request.mutable_b()}) {
    operand->set_type(v1::ELEMENT_TYPE_S8);
    operand->set_data(std::string(16, '\1'));
  }
  std::thread first([&] { EXPECT_TRUE(MultiplySmall(running.gemm()).ok()); });
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  grpc::ClientContext context;
  AllowTime(context);
  ClientStream stream(running.gemm(), &context);
  constexpr int kProducts = 16;  // With more, the first answers would leave before the last are
                                 // ready.
  v1::MultiplyStreamRequest message;
  for (int i = 0; i < kProducts; ++i) *message.add_requests() = request;
  ASSERT_TRUE(stream.Write(message));
  ASSERT_TRUE(Eventually([&] { return QueuedRequests(running) == kProducts; }));
  running.fake().CompleteNext();
  first.join();
  ASSERT_EQ(running.fake().held(), 1);
  running.fake().CompleteNext();
  v1::MultiplyStreamAnswer answer;
  for (int i = 0; i < kProducts; ++i) {
    ASSERT_TRUE(stream.Read(&answer));
    EXPECT_TRUE(answer.has_response()) << answer.error().message();
  }
  // The server may have started another read at that moment, which sends the answers that are
  // ready.
  EXPECT_LE(stream.messages(), 2);
  stream.WritesDone();
  EXPECT_TRUE(stream.Finish().ok());
}

// The message is refused. Products before it are answered.
TEST(MultiplyStreamTest, AMessageBeyondItsBoundsEndsTheStream) {
  RunningServer running(TestDevice::kCpu);
  const auto ends_with = [&](const v1::MultiplyStreamRequest& message) {
    grpc::ClientContext context;
    AllowTime(context);
    ClientStream stream(running.gemm(), &context);
    EXPECT_TRUE(stream.Write(NumberedRequest(5)));
    EXPECT_TRUE(stream.Write(message));
    v1::MultiplyStreamAnswer answer;
    EXPECT_TRUE(stream.Read(&answer));
    EXPECT_TRUE(IsRightProduct(NumberedRequest(5), answer.response()));
    EXPECT_FALSE(stream.Read(&answer));
    const grpc::Status status = stream.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_EQ(ends_with(Together(0, static_cast<int>(kMaxJointRequests) + 1)),
            "requests: got more, want at most 256 in one message");
  v1::MultiplyStreamRequest large = Together(1, 2);
  large.mutable_requests(0)->mutable_a()->set_data(std::string(kMaxJointBytes, 'x'));
  EXPECT_THAT(ends_with(large), HasSubstr("want a single one, or at most 4194304 bytes"));
  v1::MultiplyStreamRequest unknown = Together(1, 1);
  unknown.GetReflection()->MutableUnknownFields(&unknown)->AddLengthDelimited(
      99, std::string(2000, 'x'));
  EXPECT_THAT(ends_with(unknown), HasSubstr("bytes of unknown fields, want at most 1024"));
  // A single one may be as large as any.
  large = Together(1, 1);
  large.mutable_requests(0)->mutable_a()->set_data(std::string(kMaxJointBytes, 'x'));
  grpc::ClientContext context;
  AllowTime(context);
  ClientStream stream(running.gemm(), &context);
  ASSERT_TRUE(stream.Write(large));
  v1::MultiplyStreamAnswer answer;
  ASSERT_TRUE(stream.Read(&answer));
  EXPECT_THAT(answer.error().message(), HasSubstr("a.data: got 4194304 bytes"));
}

TEST(MultiplyStreamTest, TellsWhichProductCouldNotBeRead) {
  RunningServer running(TestDevice::kCpu);
  grpc::ClientContext context;
  AllowTime(context);
  ClientStream stream(running.gemm(), &context);
  v1::MultiplyStreamRequest message = Together(1, 3);
  v1::MultiplyRequest& bad = *message.mutable_requests(1);
  bad.GetReflection()->MutableUnknownFields(&bad)->AddLengthDelimited(99, std::string(2000, 'x'));
  ASSERT_TRUE(stream.Write(message));
  stream.WritesDone();
  std::set<std::string> refused;
  v1::MultiplyStreamAnswer answer;
  while (stream.Read(&answer)) {
    if (answer.has_error()) refused.insert(answer.request_id());
  }
  EXPECT_EQ(refused, std::set<std::string>{"2"});
}

TEST(MultiplyStreamTest, EndsWithOkWhereNothingIsAsked) {
  RunningServer running(TestDevice::kCpu);
  grpc::ClientContext context;
  AllowTime(context);
  ClientStream stream(running.gemm(), &context);
  stream.WritesDone();
  v1::MultiplyStreamAnswer answer;
  EXPECT_FALSE(stream.Read(&answer));
  EXPECT_TRUE(stream.Finish().ok());
}

// Checks how many products of a stream wait for the device if its messages have `together` products
// each, and that the stream continues.
void ExpectReadingStops(int together) {
  RunningServer running(TestDevice::kFake);
  grpc::ClientContext context;
  AllowTime(context);
  ClientStream stream(running.gemm(), &context);
  constexpr int kRequests = 2 * kMaxStreamRequests;
  std::thread writer([&] {
    for (int i = 0; i < kRequests; i += together) ASSERT_TRUE(stream.Write(Together(i, together)));
    stream.WritesDone();
  });
  // One is on the device, the others wait; the limit holds however long the writer continues.
  const auto queued = [&] { return QueuedRequests(running); };
  EXPECT_TRUE(Eventually([&] { return queued() >= kMaxStreamRequests - 1; }))
      << "only " << queued() << " requests wait";
  for (int i = 0; i < 100; ++i) EXPECT_EQ(queued(), kMaxStreamRequests - 1);
  running.fake().RunJobs(true);
  running.fake().CompleteNext();
  int answers = 0;
  v1::MultiplyStreamAnswer answer;
  while (stream.Read(&answer)) ++answers;
  writer.join();
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(answers, kRequests);
}

TEST(MultiplyStreamTest, StopsReadingWhileTooManyAreUnanswered) { ExpectReadingStops(1); }

TEST(MultiplyStreamTest, StopsReadingMessagesOfManyWhileTooManyAreUnanswered) {
  static_assert(kMaxStreamRequests % kMaxJointRequests == 0);
  ExpectReadingStops(kMaxJointRequests);
}

TEST(MultiplyStreamTest, CancellingDropsWhatWaitsAndAbortsWhatRuns) {
  RunningServer running(TestDevice::kFake);
  const int launched_before = running.fake().submitted();
  {
    grpc::ClientContext context;
    AllowTime(context);
    ClientStream stream(running.gemm(), &context);
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(stream.Write(NumberedRequest(i + 1)));
    ASSERT_TRUE(Eventually([&] { return QueuedRequests(running) == 9; }));
    context.TryCancel();
    EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return QueuedRequests(running) == 0; })) << "requests still wait";
  EXPECT_TRUE(Eventually([&] { return running.fake().held() == 0; })) << "one still runs";
  EXPECT_EQ(running.fake().submitted(), launched_before + 1);
  running.fake().RunJobs(true);
  EXPECT_TRUE(MultiplySmall(running.gemm()).ok());
}

}  // namespace
}  // namespace gemmd
