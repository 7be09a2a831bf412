// SPDX-License-Identifier: Apache-2.0
//
// The number of allocations that the server makes per product, those of gRPC's server included, and
// for headers. The peer is a plain socket, so that no client's allocations are counted.
#include <grpcpp/version_info.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gemmd/v1/resident.grpc.pb.h"
#include "kernels/cpu/host.h"
#include "server/crossing/shared_memory.h"
#include "server/device/worker_device.h"
#include "server/store/digest.h"
#include "server/wire/frame_meter.h"
#include "tests/server/wire/counted_allocations.h"
#include "tests/server/wire/http2_peer.h"
#include "tests/server/wire/running_server.h"
#include "tests/server/worker/small_product.h"

namespace gemmd {
namespace {

constexpr int kProducts = 64;  // In one message.
constexpr int kWarmUp = 8;
constexpr int kCounted = 32;

std::string BigEndian(uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(value >> shift & 0xff));
  return bytes;
}

// A caller of one method on one connection, without a gRPC library.
class PlainCaller {
 public:
  // Without a session if the token is empty.
  PlainCaller(int port, std::string_view method, std::string_view token = "")
      : peer_(port), method_(method), token_(token) {
    peer_.Greet();
    // Windows that never fill: SETTINGS_INITIAL_WINDOW_SIZE, and the connection's.
    constexpr uint32_t kMaxWindow = 0x7fffffff;
    peer_.SendFrame(Http2Peer::kSettings, 0, std::string("\0\4", 2) + BigEndian(kMaxWindow));
    peer_.SendFrame(Http2Peer::kWindowUpdate, 0, BigEndian(kMaxWindow - 0xffff));
  }

  void StartCall() {
    stream_ = stream_ == 0 ? 1 : stream_ + 2;
    peer_.SendFrame(Http2Peer::kHeaders, Http2Peer::kEndHeaders, Headers(), stream_);
  }

  void SendMessage(const std::string& message, bool is_last) {
    const std::string prefix =
        std::string(1, '\0') + BigEndian(static_cast<uint32_t>(message.size()));
    peer_.SendFrame(Http2Peer::kData, is_last ? Http2Peer::kEndStream : 0, prefix + message,
                    stream_);
  }

  // The next message of the call; nullopt at its end.
  std::optional<std::string> ReadMessage() {
    constexpr size_t kPrefixBytes = 5;
    while (true) {
      if (received_.size() >= kPrefixBytes) {
        size_t bytes = 0;
        for (size_t i = 1; i < kPrefixBytes; ++i) {
          bytes = bytes << 8 | static_cast<unsigned char>(received_[i]);
        }
        if (received_.size() >= kPrefixBytes + bytes) {
          std::string message = received_.substr(kPrefixBytes, bytes);
          received_.erase(0, kPrefixBytes + bytes);
          return message;
        }
      }
      const std::optional<Http2Peer::Frame> frame = peer_.ReadFrame(absl::Seconds(60));
      if (!frame.has_value()) return std::nullopt;
      if (frame->type == Http2Peer::kData) received_ += frame->payload;
      const bool has_ended = (frame->flags & Http2Peer::kEndStream) != 0;
      if (frame->type == Http2Peer::kHeaders && has_ended) return std::nullopt;
    }
  }

 private:
  // The first call adds the fields to the table of RFC 7541; later calls refer to their indices.
  std::string Headers() const {
    std::vector<std::pair<std::string_view, std::string_view>> fields = {
        {":method", "POST"},         {":scheme", "http"},    {":path", method_},
        {":authority", "localhost"}, {"te", "trailers"},     {"content-type", "application/grpc"},
        {"user-agent", "plain"},     {"grpc-timeout", "60S"}};
    if (!token_.empty()) fields.emplace_back("gemmd-session", token_);
    constexpr size_t kFirstPlace = 62;  // The index of the field added last.
    std::string block;
    for (size_t i = 0; i < fields.size(); ++i) {
      if (stream_ > 1) {
        block.push_back(static_cast<char>(0x80 | (kFirstPlace + fields.size() - 1 - i)));
        continue;
      }
      block.push_back(0x40);
      for (const std::string_view text : {fields[i].first, fields[i].second}) {
        block.push_back(static_cast<char>(text.size()));
        block += text;
      }
    }
    return block;
  }

