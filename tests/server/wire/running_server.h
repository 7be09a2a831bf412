// SPDX-License-Identifier: Apache-2.0
//
// A server inside the test process, on a free port and a unix socket, with stubs to call it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "gemmd/v1/registry.grpc.pb.h"
#include "server/server.h"
#include "tests/server/device/scripted_device.h"

namespace gemmd {

// The server's device: it computes on one thread, or as a simulator on two, or is a ScriptedDevice
// that holds jobs. All servers with kCpu share one device.
enum class TestDevice { kCpu, kOwnCpu, kSim, kFake };

// Options with the daemon's defaults, but listening on free addresses.
ServerOptions TestServerOptions();

class RunningServer {
 public:
  explicit RunningServer(TestDevice device, const ServerOptions& options = TestServerOptions());
  explicit RunningServer(std::vector<std::unique_ptr<Device>> devices,
                         const ServerOptions& options = TestServerOptions());

  Server& server() { return *server_; }
  ScriptedDevice& fake() { return *fake_; }  // Only with TestDevice::kFake.
  v1::Gemm::Stub& gemm() { return *gemm_; }
  v1::Registry::Stub& registry() { return *registry_; }
  const std::string& tcp_address() const { return server_->addresses()[0]; }
  const std::string& unix_address() const { return server_->addresses()[1]; }
  int port() const;
  std::shared_ptr<grpc::Channel> channel() { return channel_; }

 private:
  void Start(std::vector<std::unique_ptr<Device>> devices, const ServerOptions& options);

  ScriptedDevice* fake_ = nullptr;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Gemm::Stub> gemm_;
  std::unique_ptr<v1::Registry::Stub> registry_;
};

// A separate channel without limits on messages.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address);

// Gives the call a deadline that no test should reach.
void AllowTime(grpc::ClientContext& context, absl::Duration timeout = absl::Seconds(60));

// A product of small integers in f32, exact in any order.
v1::MultiplyRequest IntegerRequest(int64_t m, int64_t n, int64_t k);

// Whether `response` is the product that IntegerRequest asks for, bit for bit.
bool IsRightProduct(const v1::MultiplyRequest& request, const v1::MultiplyResponse& response);

// Multiplies over `stub`, to check that the server still works.
grpc::Status MultiplySmall(v1::Gemm::Stub& stub);

}  // namespace gemmd
