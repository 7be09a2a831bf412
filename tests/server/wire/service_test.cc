// SPDX-License-Identifier: Apache-2.0
//
// Gemm.Multiply over the wire, successful calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/server/wire/running_server.h"

namespace gemmd {
namespace {

class ServiceTest : public ::testing::Test {
 protected:
  v1::MultiplyResponse Multiply(const v1::MultiplyRequest& request) {
    grpc::ClientContext context;
    AllowTime(context);
    v1::MultiplyResponse response;
    const grpc::Status status = running_.gemm().Multiply(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_code() << " " << status.error_message();
    return response;
  }

  static std::vector<float> Floats(const std::string& bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  static std::string Bytes(const std::vector<float>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }

  RunningServer running_{TestDevice::kCpu};
};

TEST_F(ServiceTest, AnswersWithProductNamesAndCounts) {
  v1::MultiplyRequest request = IntegerRequest(13, 17, 19);
  request.set_request_id("my request");
  const v1::MultiplyResponse response = Multiply(request);
  EXPECT_TRUE(IsRightProduct(request, response));
  EXPECT_EQ(response.request_id(), "my request");
  EXPECT_EQ(response.device(), "cpu");
  EXPECT_NE(response.kernel(), "");
  EXPECT_EQ(response.operations(), 2 * 13 * 17 * 19);
  EXPECT_EQ(response.bytes_read(), (13 * 19 + 19 * 17) * 4);
  EXPECT_EQ(response.bytes_written(), 13 * 17 * 4);
  EXPECT_EQ(response.joined(), 1);
  EXPECT_EQ(response.d().type(), v1::ELEMENT_TYPE_F32);
  EXPECT_EQ(response.d().order(), v1::ORDER_ROW_MAJOR);
  EXPECT_EQ(response.d().leading_dimension(), 17);
  EXPECT_EQ(response.d().batch(), 1);
}

TEST_F(ServiceTest, StagesSumToAtMostTheTotal) {
  for (const int64_t size : {1, 64, 300}) {
    const v1::Timing timing = Multiply(IntegerRequest(size, size, size)).timing();
    const int64_t stages[] = {timing.receive_ns(), timing.queue_ns(),    timing.copy_in_ns(),
                              timing.compute_ns(), timing.copy_out_ns(), timing.send_prepare_ns()};
    int64_t sum = 0;
    for (const int64_t stage : stages) {
      EXPECT_GE(stage, 0);
      sum += stage;
    }
    EXPECT_GT(timing.receive_ns(), 0);
    EXPECT_GT(timing.compute_ns(), 0);
    EXPECT_LE(sum, timing.total_ns());
  }
}

TEST_F(ServiceTest, WorksOverAUnixSocket) {
  const auto stub = v1::Gemm::NewStub(NewChannel(running_.unix_address()));
  EXPECT_TRUE(MultiplySmall(*stub).ok());
}

TEST_F(ServiceTest, TakesNaNAndInfinityAsData) {
  v1::MultiplyRequest request = IntegerRequest(2, 2, 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  request.mutable_a()->set_data(Bytes({nan, 1, infinity, 1}));
  request.mutable_b()->set_data(Bytes({1, 1, 1, 1}));
  const std::vector<float> d = Floats(Multiply(request).d().data());
  EXPECT_TRUE(std::isnan(d[0]) && std::isnan(d[1]));
  EXPECT_EQ(d[2], infinity);
  EXPECT_EQ(d[3], infinity);
}

TEST_F(ServiceTest, EmptyProductsAreAnswered) {
  for (const auto& [m, n, k] :
       std::vector<std::array<int64_t, 3>>{{0, 5, 3}, {5, 0, 3}, {0, 0, 0}}) {
    const v1::MultiplyResponse response = Multiply(IntegerRequest(m, n, k));
    EXPECT_EQ(response.d().data(), "");
    EXPECT_EQ(response.d().rows(), m);
    EXPECT_EQ(response.d().columns(), n);
  }
  v1::MultiplyRequest no_batch = IntegerRequest(2, 2, 2);
  no_batch.set_batch(0);
  no_batch.mutable_a()->clear_data();
  no_batch.mutable_b()->clear_data();
  EXPECT_EQ(Multiply(no_batch).d().data(), "");
}

TEST_F(ServiceTest, DepthZeroGivesBetaCPlusBias) {
  v1::MultiplyRequest request = IntegerRequest(2, 3, 0);
  EXPECT_EQ(Floats(Multiply(request).d().data()), std::vector<float>(6, 0.0f));
  request.set_beta(2);
  request.mutable_c()->set_data(Bytes({1, 2, 3, 4, 5, 6}));
  request.mutable_bias()->set_axis(v1::BIAS_AXIS_ROWS);
  request.mutable_bias()->set_data(Bytes({10, 20}));
  EXPECT_EQ(Floats(Multiply(request).d().data()), (std::vector<float>{12, 14, 16, 28, 30, 32}));
}

TEST_F(ServiceTest, TransposesOrdersAndPadsAsAsked) {
  // A = [1 2; 3 4; 5 6] stored as its transpose, rows padded to 4; B = [1 10; 100 1000] column
  // major.
  v1::MultiplyRequest request;
  request.set_m(3);
  request.set_n(2);
  request.set_k(2);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_F32);
  request.mutable_a()->set_transpose(true);
  request.mutable_a()->set_leading_dimension(4);
  request.mutable_a()->set_data(Bytes({1, 3, 5, -1, 2, 4, 6}));
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_F32);
  request.mutable_b()->set_order(v1::ORDER_COLUMN_MAJOR);
  request.mutable_b()->set_data(Bytes({1, 100, 10, 1000}));
  request.mutable_d()->set_order(v1::ORDER_COLUMN_MAJOR);
  request.mutable_d()->set_leading_dimension(5);
  const v1::MultiplyResponse response = Multiply(request);
  EXPECT_EQ(Floats(response.d().data()),
            (std::vector<float>{201, 403, 605, 0, 0, 2010, 4030, 6050, 0, 0}));
  EXPECT_EQ(response.d().leading_dimension(), 5);
  EXPECT_EQ(response.d().batch_stride(), 40);
}

TEST_F(ServiceTest, BatchesWithABroadcastOperand) {
  v1::MultiplyRequest request;
  request.set_m(1);
  request.set_n(1);
  request.set_k(2);
  request.set_batch(3);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_F32);
  request.mutable_a()->set_data(Bytes({1, 2, 3, 4, 5, 6}));
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_F32);
  request.mutable_b()->set_batch_stride(0);
  request.mutable_b()->set_data(Bytes({1, 10}));
  EXPECT_EQ(Floats(Multiply(request).d().data()), (std::vector<float>{21, 43, 65}));
}

TEST_F(ServiceTest, ScalesAndConvertsTheOutput) {
  v1::MultiplyRequest request;
  request.set_m(2);
  request.set_n(1);
  request.set_k(2);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_S8);
  request.mutable_a()->set_data(std::string("\x01\xff\x03\x04", 4));  // 1 -1; 3 4
  request.mutable_a()->mutable_scale()->add_values(0.5f);
  request.mutable_a()->mutable_scale()->add_values(4.0f);
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_U8);
  request.mutable_b()->set_data(std::string("\xff\x02", 2));  // 255; 2
  request.mutable_b()->mutable_scale()->add_values(0.25f);
  request.mutable_d()->set_type(v1::ELEMENT_TYPE_F32);
  EXPECT_EQ(Floats(Multiply(request).d().data()), (std::vector<float>{253 * 0.125f, 773}));
}

TEST_F(ServiceTest, NamedKernelAndDeviceAreUsed) {
  v1::MultiplyRequest request = IntegerRequest(4, 4, 4);
  request.set_kernel("openblas.f32.f32.f32");
  request.set_device("cpu");
  const v1::MultiplyResponse response = Multiply(request);
  EXPECT_EQ(response.kernel(), "openblas.f32.f32.f32");
  EXPECT_TRUE(IsRightProduct(request, response));
  request.set_kernel("auto");
  EXPECT_TRUE(IsRightProduct(request, Multiply(request)));
}

TEST_F(ServiceTest, ServesManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const v1::MultiplyRequest request = IntegerRequest(t + 1, i + 1, t + i + 1);
        if (IsRightProduct(request, Multiply(request))) right.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right.load(), 8 * 25);
}

}  // namespace
}  // namespace gemmd
