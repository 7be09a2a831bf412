// SPDX-License-Identifier: Apache-2.0
//
// Lame duck and drain of the server, and starts that must fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "kernels/cpu/host.h"
#include "server/system/clock.h"
#include "tests/server/device/shared_host.h"
#include "tests/server/wire/product_stream.h"
#include "tests/server/wire/running_server.h"
#include "tests/testing/patience.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

std::future<grpc::Status> MultiplyInBackground(RunningServer& running) {
  return std::async(std::launch::async, [&running] { return MultiplySmall(running.gemm()); });
}

TEST(DrainTest, LameDuckStillWorks) {
  RunningServer running(TestDevice::kCpu);
  running.server().EnterLameDuck();
  EXPECT_TRUE(MultiplySmall(running.gemm()).ok());
}

bool IsDraining(RunningServer& running) {
  grpc::ClientContext context;
  AllowTime(context);
  v1::GetServerInfoResponse info;
  EXPECT_TRUE(running.registry().GetServerInfo(&context, {}, &info).ok());
  return info.draining();
}

TEST(DrainTest, FinishesWhatWasAcceptedAndRefusesTheRest) {
  RunningServer running(TestDevice::kFake);
  std::future<grpc::Status> first = MultiplyInBackground(running);
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  std::future<absl::Status> drained =
      std::async(std::launch::async, [&] { return running.server().Drain(kPatience); });
  // Refused from the moment at which draining is visible.
  EXPECT_TRUE(Eventually([&] { return IsDraining(running); }))
      << "the server does not say that it drains";
  const grpc::Status refused = MultiplySmall(running.gemm());
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refused.error_message(), "the server is draining");
  running.fake().CompleteNext();
  EXPECT_TRUE(Awaited(std::move(first), "the end of the product that ran").ok());
  EXPECT_EQ(Awaited(std::move(drained), "the end of the drain"), absl::OkStatus());
  EXPECT_EQ(MultiplySmall(running.gemm()).error_code(), grpc::StatusCode::UNAVAILABLE);
}

// The pause is only longer on a busy machine, and only calls that ended within it are judged: gRPC
// 1.51 may tell CANCELLED to those that arrive just as it stops.
TEST(DrainTest, RefusesForAWhileOnceNothingIsLeft) {
  RunningServer running(TestDevice::kFake);
  std::future<grpc::Status> first = MultiplyInBackground(running);
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  std::future<absl::Status> drained =
      std::async(std::launch::async, [&] { return running.server().Drain(kPatience); });
  EXPECT_TRUE(Eventually([&] { return IsDraining(running); }));
  const SteadyClock clock;
  const int64_t begun_ns = clock.NowNs();
  const auto passed = [&] { return absl::Nanoseconds(clock.NowNs() - begun_ns); };
  running.fake().CompleteNext();
  while (true) {
    const grpc::Status refused = MultiplySmall(running.gemm());
    if (passed() >= Server::kRefusing) break;
    ASSERT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
    ASSERT_EQ(refused.error_message(), "the server is draining");
  }
  EXPECT_EQ(Awaited(std::move(drained), "the end of the drain"), absl::OkStatus());
  EXPECT_GE(passed(), Server::kRefusing);
  EXPECT_TRUE(Awaited(std::move(first), "the end of the product that ran").ok());
}

