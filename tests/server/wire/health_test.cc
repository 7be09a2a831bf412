// SPDX-License-Identifier: Apache-2.0
//
// grpc.health.v1 over the wire, and who is notified of changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "health/v1/health.grpc.pb.h"
#include "server/wire/health_service.h"
#include "tests/server/wire/running_server.h"
#include "tests/testing/patience.h"

namespace gemmd {
namespace {

using ::testing::ElementsAre;
using HealthStub = grpc::health::v1::Health::Stub;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthCheckRequest Asking(std::string service) {
  HealthCheckRequest request;
  request.set_service(std::move(service));
  return request;
}

class HealthTest : public ::testing::Test {
 protected:
  HealthTest() : running_(TestDevice::kFake), stub_(running_.channel()) {
    running_.fake().RunJobs(true);
  }

  grpc::Status Check(const std::string& service, HealthCheckResponse& response) {
    grpc::ClientContext context;
    AllowTime(context);
    return stub_.Check(&context, Asking(service), &response);
  }
  grpc::Status Check(const std::string& service) {
    HealthCheckResponse response;
    return Check(service, response);
  }

  RunningServer running_;
  HealthStub stub_;
};

// One call of Watch, which the destructor cancels.
class OpenWatch {
 public:
  OpenWatch(HealthStub& stub, const std::string& service) {
    AllowTime(context_);
    reader_ = stub.Watch(&context_, Asking(service));
  }
  ~OpenWatch() {
    context_.TryCancel();
    (void)reader_->Finish();
  }

  // The next state; -1 if the call has ended.
  int Next() {
    HealthCheckResponse response;
    return reader_->Read(&response) ? response.status() : -1;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader_;
};

TEST_F(HealthTest, QuestionsAreBounded) {
  EXPECT_EQ(Check(std::string(128, 'x')).error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::Status status = Check(std::string(129, 'x'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "service: got 129 bytes, want at most 128");
  status = Check(std::string(65'532, 'x'));
  EXPECT_EQ(status.error_message(), "service: got 65532 bytes, want at most 128");
  // The connection is closed before the question arrives; another one serves, once the client has
  // noticed that the first has ended.
  for (const size_t bytes : {size_t{65'533}, size_t{1} << 20}) {
    status = Check(std::string(bytes, 'x'));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    EXPECT_TRUE(Eventually([&] {
      status = Check(std::string(128, 'x'));
      return status.error_code() != grpc::StatusCode::UNAVAILABLE;
    }));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
  }
}

TEST_F(HealthTest, QuestionsOfWatchersAreBounded) {
  for (const auto& [bytes, code] : {std::pair(size_t{129}, grpc::StatusCode::INVALID_ARGUMENT),
                                    std::pair(size_t{1} << 20, grpc::StatusCode::UNAVAILABLE)}) {
    grpc::ClientContext context;
    AllowTime(context);
    const auto reader = stub_.Watch(&context, Asking(std::string(bytes, 'x')));
    HealthCheckResponse response;
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_EQ(reader->Finish().error_code(), code);
  }
}

TEST_F(HealthTest, AnUnknownServiceIsNotFoundAndItsNameShownInPart) {
  const grpc::Status status = Check(std::string(100, 'x'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(),
            "service: got " + std::string(64, 'x') + "..., want one that this server has");
}

TEST_F(HealthTest, AWatcherIsToldEachChange) {
  OpenWatch of_server(stub_, "");
  OpenWatch of_device(stub_, "fake");
  OpenWatch of_nothing(stub_, "nobody");
  EXPECT_EQ(of_server.Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(of_device.Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(of_nothing.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  running_.fake().SetReadiness(absl::UnavailableError("device: fake is starting again"));
  EXPECT_EQ(of_server.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(of_device.Next(), HealthCheckResponse::NOT_SERVING);
  running_.fake().SetReadiness(absl::OkStatus());
  running_.fake().SetReadiness(absl::OkStatus());  // No change.
  EXPECT_EQ(of_server.Next(), HealthCheckResponse::SERVING);
  running_.server().EnterLameDuck();
  EXPECT_EQ(of_server.Next(), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthTest, WatchersComeAndGoWhileItChanges) {
  std::atomic<int> left = 4;
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([this, &left] {
      for (int j = 0; j < 50; ++j) {
        OpenWatch watch(stub_, j % 2 == 0 ? "" : "fake");
        EXPECT_NE(watch.Next(), -1);
      }
      --left;
    });
  }
  for (bool is_ready = false; left > 0; is_ready = !is_ready) {
    running_.fake().SetReadiness(is_ready ? absl::OkStatus() : absl::UnavailableError("restarts"));
  }
  for (std::thread& client : clients) client.join();
  running_.fake().SetReadiness(absl::OkStatus());
  EXPECT_TRUE(Check("fake").ok());
}

// Records the states that it was told.
class Listener final : public Health::Watcher {
 public:
  void Tell(Health::State state) override { told.push_back(state); }
  std::vector<Health::State> told;
};

TEST(HealthStateTest, WhoWatchesNoLongerIsToldNothing) {
  Health health("multiplies", "device");
  Listener first;
  Listener second;
  Listener later;
  health.Watch("device", first);
  health.Watch("device", second);
  health.Watch("to come", later);
  health.Unwatch("device", first);
  health.Unwatch("device", first);
  health.Unwatch("nobody's", first);
  health.SetReady("device", true);
  health.SetReady("to come", false);
  health.EnterLameDuck();
  health.SetReady("device", true);
  using State = Health::State;
  EXPECT_THAT(first.told, ElementsAre(State::kNotServing));
  EXPECT_THAT(second.told, ElementsAre(State::kNotServing, State::kServing, State::kNotServing));
  EXPECT_THAT(later.told, ElementsAre(State::kUnknown, State::kNotServing, State::kNotServing));
}

}  // namespace
}  // namespace gemmd
