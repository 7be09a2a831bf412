// SPDX-License-Identifier: Apache-2.0
//
// More work than the server accepts, cancelled calls and expired calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "tests/server/wire/running_server.h"
#include "tests/testing/patience.h"
#include "tests/testing/timed.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

// A unary call in progress on its own thread.
class PendingCall {
 public:
  PendingCall(v1::Gemm::Stub& stub, v1::MultiplyRequest request, absl::Duration timeout = kPatience,
              const std::string& session = "") {
    AllowTime(context_, timeout);
    if (!session.empty()) context_.AddMetadata("gemmd-session", session);
    status_ = std::async(std::launch::async, [this, &stub, request = std::move(request)] {
      return stub.Multiply(&context_, request, &response_);
    });
  }
  grpc::Status Wait() { return status_.get(); }
  // Waits for the end, but not forever.
  bool HasEnded() {
    return status_.wait_for(absl::ToChronoSeconds(kPatience)) == std::future_status::ready;
  }
  grpc::ClientContext& context() { return context_; }
  const v1::MultiplyResponse& response() const { return response_; }

 private:
  grpc::ClientContext context_;
  v1::MultiplyResponse response_;
  std::future<grpc::Status> status_;
};

// Waits until the scheduler has `count` jobs waiting.
void WaitForQueued(RunningServer& running, int64_t count) {
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    AllowTime(context);
    v1::ListDevicesResponse response;
    EXPECT_TRUE(running.registry().ListDevices(&context, {}, &response).ok());
    return response.devices_size() > 0 && response.devices(0).queued_requests() == count;
  })) << "never had "
      << count << " waiting";
}

// Checks the bytes of queued operands and results, in both lists of devices.
void ExpectQueuedBytes(RunningServer& running, int64_t bytes) {
  grpc::ClientContext context;
  AllowTime(context);
  v1::ListDevicesResponse devices;
  ASSERT_TRUE(running.registry().ListDevices(&context, {}, &devices).ok());
  EXPECT_EQ(devices.devices(0).queued_bytes(), bytes);
  grpc::ClientContext other_context;
  AllowTime(other_context);
  v1::GetStatisticsResponse statistics;
  ASSERT_TRUE(running.registry().GetStatistics(&other_context, {}, &statistics).ok());
  EXPECT_EQ(statistics.devices(0).queued_bytes(), bytes);
}

// When a refused call may be retried; nullopt if it does not say so.
std::optional<int64_t> RetryAfterMs(PendingCall& refused) {
  const auto& trailers = refused.context().GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  if (pushback == trailers.end()) return std::nullopt;
  int64_t ms = 0;
  EXPECT_TRUE(absl::SimpleAtoi(std::string(pushback->second.data(), pushback->second.size()), &ms));
  return ms;
}

// 2 * 1400 * 1400 * 2600 operations take more than ten seconds at 1e9 a second.
v1::MultiplyRequest RequestOfTenSeconds() {
  constexpr int64_t kLines = 1400;
  constexpr int64_t kK = 2600;
  v1::MultiplyRequest request;
  request.set_m(kLines);
  request.set_n(kLines);
  request.set_k(kK);
  for (v1::Operand* operand : {request.mutable_a(), request.mutable_b()}) {
    operand->set_type(v1::ELEMENT_TYPE_S8);
    operand->set_data(std::string(kLines * kK, '\1'));
  }
  return request;
}

