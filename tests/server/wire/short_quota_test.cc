// SPDX-License-Identifier: Apache-2.0
//
// gRPC's quota of memory is short, and operands are freed on the thread of a device: what gRPC then
// runs there ended the process once.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/wire/running_server.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

// A long B, which stays where gRPC received it and is freed as the product takes it.
v1::MultiplyRequest LongRequest() {
  constexpr int64_t kK = 256 << 10;
  v1::MultiplyRequest request;
  request.set_m(1);
  request.set_n(8);
  request.set_k(kK);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_S8);
  request.mutable_a()->set_data(std::string(kK, '\1'));
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_S8);
  request.mutable_b()->set_data(std::string(8 * kK, '\1'));
  return request;
}

TEST(ShortQuotaTest, TheServerOutlivesWhatTheQuotaEnds) {
  ServerOptions options = TestServerOptions();
  options.transport.memory_quota_bytes = 6 * kMebi;
  RunningServer running(TestDevice::kCpu, options);
  const v1::MultiplyRequest request = LongRequest();
  const absl::Time end = absl::Now() + absl::Seconds(3);
  std::atomic<int> served = 0;
  std::atomic<int> refused = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&] {
      while (absl::Now() < end) {
        const auto stub = v1::Gemm::NewStub(NewChannel(running.tcp_address()));
        for (int j = 0; j < 8; ++j) {
          grpc::ClientContext context;
          AllowTime(context, absl::Seconds(10));
          v1::MultiplyResponse response;
          ++(stub->Multiply(&context, request, &response).ok() ? served : refused);
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(served, 0);
  EXPECT_GT(refused, 0) << "the quota was not short";
  EXPECT_TRUE(MultiplySmall(running.gemm()).ok());
}

}  // namespace
}  // namespace gemmd