// Drains while one product runs and one waits; the grace ends before either is done.
void CheckThatBothAreAnswered(RunningServer& running, absl::Duration grace, bool ends_grace) {
  std::future<grpc::Status> first = MultiplyInBackground(running);
  ASSERT_TRUE(running.fake().WaitForHeld(1, kPatience));
  std::future<grpc::Status> second = MultiplyInBackground(running);
  const auto one_waits = [&] {
    grpc::ClientContext context;
    AllowTime(context);
    v1::ListDevicesResponse devices;
    EXPECT_TRUE(running.registry().ListDevices(&context, {}, &devices).ok());
    return devices.devices_size() > 0 && devices.devices(0).queued_requests() == 1;
  };
  EXPECT_TRUE(Eventually(one_waits)) << "the second product does not come to wait";
  std::future<absl::Status> drained =
      std::async(std::launch::async, [&] { return running.server().Drain(grace); });
  if (ends_grace) running.server().EndGrace();
  EXPECT_EQ(Awaited(std::move(second), "the answer to the product that waits").error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Awaited(std::move(first), "the end of the product that ran").error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Awaited(std::move(drained), "the end of the drain").code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(running.fake().aborts(), 1);
}

TEST(DrainTest, AfterTheGraceWhatWaitsAndWhatRunsIsAnsweredUnavailable) {
  RunningServer running(TestDevice::kFake);
  CheckThatBothAreAnswered(running, absl::Milliseconds(50), false);
}

TEST(DrainTest, TheGraceCanBeEnded) {
  RunningServer running(TestDevice::kFake);
  CheckThatBothAreAnswered(running, absl::Hours(1), true);
}

TEST(DrainTest, OpenStreamsWithoutProductsDoNotHoldItUp) {
  RunningServer running(TestDevice::kCpu);
  grpc::ClientContext context;
  AllowTime(context, 10 * kPatience);  // The stream outlives the grace.
  ClientStream stream(running.gemm(), &context);
  ASSERT_TRUE(stream.Write(IntegerRequest(2, 2, 2)));
  v1::MultiplyStreamAnswer answer;
  ASSERT_TRUE(stream.Read(&answer));
  EXPECT_EQ(running.server().Drain(kPatience), absl::OkStatus());
  EXPECT_FALSE(stream.Read(&answer));
  EXPECT_FALSE(stream.Finish().ok());
}

TEST(DrainTest, DestructionStopsWithoutADrain) {
  std::unique_ptr<RunningServer> running = std::make_unique<RunningServer>(TestDevice::kCpu);
  const auto stub = v1::Gemm::NewStub(NewChannel(running->tcp_address()));
  ASSERT_TRUE(MultiplySmall(*stub).ok());
  running.reset();
  EXPECT_EQ(MultiplySmall(*stub).error_code(), grpc::StatusCode::UNAVAILABLE);
}

std::vector<std::unique_ptr<Device>> OneCpu() {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<ScriptedDevice>(SharedHost()));
  return devices;
}

TEST(StartTest, NeedsADeviceAndAnAddress) {
  EXPECT_EQ(Server::Start(TestServerOptions(), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  ServerOptions options = TestServerOptions();
  options.transport.listen.clear();
  EXPECT_EQ(Server::Start(options, OneCpu()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StartTest, AnUnreadyDeviceIsNotServed) {
  // The canary of one device never answers. That of the other has answered before anybody waits for
  // it.
  ServerOptions options = TestServerOptions();
  options.canary_timeout = absl::Milliseconds(500);
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<ScriptedDevice>(
      "silent", DeviceProfile{.target = HostTarget(), .rates = {}}));
  EXPECT_EQ(Server::Start(options, std::move(devices)).status().code(),
            absl::StatusCode::kUnavailable);

  devices.clear();
  auto working = std::make_unique<ScriptedDevice>(
      "working", DeviceProfile{.target = HostTarget(), .rates = {}});
  working->RunJobs(true);
  devices.push_back(std::move(working));
  devices.push_back(std::make_unique<ScriptedDevice>(
      "silent", DeviceProfile{.target = HostTarget(), .rates = {}}));
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, std::move(devices));
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = v1::Gemm::NewStub(NewChannel((*server)->addresses()[0]));
  EXPECT_TRUE(MultiplySmall(*stub).ok());
  grpc::ClientContext context;
  AllowTime(context);
  v1::MultiplyRequest request = IntegerRequest(1, 1, 1);
  request.set_device("silent");
  v1::MultiplyResponse response;
  const grpc::Status status = stub->Multiply(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("silent is not ready"));
}

}  // namespace
}  // namespace gemmd
