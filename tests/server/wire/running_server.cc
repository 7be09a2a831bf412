// SPDX-License-Identifier: Apache-2.0
#include "tests/server/wire/running_server.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/host.h"
#include "tests/server/device/local_device.h"
#include "tests/server/device/shared_host.h"

namespace gemmd {
namespace {

std::string FreshSocketPath() {
  static std::atomic<int> count{0};
  return absl::StrCat("unix:", ::testing::TempDir(), "/gemmd-test-", getpid(), "-", count++,
                      ".sock");
}

float AValue(int64_t i, int64_t l) { return static_cast<float>((i * 7 + l * 3) % 11 - 5); }
float BValue(int64_t l, int64_t j) { return static_cast<float>((l * 5 + j * 2) % 13 - 6); }

template <typename Value>
std::string Packed(int64_t rows, int64_t columns, Value value) {
  std::vector<float> elements;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) elements.push_back(value(i, j));
  }
  return std::string(reinterpret_cast<const char*>(elements.data()),
                     elements.size() * sizeof(float));
}

}  // namespace

ServerOptions TestServerOptions() {
  ServerOptions options;
  options.transport.listen = {"127.0.0.1:0", FreshSocketPath()};
  return options;
}

RunningServer::RunningServer(TestDevice device, const ServerOptions& options) {
  std::vector<std::unique_ptr<Device>> devices;
  if (device == TestDevice::kFake) {
    auto fake = std::make_unique<ScriptedDevice>(
        "fake", DeviceProfile{.target = HostTarget(), .rates = {}});
    fake_ = fake.get();
    fake_->RunJobs(true);  // For the canary.
    devices.push_back(std::move(fake));
  } else if (device == TestDevice::kSim) {
    const Target target = {.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90};
    devices.push_back(std::make_unique<LocalDevice>(target, 2));
  } else if (device == TestDevice::kOwnCpu) {
    devices.push_back(std::make_unique<LocalDevice>(HostTarget(), 1));
  } else {
    devices.push_back(std::make_unique<ScriptedDevice>(SharedHost()));
  }
  Start(std::move(devices), options);
  if (fake_ != nullptr) fake_->RunJobs(false);
}

RunningServer::RunningServer(std::vector<std::unique_ptr<Device>> devices,
                             const ServerOptions& options) {
  Start(std::move(devices), options);
}

void RunningServer::Start(std::vector<std::unique_ptr<Device>> devices,
                          const ServerOptions& options) {
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, std::move(devices));
  if (!server.ok()) ADD_FAILURE() << server.status();
  server_ = *std::move(server);
  channel_ = NewChannel(server_->addresses()[0]);
  gemm_ = v1::Gemm::NewStub(channel_);
  registry_ = v1::Registry::NewStub(channel_);
}

int RunningServer::port() const {
  int port = 0;
  const std::string& address = tcp_address();
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  return port;
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // Forces a separate connection.
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void AllowTime(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

v1::MultiplyRequest IntegerRequest(int64_t m, int64_t n, int64_t k) {
  v1::MultiplyRequest request;
  request.set_m(m);
  request.set_n(n);
  request.set_k(k);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_F32);
  request.mutable_a()->set_data(Packed(m, k, AValue));
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_F32);
  request.mutable_b()->set_data(Packed(k, n, BValue));
  return request;
}

bool IsRightProduct(const v1::MultiplyRequest& request, const v1::MultiplyResponse& response) {
  const std::string expected = Packed(request.m(), request.n(), [&](int64_t i, int64_t j) {
    float sum = 0;
    for (int64_t l = 0; l < request.k(); ++l) sum += AValue(i, l) * BValue(l, j);
    return sum;
  });
  return response.d().data() == expected && response.d().rows() == request.m() &&
         response.d().columns() == request.n();
}

grpc::Status MultiplySmall(v1::Gemm::Stub& stub) {
  grpc::ClientContext context;
  AllowTime(context);
  const v1::MultiplyRequest request = IntegerRequest(3, 4, 5);
  v1::MultiplyResponse response;
  grpc::Status status = stub.Multiply(&context, request, &response);
  if (status.ok() && !IsRightProduct(request, response)) {
    return grpc::Status(grpc::StatusCode::DATA_LOSS, "wrong product");
  }
  return status;
}

}  // namespace gemmd
