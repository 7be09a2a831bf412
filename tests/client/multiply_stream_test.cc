// SPDX-License-Identifier: Apache-2.0
//
// Streams of products: matching by id, order, errors, ends.
#include "gemmd/multiply_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/product_call.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/client/fake_service.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using Stream = grpc::ServerReaderWriter<v1::MultiplyStreamResponse, v1::MultiplyStreamRequest>;

v1::MultiplyRequest RequestNamed(const std::string& id) {
  v1::MultiplyRequest request;
  request.set_request_id(id);
  return request;
}

v1::MultiplyStreamAnswer AnswerTo(const v1::MultiplyRequest& request) {
  v1::MultiplyStreamAnswer answer;
  answer.set_request_id(request.request_id());
  if (request.request_id() == "bad") {
    answer.mutable_error()->set_code(grpc::StatusCode::INVALID_ARGUMENT);
    answer.mutable_error()->set_message("a.data: got 0 bytes, want m*k*4 = 8");
  } else if (request.request_id() == "impossible") {
    answer.mutable_error()->set_code(0);
  } else if (request.request_id() != "empty") {
    answer.mutable_response()->set_request_id(request.request_id());
    answer.mutable_response()->set_operations(request.m());
  }
  return answer;
}

v1::MultiplyStreamResponse AnswersTo(const v1::MultiplyStreamRequest& message) {
  v1::MultiplyStreamResponse answers;
  for (const v1::MultiplyRequest& request : message.requests()) {
    *answers.add_answers() = AnswerTo(request);
  }
  return answers;
}

// Answers each message at once.
FakeScript AnsweringScript() {
  FakeScript script;
  script.multiply_stream = [](grpc::ServerContext&, Stream& stream) {
    v1::MultiplyStreamRequest message;
    while (stream.Read(&message)) stream.Write(AnswersTo(message));
    return grpc::Status::OK;
  };
  return script;
}

// Answers everything at the end, the last request first.
FakeScript ReversingScript() {
  FakeScript script;
  script.multiply_stream = [](grpc::ServerContext&, Stream& stream) {
    v1::MultiplyStreamRequest all;
    v1::MultiplyStreamRequest message;
    while (stream.Read(&message)) all.MergeFrom(message);
    std::reverse(all.mutable_requests()->begin(), all.mutable_requests()->end());
    stream.Write(AnswersTo(all));
    return grpc::Status::OK;
  };
  return script;
}

std::unique_ptr<MultiplyStream> Open(const FakeServer& server, const CallOptions& options = {}) {
  auto client = Client::Create(server.address());
  // The stream outlives the client, as documented.
  return client->OpenMultiplyStream(options);
}

TEST(MultiplyStreamTest, MatchesAnswersByIdInAnyOrder) {
  const FakeServer server(ReversingScript());
  const auto stream = Open(server);
  constexpr int kRequests = 100;
  for (int i = 0; i < kRequests; ++i) {
    v1::MultiplyRequest request = RequestNamed(absl::StrCat(i));
    request.set_m(i);
    ASSERT_THAT(stream->Send(request), IsOk());
  }
  stream->CloseSending();
  for (int i = kRequests - 1; i >= 0; --i) {
    const auto answer = stream->Receive();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->request_id, absl::StrCat(i));
    ASSERT_THAT(answer->response, IsOk());
    EXPECT_EQ((*answer->response)->operations(), i);
  }
  EXPECT_FALSE(stream->Receive().has_value());
  EXPECT_THAT(stream->Finish(), IsOk());
}

