// SPDX-License-Identifier: Apache-2.0
//
// A server that runs out of memory: each long allocation that a request causes fails once, and the
// request is then refused with RESOURCE_EXHAUSTED. The program replaces the allocators for that;
// they also count (counted_allocations.h).
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <future>
#include <new>
#include <string>
#include <vector>

#include "server/wire/incoming.h"
#include "tests/server/wire/counted_allocations.h"
#include "tests/server/wire/failing_allocations.h"
#include "tests/server/wire/running_server.h"

using gemmd::AllocationFails;
using gemmd::CountAllocation;

extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* malloc(size_t bytes) noexcept {
  CountAllocation();
  return __libc_malloc(bytes);
}

void* operator new(size_t bytes) {
  void* const memory = AllocationFails(bytes) ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

// Allocates the CPU's scratch memory.
extern "C" int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
  *memory = AllocationFails(bytes)
                ? nullptr
                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  return *memory == nullptr ? ENOMEM : 0;
}

// Allocates a D with gaps.
extern "C" void* __libc_calloc(size_t count, size_t bytes);
extern "C" void* calloc(size_t count, size_t bytes) noexcept {
  CountAllocation();
  return AllocationFails(count * bytes) ? nullptr : __libc_calloc(count, bytes);
}

// Allocates long results, gathered operands and tensors. Abseil maps 64 KiB for itself the first
// time that a thread waits for a mutex, and aborts the process if that fails.
extern "C" void* mmap(void* address, size_t bytes, int protection, int flags, int descriptor,
                      off_t offset) noexcept {
  if (bytes > gemmd::kLongAllocation && AllocationFails(bytes)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  const long mapped = syscall(SYS_mmap, address, bytes, protection, flags, descriptor, offset);
  return reinterpret_cast<void*>(mapped);
}

namespace gemmd {
namespace {

grpc::ByteBuffer Serialized(const v1::MultiplyRequest& request) {
  const grpc::Slice slice(request.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// Calls with bytes, for which the client allocates nothing with operator new.
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

grpc::ByteBuffer SerializedForStream(const v1::MultiplyRequest& request) {
  v1::MultiplyStreamRequest message;
  *message.add_requests() = request;
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// A stream of products, one at a time, also without allocations of the client.
class StreamOfBytes : grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit StreamOfBytes(RunningServer& running) : stub_(running.channel()) {
    AllowTime(context_);
    stub_.PrepareBidiStreamingCall(&context_, "/gemmd.v1.Gemm/MultiplyStream", {}, this);
    AddHold();  // Until Close.
    StartCall();
  }

  // The error of the product, or the status with which the stream ended.
  grpc::Status Multiply(const grpc::ByteBuffer& request) {
    read_ = {};
    written_ = {};
    response_.Clear();
    StartRead(&response_);
    StartWrite(&request);
    written_.get_future().get();  // The answer may come before this is signalled.
    if (!read_.get_future().get()) return Close();
    const int left = until_failure.exchange(0);  // The client's own allocations do not fail.
    v1::MultiplyStreamResponse response;
    grpc::Slice slice;
    EXPECT_TRUE(response_.DumpToSingleSlice(&slice).ok());
    EXPECT_TRUE(response.ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
    until_failure = left;
    const v1::Error& error = response.answers(0).error();
    return {static_cast<grpc::StatusCode>(error.code()), error.message()};
  }

  grpc::Status Close() {
    if (is_open_) {
      is_open_ = false;
      StartWritesDone();
      RemoveHold();
      status_ = done_.get_future().get();
    }
    return status_;
  }

 private:
  void OnReadDone(bool ok) override { read_.set_value(ok); }
  void OnWriteDone(bool /*ok*/) override { written_.set_value(); }
  void OnDone(const grpc::Status& status) override { done_.set_value(status); }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer response_;
  std::promise<bool> read_;
  std::promise<void> written_;
  std::promise<grpc::Status> done_;
  bool is_open_ = true;
  grpc::Status status_;
};

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

// A D with space after each of its lines, which is zeroed.
v1::MultiplyRequest WithGaps() {
  v1::MultiplyRequest request = IntegerRequest(300, 400, 500);
  request.mutable_d()->set_leading_dimension(1000);
  return request;
}

v1::MultiplyRequest Verified(v1::VerifyMode mode) {
  v1::MultiplyRequest request = IntegerRequest(300, 400, 500);
  request.mutable_verify()->set_mode(mode);
  return request;
}

// Nothing here is long enough to be kept by the daemon for the next product (WarmMemory).
TEST(AllocationTest, EachThatFailsRefusesItsRequestAlone) {
  RunningServer running(TestDevice::kOwnCpu);
  const v1::MultiplyRequest requests[] = {IntegerRequest(300, 400, 500),
                                          Scaled(),
                                          Converted(v1::ELEMENT_TYPE_F16, 2),
                                          Converted(v1::ELEMENT_TYPE_E4M3, 1),
                                          WithGaps(),
                                          Verified(v1::VERIFY_MODE_SAMPLED),
                                          Verified(v1::VERIFY_MODE_CHECKSUM),
                                          Verified(v1::VERIFY_MODE_DUPLICATE)};
  for (const v1::MultiplyRequest& request : requests) {
    SCOPED_TRACE(request.verify().mode());
    const grpc::ByteBuffer bytes = Serialized(request);
    ASSERT_TRUE(Multiply(running, bytes).ok());
    const Failures failures = FailInTurn([&] { return Multiply(running, bytes); });
    // At least the operands and the result.
    EXPECT_GE(failures.refused, 2);
    EXPECT_THAT(failures.messages, testing::HasSubstr("no memory"));
  }
}

// Mapped memory: not kept yet at first, and then kept for the next product.
TEST(AllocationTest, AMappingThatFailsRefusesItsRequestAlone) {
  RunningServer running(TestDevice::kOwnCpu);
  ASSERT_TRUE(MultiplySmall(running.gemm()).ok());
  const grpc::ByteBuffer bytes = Serialized(IntegerRequest(600, 600, 600));
  const Failures failures = FailInTurn([&] { return Multiply(running, bytes); });
  EXPECT_THAT(failures.messages, testing::HasSubstr("d: no memory for 1440000 bytes"));
}

// A message that arrived in many small pieces has a long list of slices.
TEST(AllocationTest, OfTheListOfSlicesIsTold) {
  const std::string text = IntegerRequest(300, 400, 500).SerializeAsString();
  std::vector<grpc::Slice> scraps;
  for (size_t i = 0; i < text.size(); i += 100) scraps.emplace_back(text.substr(i, 100));
  for (const bool fails : {true, false}) {
    grpc::ByteBuffer bytes(scraps.data(), scraps.size());
    until_failure = fails ? 1 : 0;
    Incoming incoming(bytes);
    until_failure = 0;
    v1::MultiplyRequest message;
    EXPECT_EQ(absl::IsResourceExhausted(incoming.Examine(message).status()), fails);
    EXPECT_EQ(bytes.Length(), 0);
  }
}

TEST(AllocationTest, OfASimulatorRefusesItsRequestAlone) {
  RunningServer running(TestDevice::kSim);
  v1::MultiplyRequest request = Converted(v1::ELEMENT_TYPE_F16, 2);
  request.mutable_d()->set_type(v1::ELEMENT_TYPE_F16);
  const grpc::ByteBuffer bytes = Serialized(request);
  ASSERT_TRUE(Multiply(running, bytes).ok());
  const Failures failures = FailInTurn([&] { return Multiply(running, bytes); });
  EXPECT_GE(failures.refused, 2);
  EXPECT_THAT(failures.messages, testing::HasSubstr("no memory for the packed operands"));
}

TEST(AllocationTest, OfAStreamRefusesItsProductAlone) {
  RunningServer running(TestDevice::kOwnCpu);
  const grpc::ByteBuffer bytes = SerializedForStream(WithGaps());
  StreamOfBytes stream(running);
  ASSERT_TRUE(stream.Multiply(bytes).ok());
  const Failures failures = FailInTurn([&] { return stream.Multiply(bytes); });
  EXPECT_GE(failures.refused, 2);
  EXPECT_TRUE(stream.Close().ok());
}

}  // namespace
}  // namespace gemmd
