// SPDX-License-Identifier: Apache-2.0
//
// gRPC's memory quota is short, and operands are freed on a device's thread: work that gRPC then
// ran on that thread once aborted the process.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/wire/running_server.h"
#include "tests/testing/patience.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

// A long B, which stays where gRPC received it and is freed when the product has taken it.
v1::MultiplyRequest LongRequest(int64_t n) {
  constexpr int64_t kK = 256 << 10;
  v1::MultiplyRequest request;
  request.set_m(1);
  request.set_n(n);
  request.set_k(kK);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_S8);
  request.mutable_a()->set_data(std::string(kK, '\1'));
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_S8);
  request.mutable_b()->set_data(std::string(static_cast<size_t>(n * kK), '\1'));
  return request;
}

// Every fourth message exceeds the quota, and makes it short for the others.
TEST(ShortQuotaTest, TheServerOutlivesWhatTheQuotaEnds) {
  constexpr int kEnough = 50;
  ServerOptions options = TestServerOptions();
  options.transport.memory_quota_bytes = 6 * kMebi;
  RunningServer running(TestDevice::kCpu, options);
  const v1::MultiplyRequest fitting = LongRequest(8);
  const v1::MultiplyRequest too_long = LongRequest(32);
  std::atomic<int> served = 0;
  std::atomic<int> refused = 0;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&] {
      while (!is_over) {
        const auto stub = v1::Gemm::NewStub(NewChannel(running.tcp_address()));
        for (int j = 0; j < 8 && !is_over; ++j) {
          grpc::ClientContext context;
          AllowTime(context);
          v1::MultiplyResponse response;
          const v1::MultiplyRequest& request = j % 4 == 0 ? too_long : fitting;
          ++(stub->Multiply(&context, request, &response).ok() ? served : refused);
        }
      }
    });
  }
  // A slow machine gets less done in a minute, but starts within ten.
  Eventually([&] { return served >= kEnough && refused >= kEnough; });
  EXPECT_TRUE(Eventually([&] { return served > 0 && refused > 0; }, 10 * kPatience))
      << served << " were served and " << refused << " refused";
  is_over = true;
  for (std::thread& client : clients) client.join();
  // The last calls may not have returned their part of the quota yet.
  EXPECT_TRUE(Eventually([&] { return MultiplySmall(running.gemm()).ok(); }));
}

}  // namespace
}  // namespace gemmd