// Ten seconds is the longest time given.
TEST(OverloadTest, RefusesPastTheRequestLimitAndSaysWhenToTryAgain) {
  ServerOptions options = TestServerOptions();
  options.admission.max_requests = 2;
  options.admission.max_backlog_ns = int64_t{1} << 60;
  RunningServer running(TestDevice::kFake, options);
  PendingCall first(running.gemm(), RequestOfTenSeconds());
  // A job that is about to be launched also waits, for a moment.
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  PendingCall second(running.gemm(), IntegerRequest(2, 2, 2));
  WaitForQueued(running, 1);
  ExpectQueuedBytes(running, (2 * 2 + 2 * 2 + 2 * 2) * 4);
  PendingCall third(running.gemm(), IntegerRequest(2, 2, 2));
  const grpc::Status refused = third.Wait();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(RetryAfterMs(third), Optional(10'000));

  running.fake().CompleteNext(absl::AbortedError("it takes too long"));
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  running.fake().CompleteNext();
  EXPECT_EQ(first.Wait().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(second.Wait().ok());
  running.fake().RunJobs(true);
  EXPECT_TRUE(MultiplySmall(running.gemm()).ok());
}

TEST(OverloadTest, RefusesPastTheByteLimit) {
  ServerOptions options = TestServerOptions();
  options.admission.max_bytes = 100'000;
  RunningServer running(TestDevice::kFake, options);
  PendingCall small(running.gemm(), IntegerRequest(64, 64, 64));  // 48 KiB.
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  // 75 KiB: does not fit beside the first.
  PendingCall second(running.gemm(), IntegerRequest(80, 80, 80));
  const grpc::Status later = second.Wait();
  EXPECT_EQ(later.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(RetryAfterMs(second), std::nullopt);
  PendingCall huge(running.gemm(), IntegerRequest(128, 128, 128));  // 192 KiB: never fits.
  const grpc::Status never = huge.Wait();
  EXPECT_EQ(never.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(never.error_message(),
              HasSubstr(" bytes, at most 100000 are admitted (--max-queued-bytes)"));
  EXPECT_EQ(RetryAfterMs(huge), std::nullopt);
  running.fake().CompleteNext();
  EXPECT_TRUE(small.Wait().ok());
}

// A session that is open as long as this object lives.
class OpenedSession {
 public:
  explicit OpenedSession(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Tensors::NewStub(channel)), stream_(stub_->OpenSession(&context_, {})) {
    v1::OpenSessionResponse opened;
    EXPECT_TRUE(stream_->Read(&opened));
    token_ = opened.token();
  }
  ~OpenedSession() { context_.TryCancel(); }
  const std::string& token() const { return token_; }

 private:
  std::unique_ptr<v1::Tensors::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::OpenSessionResponse>> stream_;
  std::string token_;
};

// Whether a call gets the second turn while another caller has 16 in progress, behind a product of
// a third caller. First a further call of the hog, which found none of the hog's other calls inside
// and so would share the light caller's turns by its time, is cancelled.
class TurnsTest : public ::testing::Test {
 protected:
  static constexpr int kHogsCalls = 16;

  bool HasSecondTurn(const std::shared_ptr<grpc::Channel>& hogs,
                     const std::function<std::string(int)>& hogs_session,
                     const std::shared_ptr<grpc::Channel>& lights,
                     const std::string& lights_session) {
    const auto hog = v1::Gemm::NewStub(hogs);
    const auto light = v1::Gemm::NewStub(lights);
    std::deque<PendingCall> calls;
    // Products of different shapes do not run as one.
    PendingCall runs(running_.gemm(), IntegerRequest(1, 1, 1), kLong);
    EXPECT_TRUE(running_.fake().WaitForHeld(1, kPatience));
    for (int i = 0; i <= kHogsCalls; ++i) {
      calls.emplace_back(*hog, IntegerRequest(2, 2, 2 + i), kLong, hogs_session(i));
      if (i == 0) WaitForQueued(running_, 1);
    }
    WaitForQueued(running_, kHogsCalls + 1);
    calls.front().context().TryCancel();
    WaitForQueued(running_, kHogsCalls);
    PendingCall call(*light, IntegerRequest(3, 3, 3), kLong, lights_session);
    WaitForQueued(running_, kHogsCalls + 1);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(running_.fake().WaitForHeld(1, kPatience));
      running_.fake().CompleteNext();
    }
    const bool is_answered = call.HasEnded();
    call.context().TryCancel();
    for (PendingCall& other : calls) other.context().TryCancel();
    for (PendingCall& other : calls) other.Wait();
    return is_answered && call.Wait().ok() && runs.Wait().ok();
  }

  // They wait for a device that does nothing by itself.
  static constexpr absl::Duration kLong = absl::Minutes(2);
  static std::string NoSession(int /*call*/) { return ""; }

  RunningServer running_{TestDevice::kFake};
  const std::string& address_ = running_.unix_address();
};

TEST_F(TurnsTest, TwoConnectionsOfOneUserOnAUnixSocket) {
  EXPECT_TRUE(HasSecondTurn(NewChannel(address_), NoSession, NewChannel(address_), ""));
}

TEST_F(TurnsTest, TwoSessionsOnOneConnection) {
  const auto channel = NewChannel(address_);
  const OpenedSession hogs(channel);
  const OpenedSession lights(channel);
  EXPECT_TRUE(HasSecondTurn(
      channel, [&](int) { return hogs.token(); }, channel, lights.token()));
}

TEST_F(TurnsTest, OneWithASessionBesideOneWithoutOnOneConnection) {
  const auto channel = NewChannel(address_);
  const OpenedSession lights(channel);
  EXPECT_TRUE(HasSecondTurn(channel, NoSession, channel, lights.token()));
}

// Each of the hog's calls has its own token, which belongs to no session.
TEST_F(TurnsTest, SessionsThatAreMadeUpHaveNoTurns) {
  const auto channel = NewChannel(address_);
  const auto made_up = [](int i) { return absl::StrCat(std::string(30, 'a'), 10 + i); };
  EXPECT_TRUE(HasSecondTurn(channel, made_up, NewChannel(address_), ""));
}

// Bytes that no product reads, or that are no operand, take memory all the same.
TEST(OverloadTest, EveryByteOfAMessageCounts) {
  ServerOptions options = TestServerOptions();
  options.admission.max_bytes = 1 << 20;
  RunningServer running(TestDevice::kFake, options);
  v1::MultiplyRequest unread = IntegerRequest(512, 1, 1024);
  unread.set_alpha(0);
  v1::MultiplyRequest scaled = IntegerRequest(0, 1 << 19, 0);
  scaled.mutable_a()->set_type(v1::ELEMENT_TYPE_S8);
  scaled.mutable_b()->set_type(v1::ELEMENT_TYPE_S8);
  scaled.mutable_b()->mutable_scale()->mutable_values()->Resize(1 << 19, 1.0f);
  for (const v1::MultiplyRequest& request : {unread, scaled}) {
    PendingCall call(running.gemm(), request);
    const grpc::Status status = call.Wait();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("at most 1048576 are admitted"));
  }
}

TEST(OverloadTest, AFewUnknownBytesAreDroppedAndManyRefused) {
  RunningServer running(TestDevice::kCpu);
  v1::MultiplyRequest request = IntegerRequest(3, 4, 5);
  auto* unknown = request.mutable_a()->GetReflection()->MutableUnknownFields(request.mutable_a());
  unknown->AddLengthDelimited(1000, std::string(500, 'x'));
  PendingCall newer(running.gemm(), request);
  ASSERT_TRUE(newer.Wait().ok());
  EXPECT_TRUE(IsRightProduct(request, newer.response()));
  unknown->AddGroup(1001)->AddLengthDelimited(1, std::string(600, 'x'));
  PendingCall hostile(running.gemm(), request);
  const grpc::Status status = hostile.Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("bytes of unknown fields, want at most 1024"));
}

TEST(OverloadTest, ExpiredWhileWaitingIsNeverLaunched) {
  RunningServer running(TestDevice::kFake);
  PendingCall running_call(running.gemm(), IntegerRequest(2, 2, 2));
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  const int launched = running.fake().submitted();
  PendingCall late(running.gemm(), IntegerRequest(3, 3, 3), absl::Milliseconds(100));
  EXPECT_EQ(late.Wait().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  WaitForQueued(running, 0);
  running.fake().CompleteNext();
  EXPECT_TRUE(running_call.Wait().ok());
  EXPECT_EQ(running.fake().submitted(), launched);
}

TEST(OverloadTest, CancelledWhileWaitingIsNeverLaunched) {
  RunningServer running(TestDevice::kFake);
  PendingCall running_call(running.gemm(), IntegerRequest(2, 2, 2));
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  const int launched = running.fake().submitted();
  PendingCall cancelled(running.gemm(), IntegerRequest(3, 3, 3));
  WaitForQueued(running, 1);
  cancelled.context().TryCancel();
  EXPECT_EQ(cancelled.Wait().error_code(), grpc::StatusCode::CANCELLED);
  WaitForQueued(running, 0);
  running.fake().CompleteNext();
  EXPECT_TRUE(running_call.Wait().ok());
  EXPECT_EQ(running.fake().submitted(), launched);
}

TEST(OverloadTest, CancelledWhileRunningLeavesTheServerWhole) {
  ServerOptions options = TestServerOptions();
  options.admission.max_requests = 1;
  RunningServer running(TestDevice::kFake, options);
  PendingCall cancelled(running.gemm(), IntegerRequest(2, 2, 2));
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  cancelled.context().TryCancel();
  EXPECT_EQ(cancelled.Wait().error_code(), grpc::StatusCode::CANCELLED);
  // The device is told, and the place becomes free without another event.
  EXPECT_TRUE(Eventually([&] { return running.fake().held() == 0; })) << "it still runs";
  running.fake().RunJobs(true);
  EXPECT_TRUE(Eventually([&] { return MultiplySmall(running.gemm()).ok(); }));
}

// The deadline doubles until it suffices for the product to begin.
TEST(OverloadTest, ExpiredWhileRunningIsAborted) {
  RunningServer running(TestDevice::kFake);
  const int before = running.fake().submitted();
  for (absl::Duration deadline = absl::Milliseconds(300);
       running.fake().submitted() == before && deadline < 2 * kPatience; deadline *= 2) {
    PendingCall late(running.gemm(), IntegerRequest(2, 2, 2), deadline);
    EXPECT_EQ(late.Wait().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(Eventually([&] { return running.fake().held() == 0; })) << "it still runs";
  EXPECT_GT(running.fake().submitted(), before);
  EXPECT_EQ(running.fake().aborts(), running.fake().submitted() - before);
}

TEST(OverloadTest, TheDeviceIsBusyWhileAProductRuns) {
  RunningServer running(TestDevice::kFake);
  const auto busy_ns = [&] {
    grpc::ClientContext context;
    AllowTime(context);
    v1::GetStatisticsResponse statistics;
    EXPECT_TRUE(running.registry().GetStatistics(&context, {}, &statistics).ok());
    return statistics.devices(0).busy_ns();
  };
  EXPECT_EQ(busy_ns(), 0);
  PendingCall call(running.gemm(), IntegerRequest(2, 2, 2));
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  const int64_t first_ns = busy_ns();
  EXPECT_GT(busy_ns(), first_ns);
  running.fake().CompleteNext();
  EXPECT_TRUE(call.Wait().ok());
}

TEST(OverloadTest, RefusesAProductThatIsTooLong) {
  ServerOptions options = TestServerOptions();
  options.admission.max_product_ns = 1'000;
  RunningServer running(TestDevice::kFake, options);
  PendingCall call(running.gemm(), IntegerRequest(64, 64, 64));  // 524288 at 1e9 a second.
  const grpc::Status refused = call.Wait();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("at most 1us is accepted"));
}

TEST(OverloadTest, APriorityMustBeKnown) {
  RunningServer running(TestDevice::kFake);
  running.fake().RunJobs(true);
  v1::MultiplyRequest request = IntegerRequest(2, 2, 2);
  request.set_priority(v1::PRIORITY_LOW);
  PendingCall low(running.gemm(), request);
  EXPECT_TRUE(low.Wait().ok());
  request.set_priority(static_cast<v1::Priority>(7));
  PendingCall unknown(running.gemm(), request);
  const grpc::Status refused = unknown.Wait();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("priority: got unknown value 7"));
}

TEST(OverloadTest, PassesOnTheDevicesFailure) {
  RunningServer running(TestDevice::kFake);
  PendingCall call(running.gemm(), IntegerRequest(2, 2, 2));
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  running.fake().CompleteNext(absl::AbortedError("the device was lost while the product ran"));
  const grpc::Status status = call.Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "the device was lost while the product ran");
}

// The products should take less than the shortest retry time, but the running one is already late,
// by no more than the time since it was requested.
TEST(OverloadTimed, ARefusedCallMayComeAgainSoon) {
  ServerOptions options = TestServerOptions();
  options.admission.max_requests = 1;
  RunningServer running(TestDevice::kFake, options);
  const absl::Time begin = absl::Now();
  PendingCall first(running.gemm(), IntegerRequest(2, 2, 2));
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  PendingCall refused(running.gemm(), IntegerRequest(2, 2, 2));
  EXPECT_EQ(refused.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const double passed_ms = absl::ToDoubleMilliseconds(absl::Now() - begin);
  HoldsTimed("time until a refused call may come again", 2 * passed_ms + 100,
             static_cast<double>(RetryAfterMs(refused).value_or(1'000'000)), "ms");
  running.fake().CompleteNext();
  EXPECT_TRUE(first.Wait().ok());
}

}  // namespace
}  // namespace gemmd
