// SPDX-License-Identifier: Apache-2.0
//
// How often the daemon copies the bytes of inline operands and results, from gRPC's slices to the
// memory that a worker shares and back. The program replaces memcpy and memmove to count them.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/device/devices.h"
#include "tests/server/wire/running_server.h"
#include "tests/testing/status_matchers.h"

namespace {

// Shorter copies are of messages' other fields, and of parts of frames. A matrix that arrives in
// many pieces has some of them, too.
constexpr size_t kLongFrom = 1024;

std::atomic<int64_t> long_bytes{0};
std::atomic<int64_t> short_bytes{0};
thread_local bool is_uncounted = false;

void CountCopy(size_t bytes) {
  if (is_uncounted) return;
  std::atomic<int64_t>& sum = bytes >= kLongFrom ? long_bytes : short_bytes;
  sum.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

}  // namespace

// The C library's own, under names that the test does not replace.
extern "C" void* __memcpy_chk(void* to, const void* from, size_t bytes, size_t room);
extern "C" void* __memmove_chk(void* to, const void* from, size_t bytes, size_t room);
extern "C" void* memcpy(void* to, const void* from, size_t bytes) noexcept {
  CountCopy(bytes);
  return __memcpy_chk(to, from, bytes, bytes);
}
extern "C" void* memmove(void* to, const void* from, size_t bytes) noexcept {
  CountCopy(bytes);
  return __memmove_chk(to, from, bytes, bytes);
}

namespace gemmd {
namespace {

struct Place {
  std::string device;
  v1::ElementType type;
  int64_t element_bytes;
};

const Place kPlaces[] = {{"cpu", v1::ELEMENT_TYPE_F32, 4}, {"cuda:0", v1::ELEMENT_TYPE_F16, 2}};

std::vector<std::unique_ptr<Device>> DevicesOf(const std::string& name) {
  DeviceOptions options;
  options.names = {name};
  options.cpu_threads = 1;
  options.worker_binary = GEMMD_FAKE_WORKER;
  options.gpu_staging_bytes = int64_t{64} << 20;
  auto devices = MakeDevices(options);
  EXPECT_THAT(devices, IsOk());
  return *std::move(devices);
}

class CopiedBytesTest : public testing::TestWithParam<Place> {
 protected:
  // The bytes that are copied for a product, without and with the short copies, and those of its
  // operands and of D.
  struct Counts {
    int64_t copied = 0;
    int64_t with_short = 0;
    int64_t operands = 0;
    int64_t d = 0;
  };

  // gRPC's client sends and receives slices as they are.
  grpc::ByteBuffer Multiply(const grpc::ByteBuffer& request) {
    grpc::GenericStub stub(running_.channel());
    grpc::ClientContext context;
    AllowTime(context);
    // On a busy machine, a connection once failed with an error that connect() does not have.
    context.set_wait_for_ready(true);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> ended;
    stub.UnaryCall(&context, "/gemmd.v1.Gemm/Multiply", {}, &request, &response,
                   [&](grpc::Status status) { ended.set_value(std::move(status)); });
    const grpc::Status status = ended.get_future().get();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  Counts CountProduct(int64_t m, int64_t n, int64_t k) {
    is_uncounted = true;
    const Place& place = GetParam();
    v1::MultiplyRequest request;
    request.set_m(m);
    request.set_n(n);
    request.set_k(k);
    request.mutable_a()->set_type(place.type);
    request.mutable_a()->set_data(std::string(static_cast<size_t>(m * k * place.element_bytes), 0));
    request.mutable_b()->set_type(place.type);
    request.mutable_b()->set_data(std::string(static_cast<size_t>(k * n * place.element_bytes), 0));
    const grpc::Slice slice(request.SerializeAsString());
    const grpc::ByteBuffer bytes(&slice, 1);
    Counts counts = {.operands = (m + n) * k * place.element_bytes, .d = 4 * m * n};
    constexpr int kCounted = 8;
    for (int i = 0; i < kCounted; ++i) {
      const int64_t long_before = long_bytes;
      const int64_t short_before = short_bytes;
      grpc::ByteBuffer answer = Multiply(bytes);
      const int64_t copied = long_bytes - long_before;
      const int64_t with_short = copied + short_bytes - short_before;
      if (i == 0 || copied < counts.copied) counts.copied = copied;
      if (i == 0 || with_short < counts.with_short) counts.with_short = with_short;
      EXPECT_GT(static_cast<int64_t>(answer.Length()), counts.d);
    }
    std::cout << m << " x " << n << " x " << k << ": operands " << counts.operands << ", D "
              << counts.d << ", copied " << counts.copied << ", with short copies "
              << counts.with_short << "\n";
    return counts;
  }

  RunningServer running_{DevicesOf(GetParam().device)};
};

// For what does not belong to a matrix.
constexpr int64_t kOtherBytes = 4 << 10;

TEST_P(CopiedBytesTest, OfLongMatrices) {
  const Counts counts = CountProduct(512, 256, 1024);
  EXPECT_GE(counts.with_short, counts.operands);
  EXPECT_LE(counts.copied, counts.operands + kOtherBytes) << "D is sent from where it was computed";
}

// Operands stay in the slices in which gRPC received them until they are copied for the worker.
TEST_P(CopiedBytesTest, OfMatricesThatAreJustHeld) {
  const Counts counts = CountProduct(96, 96, 48 * 1024 / 96 / GetParam().element_bytes);
  EXPECT_GE(counts.with_short, counts.operands);
  EXPECT_LE(counts.copied, counts.operands + counts.d + kOtherBytes);
}

// Matrices that are copied with their messages, too: that takes less time than to hold slices.
TEST_P(CopiedBytesTest, OfShortMatrices) {
  const Counts counts = CountProduct(64, 64, 64);
  EXPECT_LE(counts.copied, 2 * (counts.operands + counts.d) + kOtherBytes);
}

std::string NameOf(const testing::TestParamInfo<Place>& each) {
  return each.param.device == "cpu" ? "Cpu" : "Gpu";
}
INSTANTIATE_TEST_SUITE_P(Places, CopiedBytesTest, testing::ValuesIn(kPlaces), NameOf);

}  // namespace
}  // namespace gemmd