TEST(MultiplyStreamTest, WhoDoesNotReceiveMaySendNoMore) {
  const FakeServer server(AnsweringScript());
  const auto stream = Open(server);
  for (int i = 0; i < MultiplyStream::kMaxUnreceived; ++i) {
    ASSERT_THAT(stream->Send(RequestNamed(absl::StrCat(i))), IsOk());
  }
  EXPECT_EQ(stream->Send(RequestNamed("more")).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(stream->Receive().has_value());
  EXPECT_THAT(stream->Send(RequestNamed("more")), IsOk());
  stream->CloseSending();
  int answers = 1;
  while (stream->Receive()) ++answers;
  EXPECT_EQ(answers, MultiplyStream::kMaxUnreceived + 1);
  EXPECT_THAT(stream->Finish(), IsOk());
}

// Each answer has a matrix of 1 MiB; there are more of them than may be kept.
TEST(MultiplyStreamTest, WhoDoesNotReceiveHoldsBackTheServer) {
  constexpr int kProducts = 256;
  constexpr int64_t kAnswerBytes = 1 << 20;
  constexpr int64_t kMaxKept = MultiplyStream::kMaxUnreceivedBytes / kAnswerBytes;
  std::atomic<int> written = 0;
  FakeScript script;
  script.multiply_stream = [&](grpc::ServerContext&, Stream& stream) {
    v1::MultiplyStreamRequest message;
    while (stream.Read(&message)) {
      for (const v1::MultiplyRequest& request : message.requests()) {
        v1::MultiplyStreamResponse answers;
        *answers.add_answers() = AnswerTo(request);
        answers.mutable_answers(0)->mutable_response()->mutable_d()->set_data(
            std::string(kAnswerBytes, 'd'));
        if (!stream.Write(answers)) return grpc::Status::CANCELLED;
        ++written;
      }
    }
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  const auto stream = Open(server);
  v1::MultiplyRequest request = RequestNamed("large");
  request.mutable_a()->set_data(std::string(1 << 20, 'a'));
  int sent = 0;
  absl::Status refused;
  while (sent < kProducts && (refused = stream->Send(request)).ok()) ++sent;
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("call Receive first"));
  // The connection's buffers on both sides hold some in addition to those kept.
  EXPECT_GE(written, kMaxKept);
  EXPECT_LE(written, kMaxKept + 64);
  // A caller that receives at the same time can continue to send.
  int received = 0;
  std::thread receiver([&] {
    while (stream->Receive()) ++received;
  });
  const int wanted = sent + 16;
  while (sent < wanted) {
    if (stream->Send(request).ok()) ++sent;
  }
  EXPECT_THAT(stream->Finish(), IsOk());
  receiver.join();
  EXPECT_EQ(received, wanted);
}

// All answers that were not received before are kept.
TEST(MultiplyStreamTest, WhoFinishesGetsEverything) {
  constexpr int64_t kAnswerBytes = 16 << 20;
  constexpr int kProducts = MultiplyStream::kMaxUnreceivedBytes / kAnswerBytes + 2;
  FakeScript script;
  script.multiply_stream = [&](grpc::ServerContext&, Stream& stream) {
    v1::MultiplyStreamRequest message;
    v1::MultiplyStreamResponse answer;
    answer.add_answers()->mutable_response()->mutable_d()->set_data(std::string(kAnswerBytes, 'd'));
    while (stream.Read(&message)) {
      for (int i = 0; i < message.requests_size(); ++i) stream.Write(answer);
    }
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  const auto stream = Open(server);
  for (int i = 0; i < kProducts; ++i) ASSERT_THAT(stream->Send(RequestNamed("small")), IsOk());
  EXPECT_THAT(stream->Finish(), IsOk());
  int received = 0;
  while (stream->Receive()) ++received;
  EXPECT_EQ(received, kProducts);
}

TEST(MultiplyStreamTest, GoesOnAfterARefusedRequest) {
  const FakeServer server(AnsweringScript());
  const auto stream = Open(server);
  for (const char* id : {"bad", "impossible", "empty", "good"})
    ASSERT_THAT(stream->Send(RequestNamed(id)), IsOk());
  EXPECT_THAT(stream->Receive()->response,
              StatusIs(absl::StatusCode::kInvalidArgument, "a.data: got 0 bytes, want m*k*4 = 8"));
  EXPECT_THAT(stream->Receive()->response, StatusIs(absl::StatusCode::kUnknown));
  EXPECT_THAT(stream->Receive()->response, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(stream->Receive()->response, IsOk());
  EXPECT_THAT(stream->Finish(), IsOk());
}

TEST(MultiplyStreamTest, SendsFromManyThreadsWhileOneReceives) {
  const FakeServer server(AnsweringScript());
  const auto stream = Open(server);
  constexpr int kThreads = 4;
  constexpr int kRequests = 200;
  std::set<std::string> ids;
  std::thread receiver([&] {
    while (auto answer = stream->Receive()) ids.insert(answer->request_id);
  });
  std::vector<std::thread> senders;
  senders.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    senders.emplace_back([&, i] {
      for (int j = 0; j < kRequests; ++j) {
        absl::Status sent;
        do {
          sent = stream->Send(RequestNamed(absl::StrCat(i, "/", j)));
        } while (absl::IsResourceExhausted(sent));  // Until the receiver has caught up.
        EXPECT_THAT(sent, IsOk());
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_THAT(stream->Finish(), IsOk());
  receiver.join();
  EXPECT_EQ(ids.size(), static_cast<size_t>(kThreads * kRequests));
}

// The first product is sent at once; later ones wait for a server that does not read, and are sent
// together.
TEST(MultiplyStreamTest, WhatWaitsGoesTogether) {
  constexpr int kRequests = 300;
  absl::Notification may_read;
  std::vector<int> sizes;
  FakeScript script;
  script.multiply_stream = [&](grpc::ServerContext&, Stream& stream) {
    may_read.WaitForNotification();
    v1::MultiplyStreamRequest message;
    while (stream.Read(&message)) {
      sizes.push_back(message.requests_size());
      stream.Write(AnswersTo(message));
    }
    return grpc::Status::OK;
  };
  {
    const FakeServer server(script);
    const auto stream = Open(server);
    // More than the connection buffers for a server that does not read.
    v1::MultiplyRequest large = RequestNamed("large");
    large.mutable_a()->set_data(std::string(8 << 20, 'x'));
    ASSERT_THAT(stream->Send(large), IsOk());
    for (int i = 0; i < RequestQueue::kMaxRequests; ++i) {
      ASSERT_THAT(stream->Send(RequestNamed(absl::StrCat(i))), IsOk());
    }
    may_read.Notify();
    for (int i = RequestQueue::kMaxRequests; i < kRequests; ++i) {
      ASSERT_THAT(stream->Send(RequestNamed(absl::StrCat(i))), IsOk());
    }
    EXPECT_THAT(stream->Finish(), IsOk());
    int received = 0;
    while (stream->Receive()) ++received;
    EXPECT_EQ(received, kRequests + 1);
  }
  ASSERT_GE(sizes.size(), 3u);
  EXPECT_EQ(sizes[0], 1);
  EXPECT_EQ(sizes[1], RequestQueue::kMaxRequests);
}

TEST(RequestQueueTest, TakesWhatAMessageHolds) {
  RequestQueue queue;
  v1::MultiplyRequest request;
  request.mutable_a()->set_data(std::string(RequestQueue::kMaxBytes / 2, 'x'));
  const std::string part = RequestQueue::PartOf(request);
  queue.Add(part);
  EXPECT_FALSE(queue.Takes(part));
  EXPECT_TRUE(queue.Takes(RequestQueue::PartOf(RequestNamed("small"))));
  queue.Add(RequestQueue::PartOf(RequestNamed("small")));
  const grpc::ByteBuffer bytes = queue.Take();
  EXPECT_TRUE(queue.empty());
  EXPECT_TRUE(queue.Takes(std::string(2 * RequestQueue::kMaxBytes, 'x')));
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(bytes.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 1u);
  v1::MultiplyStreamRequest message;
  ASSERT_TRUE(message.ParseFromArray(slices[0].begin(), static_cast<int>(slices[0].size())));
  ASSERT_EQ(message.requests_size(), 2);
  EXPECT_EQ(message.requests(0).a().data(), request.a().data());
  EXPECT_EQ(message.requests(1).request_id(), "small");
}

TEST(MultiplyStreamTest, OneThreadMaySendEverythingFirst) {
  const FakeServer server(AnsweringScript());
  const auto stream = Open(server);
  constexpr int kRequests = 64;
  v1::MultiplyRequest request = RequestNamed("large");
  request.mutable_a()->set_data(std::string(1 << 20, 'x'));
  for (int i = 0; i < kRequests; ++i) ASSERT_THAT(stream->Send(request), IsOk());
  EXPECT_THAT(stream->Finish(), IsOk());
  int received = 0;
  while (stream->Receive().has_value()) ++received;
  EXPECT_EQ(received, kRequests);
}

TEST(MultiplyStreamTest, RefusesToSendOnceClosed) {
  const FakeServer server(AnsweringScript());
  const auto stream = Open(server);
  stream->CloseSending();
  stream->CloseSending();
  EXPECT_THAT(stream->Send(RequestNamed("late")), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(stream->Finish(), IsOk());
}

TEST(MultiplyStreamTest, TellsSendersWhyTheServerEndedIt) {
  FakeScript script;
  script.multiply_stream = [](grpc::ServerContext&, Stream& stream) {
    v1::MultiplyStreamRequest message;
    stream.Read(&message);
    stream.Write(AnswersTo(message));
    return grpc::Status(grpc::StatusCode::ABORTED, "device lost");
  };
  const FakeServer server(script);
  const auto stream = Open(server);
  ASSERT_THAT(stream->Send(RequestNamed("only")), IsOk());
  EXPECT_EQ(stream->Receive()->request_id, "only");
  EXPECT_FALSE(stream->Receive().has_value());
  EXPECT_THAT(stream->Send(RequestNamed("next")),
              StatusIs(absl::StatusCode::kAborted, "device lost"));
  EXPECT_THAT(stream->Finish(), StatusIs(absl::StatusCode::kAborted, "device lost"));
}

TEST(MultiplyStreamTest, TellsSendersThatAnEarlyEndIsNoSuccess) {
  FakeScript script;
  script.multiply_stream = [](grpc::ServerContext&, Stream&) { return grpc::Status::OK; };
  const FakeServer server(script);
  const auto stream = Open(server);
  EXPECT_FALSE(stream->Receive().has_value());
  EXPECT_THAT(stream->Send(RequestNamed("next")), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(MultiplyStreamTest, CancelsAndExpires) {
  FakeScript script;
  script.multiply_stream = [](grpc::ServerContext&, Stream& stream) {
    v1::MultiplyStreamRequest message;
    while (stream.Read(&message)) {
    }
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  const auto cancelled = Open(server);
  ASSERT_THAT(cancelled->Send(RequestNamed("one")), IsOk());
  cancelled->Cancel();
  EXPECT_FALSE(cancelled->Receive().has_value());
  EXPECT_THAT(cancelled->Finish(), StatusIs(absl::StatusCode::kCancelled));

  const auto expired = Open(server, {.timeout = absl::Milliseconds(50)});
  EXPECT_FALSE(expired->Receive().has_value());
  EXPECT_THAT(expired->Finish(), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(MultiplyStreamTest, MayBeDroppedAtAnyTime) {
  const FakeServer server(ReversingScript());
  { const auto unused = Open(server); }
  {
    const auto unanswered = Open(server);
    ASSERT_THAT(unanswered->Send(RequestNamed("one")), IsOk());
  }
  {
    const auto unread = Open(server);
    ASSERT_THAT(unread->Send(RequestNamed("one")), IsOk());
    unread->CloseSending();
  }
}

// As AsyncCallTest.TheLastChannelEndsOnAThreadOfTheUser: here the stream holds the last channel.
TEST(MultiplyStreamTest, MayHoldTheLastChannel) {
  ClientOptions options;
  options.max_attempts = 1;
  for (int i = 0; i < 100; ++i) {
    std::unique_ptr<MultiplyStream> stream;
    {
      auto client = Client::Create("127.0.0.1:1", options);  // Reserved; nothing listens there.
      ASSERT_THAT(client, IsOk());
      stream = client->OpenMultiplyStream();
    }
    EXPECT_FALSE(stream->Receive().has_value());
    EXPECT_THAT(stream->Finish(), StatusIs(absl::StatusCode::kUnavailable));
  }
}

}  // namespace
}  // namespace gemmd