  Http2Peer peer_;
  const std::string method_;
  const std::string token_;
  uint32_t stream_ = 0;
  std::string received_;
};

// The server's allocations per product, and those of them that it made while it held a lock.
struct Allocations {
  double all = 0;
  double under_locks = 0;
};

// Those while `ask` requests `products`: the minimum of several runs, because the server
// occasionally does other work meanwhile.
template <typename Ask>
Allocations FewestPerProduct(int products, const Ask& ask) {
  for (int i = 0; i < kWarmUp; ++i) ask();
  int64_t fewest = std::numeric_limits<int64_t>::max();
  int64_t fewest_under_locks = fewest;
  for (int i = 0; i < kCounted; ++i) {
    const int64_t before = allocations;
    const int64_t before_under_locks = allocations_under_locks;
    ask();
    fewest = std::min(fewest, allocations - before);
    fewest_under_locks = std::min(fewest_under_locks, allocations_under_locks - before_under_locks);
  }
  const Allocations count = {static_cast<double>(fewest) / products,
                             static_cast<double>(fewest_under_locks) / products};
  std::cout << "allocations per product: " << count.all << ", under locks " << count.under_locks
            << "\n";
  return count;
}

// Without those of the caller.
template <typename Ask>
Allocations AllocationsPerProduct(int products, const Ask& ask) {
  is_uncounted = true;
  const Allocations count = FewestPerProduct(products, ask);
  is_uncounted = false;
  return count;
}

Allocations CountOfList(const RunningServer& running,
                        const std::vector<v1::MultiplyRequest>& requests,
                        std::string_view token = "") {
  PlainCaller caller(running.port(), "/gemmd.v1.Gemm/MultiplyStream", token);
  v1::MultiplyStreamRequest message;
  message.mutable_requests()->Assign(requests.begin(), requests.end());
  const std::string bytes = message.SerializeAsString();
  caller.StartCall();
  return AllocationsPerProduct(kProducts, [&] {
    caller.SendMessage(bytes, /*is_last=*/false);
    for (int answers = 0; answers < kProducts;) {
      const std::optional<std::string> text = caller.ReadMessage();
      ASSERT_TRUE(text.has_value());
      v1::MultiplyStreamResponse response;
      ASSERT_TRUE(response.ParseFromString(*text));
      for (const v1::MultiplyStreamAnswer& answer : response.answers()) {
        ASSERT_TRUE(answer.has_response()) << answer.error().message();
      }
      answers += response.answers_size();
    }
  });
}

Allocations CountOfList(const v1::MultiplyRequest& request) {
  const RunningServer running(TestDevice::kOwnCpu);
  return CountOfList(running, std::vector<v1::MultiplyRequest>(kProducts, request));
}

// A session whose tensors products name.
class Owner {
 public:
  explicit Owner(RunningServer& running) : tensors_(v1::Tensors::NewStub(running.channel())) {
    AllowTime(context_);
    session_ = tensors_->OpenSession(&context_, {});
    v1::OpenSessionResponse opened;
    EXPECT_TRUE(session_->Read(&opened));
    token_ = opened.token();
  }
  ~Owner() { context_.TryCancel(); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  const std::string& token() const { return token_; }

  // A square matrix of zeros, to be found by its name or, if that is empty, by its handle.
  v1::TensorRef Put(v1::ElementType type, int64_t size, size_t bytes, const std::string& name) {
    grpc::ClientContext context;
    AllowTime(context);
    context.AddMetadata("gemmd-session", token_);
    const auto stream = tensors_->Put(&context);
    v1::PutRequest request;
    v1::TensorSpec& spec = *request.mutable_begin()->mutable_spec();
    spec.set_type(type);
    spec.set_rows(size);
    spec.set_columns(size);
    request.mutable_begin()->mutable_keep()->set_name(name);
    EXPECT_TRUE(stream->Write(request));
    request.mutable_chunk()->set_data(std::string(bytes, '\0'));
    EXPECT_TRUE(stream->Write(request));
    EXPECT_TRUE(stream->WritesDone());
    v1::PutResponse answer;
    while (stream->Read(&answer)) continue;
    EXPECT_TRUE(stream->Finish().ok());
    v1::TensorRef ref;
    if (name.empty()) {
      ref.set_handle(answer.tensor().handle());
    } else {
      ref.set_name(name);
    }
    return ref;
  }

 private:
  std::unique_ptr<v1::Tensors::Stub> tensors_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::OpenSessionResponse>> session_;
  std::string token_;
};

v1::MultiplyRequest Bytes(int64_t size) {
  v1::MultiplyRequest request;
  request.set_m(size);
  request.set_n(size);
  request.set_k(size);
  for (v1::Operand* operand : {request.mutable_a(), request.mutable_b()}) {
    operand->set_type(v1::ELEMENT_TYPE_S8);
    operand->set_data(std::string(static_cast<size_t>(size * size), '\1'));
  }
  return request;
}

TEST(ProductAllocationTest, OfAListThatRunsOneByOne) {
  const Allocations count = CountOfList(IntegerRequest(4, 4, 4));
  EXPECT_LE(count.all, 4);
  EXPECT_EQ(count.under_locks, 0);
}

// Under locks: what describes the launch as a whole.
constexpr double kOfLaunch = 10;

// Two of them hold the bytes of the operands.
TEST(ProductAllocationTest, OfAListThatRunsTogether) {
  const Allocations count = CountOfList(Bytes(4));
  EXPECT_LE(count.all, 4);
  EXPECT_LE(count.under_locks, kOfLaunch / kProducts);
}

// Operands and results are tensors, so that no matrix is parsed or sent.
std::vector<v1::MultiplyRequest> ResidentProducts(Owner& owner, int count, bool have_names) {
  constexpr int64_t kSize = 64;
  const auto put = [&](v1::ElementType type, size_t element_bytes, const std::string& name) {
    return owner.Put(type, kSize, element_bytes * kSize * kSize, have_names ? name : "");
  };
  v1::MultiplyRequest request;
  request.set_m(kSize);
  request.set_n(kSize);
  request.set_k(kSize);
  const auto read = [&](const std::string& name, v1::Operand& operand) {
    *operand.mutable_tensor()->mutable_tensor() = put(v1::ELEMENT_TYPE_S8, 1, name);
  };
  read("a", *request.mutable_a());
  read("b", *request.mutable_b());
  std::vector<v1::MultiplyRequest> requests;
  for (int i = 0; i < count; ++i) {
    *request.mutable_d()->mutable_tensor()->mutable_tensor() =
        put(v1::ELEMENT_TYPE_S32, 4, "d" + std::to_string(i));
    requests.push_back(request);
  }
  return requests;
}

Allocations CountOfResidentProducts(bool have_names) {
  RunningServer running(TestDevice::kOwnCpu);
  Owner owner(running);
  return CountOfList(running, ResidentProducts(owner, kProducts, have_names), owner.token());
}

TEST(ProductAllocationTest, OfAListOfResidentProducts) {
  EXPECT_LE(CountOfResidentProducts(/*have_names=*/true).all, 2);
}

// protobuf allocates for each of the three handles: a string has room for 15 bytes.
TEST(ProductAllocationTest, OfAListOfResidentProductsByHandles) {
  EXPECT_LE(CountOfResidentProducts(/*have_names=*/false).all, 5);
}

Allocations CountOfCall(const RunningServer& running, const v1::MultiplyRequest& request,
                        std::string_view token = "") {
  PlainCaller caller(running.port(), "/gemmd.v1.Gemm/Multiply", token);
  const std::string bytes = request.SerializeAsString();
  constexpr int kCalls = 16;
  return AllocationsPerProduct(kCalls, [&] {
    for (int i = 0; i < kCalls; ++i) {
      caller.StartCall();
      caller.SendMessage(bytes, /*is_last=*/true);
      ASSERT_TRUE(caller.ReadMessage().has_value());
      ASSERT_FALSE(caller.ReadMessage().has_value());
    }
  });
}

Allocations CountOfCall(const v1::MultiplyRequest& request) {
  const RunningServer running(TestDevice::kOwnCpu);
  return CountOfCall(running, request);
}

TEST(ProductAllocationTest, OfAUnaryCall) {
  const Allocations count = CountOfCall(IntegerRequest(4, 4, 4));
  // Includes gRPC's own allocations. Release 1.75 makes twice as many as 1.51.
  EXPECT_LE(count.all, GRPC_CPP_VERSION_MINOR < 56 ? 23 : 52);
  EXPECT_EQ(count.under_locks, 0);
}

// The device has the tensors, so that none is brought there.
TEST(ProductAllocationTest, OfAUnaryCallWithTensors) {
  RunningServer running(TestDevice::kOwnCpu);
  Owner owner(running);
  const v1::MultiplyRequest request = ResidentProducts(owner, 1, /*have_names=*/true).front();
  const Allocations count = CountOfCall(running, request, owner.token());
  EXPECT_LE(count.all, GRPC_CPP_VERSION_MINOR < 56 ? 26 : 55);
  EXPECT_EQ(count.under_locks, 0);
}

// The key by which it could run with others has the bias, and allocates for it.
TEST(ProductAllocationTest, OfAUnaryCallWithABias) {
  constexpr int64_t kSize = 64;
  v1::MultiplyRequest request = Bytes(kSize);
  request.mutable_bias()->set_axis(v1::BIAS_AXIS_COLUMNS);
  request.mutable_bias()->set_data(std::string(4 * kSize, '\1'));
  EXPECT_EQ(CountOfCall(request).under_locks, 0);
}

// The real device, whose kernels run in a worker, allocates D alone.
TEST(ProductAllocationTest, OfALaunchOfAWorker) {
  const std::unique_ptr<SharedMemory> shared = SharedMemory::Create(int64_t{1} << 26).value();
  WorkerDeviceOptions options = WorkerDeviceOptions::OfHost(HostTarget(), 1, *shared);
  options.program.binary = GEMMD_HOST_WORKER;
  WorkerDevice device(std::move(options));
  ASSERT_TRUE(device.WaitUntilStarted().ok());
  SmallProduct product(4, 4, 4);
  Job job = product.JobFor(device);
  job.d.memory = nullptr;
  std::atomic<int> ended = 0;
  std::atomic<int> failed = 0;
  const auto run = [&] {
    const int before = ended;
    device.Submit(job, [&ended, &failed](const JobOutcome& outcome) {
      if (!outcome.status.ok()) ++failed;
      ++ended;
    });
    while (ended == before) sched_yield();
  };
  const Allocations count = FewestPerProduct(1, run);
  EXPECT_LE(count.all, 1);
  EXPECT_EQ(count.under_locks, 0);
  EXPECT_EQ(failed, 0);
}

// Each call has a token. OpenSSL 3.0 allocates for the algorithm even if the context is reused.
TEST(ProductAllocationTest, OfTheHashOfAToken) {
  const std::array<std::byte, 16> token = {};
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kCounted; ++i) {
    const int64_t before = allocations;
    (void)Sha256::Of(token);
    fewest = std::min(fewest, allocations - before);
  }
  EXPECT_LE(fewest, 1);
}

// What counts the frames of a connection keeps its memory for headers only if they are short.
TEST(FrameMeterAllocationTest, MemoryOfLongHeadersIsFreed) {
  FrameMeter meter(std::make_shared<TokenBucket>(),
                   std::make_shared<QuestionBytes>(QuestionBytes::kMaxBytesOfPeer, nullptr), 1);
  const auto count = [&](std::string_view bytes) {
    const int64_t before = allocations;
    EXPECT_EQ(meter.Receive({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, 0),
              FrameFault::kNone);
    return allocations - before;
  };
  // Trailers of no call, whose fields are in the static table.
  const auto headers = [](uint32_t bytes) {
    return BigEndian(bytes).substr(1) + std::string("\1\4", 2) + BigEndian(2) +
           std::string(bytes, '\x83');
  };
  const std::string few = headers(4000);
  const std::string many = headers(60'000);
  count("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  count(few);
  EXPECT_EQ(count(few), 0);
  count(many);
  EXPECT_GT(count(many), 0);
}

}  // namespace
}  // namespace gemmd
