// SPDX-License-Identifier: Apache-2.0
//
// A server that finds no memory: each long allocation that a request causes fails once, and the
// request is then refused with RESOURCE_EXHAUSTED. The program has its own operator new for it.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <new>
#include <string>
#include <vector>

#include "tests/server/wire/running_server.h"

namespace {

constexpr size_t kLong = size_t{64} << 10;

// Long allocations until one fails; none fails where it is not positive.
std::atomic<int> until_failure{0};

bool Fails(size_t bytes) { return bytes >= kLong && until_failure.fetch_sub(1) == 1; }

}  // namespace

void* operator new(size_t bytes) {
  void* const memory = Fails(bytes) ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

// What the CPU's scratch memory comes from.
extern "C" int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
  *memory = Fails(bytes)
                ? nullptr
                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  return *memory == nullptr ? ENOMEM : 0;
}

namespace gemmd {
namespace {

grpc::ByteBuffer Serialized(const v1::MultiplyRequest& request) {
  const grpc::Slice slice(request.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// Calls with bytes, for which the client allocates nothing by operator new.
grpc::Status Multiply(RunningServer& running, const grpc::ByteBuffer& request) {
  grpc::GenericStub stub(running.channel());
  grpc::ClientContext context;
  AllowTime(context);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> status;
  stub.UnaryCall(&context, "/gemmd.v1.Gemm/Multiply", {}, &request, &response,
                 [&](grpc::Status ended) { status.set_value(std::move(ended)); });
  return status.get_future().get();
}

v1::MultiplyRequest Scaled() {
  v1::MultiplyRequest request;
  request.set_m(1);
  request.set_n(1 << 14);
  request.set_k(32);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_S8);
  request.mutable_a()->set_data(std::string(32, '\1'));
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_S8);
  request.mutable_b()->set_data(std::string(size_t{32} << 14, '\1'));
  request.mutable_b()->mutable_scale()->mutable_values()->Resize(1 << 14, 1.0f);
  return request;
}

v1::MultiplyRequest Converted(v1::ElementType type, int bytes) {
  v1::MultiplyRequest request;
  request.set_m(400);
  request.set_n(400);
  request.set_k(400);
  for (v1::Operand* operand : {request.mutable_a(), request.mutable_b()}) {
    operand->set_type(type);
    operand->set_data(std::string(static_cast<size_t>(400 * 400 * bytes), '\0'));
  }
  return request;
}

v1::MultiplyRequest WithGaps() {
  v1::MultiplyRequest request = IntegerRequest(300, 400, 500);
  request.mutable_d()->set_leading_dimension(450);
  return request;
}

v1::MultiplyRequest Verified(v1::VerifyMode mode) {
  v1::MultiplyRequest request = IntegerRequest(300, 400, 500);
  request.mutable_verify()->set_mode(mode);
  return request;
}

v1::MultiplyRequest OnTheSimulator() {
  v1::MultiplyRequest request = Converted(v1::ELEMENT_TYPE_F16, 2);
  request.mutable_d()->set_type(v1::ELEMENT_TYPE_F16);
  return request;
}

// Nothing here is as long as what the daemon keeps from one product to the next (WarmMemory).
void ExpectEachThatFailsToRefuse(TestDevice device,
                                 const std::vector<v1::MultiplyRequest>& requests) {
  RunningServer running(device);
  for (const v1::MultiplyRequest& request : requests) {
    SCOPED_TRACE(request.ShortDebugString().substr(0, 100));
    const grpc::ByteBuffer bytes = Serialized(request);
    ASSERT_TRUE(Multiply(running, bytes).ok());
    int failures = 0;
    for (bool has_failed = true; has_failed;) {
      until_failure = failures + 1;
      const grpc::Status status = Multiply(running, bytes);
      has_failed = until_failure.exchange(0) <= 0;
      EXPECT_EQ(status.error_code(),
                has_failed ? grpc::StatusCode::RESOURCE_EXHAUSTED : grpc::StatusCode::OK)
          << "allocation " << failures + 1 << ": " << status.error_message();
      failures += has_failed ? 1 : 0;
      ASSERT_LT(failures, 100);
    }
    // The operands and the result at least.
    EXPECT_GE(failures, 2);
    testing::Test::RecordProperty("failures", failures);
    EXPECT_TRUE(Multiply(running, bytes).ok());
  }
}

TEST(AllocationTest, EachThatFailsOnTheProcessorRefusesItsRequestAlone) {
  ExpectEachThatFailsToRefuse(
      TestDevice::kCpu,
      {IntegerRequest(300, 400, 500), Scaled(), Converted(v1::ELEMENT_TYPE_F16, 2),
       Converted(v1::ELEMENT_TYPE_E4M3, 1), WithGaps(), Verified(v1::VERIFY_MODE_CHECKSUM),
       Verified(v1::VERIFY_MODE_SAMPLED), Verified(v1::VERIFY_MODE_DUPLICATE)});
}

// On several threads, each of which packs its own tiles.
TEST(AllocationTest, EachThatFailsOnASimulatorRefusesItsRequestAlone) {
  ExpectEachThatFailsToRefuse(TestDevice::kSim, {OnTheSimulator()});
}

}  // namespace
}  // namespace gemmd
