// SPDX-License-Identifier: Apache-2.0
//
// How fast tensors go to a daemon and come back, beside streams of gRPC that carry the same bytes,
// are copied once and parsed by nobody, in turns, over the same transport and as many connections.
// The daemon must have room for two tensors of that size (--tensor-bytes, --session-tensor-bytes).
// usage: client_transfer_bench MIB ROUNDS ADDRESS... ; prints GB/s (medians), the ratio, and a line
// of JSON for each row.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gemmd/client.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace gemmd {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr char kUp[] = "/probe/up";
constexpr char kDown[] = "/probe/down";

// The memory that both ends of the probe copy to and from, long enough to miss every cache.
std::vector<std::byte>& Area() {
  static auto& area = *new std::vector<std::byte>(size_t{256} << 20, std::byte{7});
  return area;
}

grpc::ByteBuffer Chunk(size_t at) {
  const grpc::Slice slice(Area().data() + at % Area().size(), kChunkBytes,
                          grpc::Slice::STATIC_SLICE);
  return {&slice, 1};
}

size_t CopyOut(const grpc::ByteBuffer& bytes, std::vector<std::byte>& to, size_t at) {
  std::vector<grpc::Slice> slices;
  (void)bytes.Dump(&slices);
  for (const grpc::Slice& slice : slices) {
    const size_t room = std::min(slice.size(), to.size() - at % to.size());
    std::memcpy(to.data() + at % to.size(), slice.begin(), room);
    at += slice.size();
  }
  return at;
}

// Takes chunks and copies them, or sends as many as the call's path says.
class ProbeCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit ProbeCall(const std::string& method) {
    if (absl::StartsWith(method, kDown)) {
      left_ = std::stoul(method.substr(sizeof(kDown)));
      Send();
    } else {
      StartRead(&bytes_);
    }
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    thread_local std::vector<std::byte> area(size_t{64} << 20);
    at_ = CopyOut(bytes_, area, at_);
    bytes_.Clear();
    StartRead(&bytes_);
  }
  void OnWriteDone(bool ok) override { ok ? Send() : Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

 private:
  void Send() {
    if (left_ == 0) return Finish(grpc::Status::OK);
    --left_;
    bytes_ = Chunk(at_);
    at_ += kChunkBytes;
    StartWrite(&bytes_);
  }

  size_t left_ = 0;
  size_t at_ = 0;
  grpc::ByteBuffer bytes_;
};

class ProbeService final : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new ProbeCall(context->method());
  }
};

// The client's end of one stream.
class ProbeStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ProbeStream(grpc::GenericStub& stub, size_t chunks, bool is_up, std::vector<std::byte>& area)
      : left_(is_up ? chunks : 0), area_(area) {
    const std::string method = is_up ? kUp : absl::StrCat(kDown, "/", chunks);
    stub.PrepareBidiStreamingCall(&context_, method, {}, this);
    StartRead(&incoming_);
    Send();
    StartCall();
  }
  void OnWriteDone(bool ok) override {
    if (ok) Send();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    at_ = CopyOut(incoming_, area_, at_);
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok()) std::abort();
    done_.Notify();
  }
  void Wait() { done_.WaitForNotification(); }

 private:
  void Send() {
    if (left_ == 0) return StartWritesDone();
    outgoing_ = Chunk(left_-- * kChunkBytes);
    StartWrite(&outgoing_);
  }

  grpc::ClientContext context_;
  size_t left_;
  size_t at_ = 0;
  std::vector<std::byte>& area_;  // Where what comes is copied to.
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;
  absl::Notification done_;
};

class Probe {
 public:
  // Over the same transport as that address.
  explicit Probe(const std::string& address) {
    const bool is_unix = absl::StartsWith(address, "unix:");
    const std::string own = is_unix ? address + ".probe" : "127.0.0.1:0";
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(own, grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service_);
    builder.SetMaxReceiveMessageSize(-1);
    server_ = builder.BuildAndStart();
    address_ = is_unix ? own : absl::StrCat("127.0.0.1:", port);
  }

  void Run(size_t bytes, int connections, bool is_up) {
    while (static_cast<int>(stubs_.size()) < connections) {
      grpc::ChannelArguments arguments;
      arguments.SetMaxReceiveMessageSize(-1);
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      stubs_.push_back(std::make_unique<grpc::GenericStub>(
          grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments)));
      areas_.emplace_back(size_t{64} << 20);
    }
    std::vector<std::unique_ptr<ProbeStream>> streams;
    const size_t chunks = bytes / kChunkBytes / static_cast<size_t>(connections);
    for (int i = 0; i < connections; ++i) {
      streams.push_back(std::make_unique<ProbeStream>(*stubs_[static_cast<size_t>(i)], chunks,
                                                      is_up, areas_[static_cast<size_t>(i)]));
    }
    for (const auto& stream : streams) stream->Wait();
  }

 private:
  ProbeService service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::deque<std::vector<std::byte>> areas_;
};

double GigabytesPerSecond(size_t bytes, const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return static_cast<double>(bytes) * 1e-9 / took.count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

void Compare(const std::string& address, size_t bytes, int rounds) {
  std::vector<uint8_t> source(bytes, 1);
  std::vector<uint8_t> target(bytes, 2);
  Probe probe(address);
  auto client = Client::Create(address);
  Require(client.status());
  for (const int connections : {1, 2, 4}) {
    std::vector<double> put, get, up, down;
    for (int round = -1; round < rounds; ++round) {  // The first is a warm-up.
      const double raw_up = GigabytesPerSecond(bytes, [&] { probe.Run(bytes, connections, true); });
      const double raw_down =
          GigabytesPerSecond(bytes, [&] { probe.Run(bytes, connections, false); });
      absl::StatusOr<ResidentTensor> tensor = absl::UnknownError("");
      const double ours_up = GigabytesPerSecond(bytes, [&] {
        tensor =
            client->Put(View(source, 1, static_cast<int64_t>(bytes)), {.connections = connections});
      });
      Require(tensor.status());
      const double ours_down = GigabytesPerSecond(bytes, [&] {
        Require(client
                    ->Get(tensor->ref(), std::as_writable_bytes(std::span(target)),
                          {.connections = connections})
                    .status());
      });
      if (source != target) Require(absl::DataLossError("other bytes came back"));
      if (round < 0) continue;
      put.push_back(ours_up);
      get.push_back(ours_down);
      up.push_back(raw_up);
      down.push_back(raw_down);
    }
    for (const bool is_up : {true, false}) {
      const double ours = Median(is_up ? put : get);
      const double raw = Median(is_up ? up : down);
      std::printf("%-28s %d connections  %s %6.2f GB/s  raw stream %6.2f GB/s  ratio %.2f\n",
                  address.c_str(), connections, is_up ? "Put" : "Get", ours, raw, ours / raw);
      std::printf(
          "{\"address\":\"%s\",\"connections\":%d,\"what\":\"%s\",\"bytes\":%zu,"
          "\"gb_per_s\":%.3f,\"raw_gb_per_s\":%.3f,\"ratio\":%.3f}\n",
          address.c_str(), connections, is_up ? "put" : "get", bytes, ours, raw, ours / raw);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s MIB ROUNDS ADDRESS...\n", argv[0]);
    return 2;
  }
  const size_t bytes = static_cast<size_t>(std::atoll(argv[1])) << 20;
  for (int i = 3; i < argc; ++i) gemmd::Compare(argv[i], bytes, std::atoi(argv[2]));
  return 0;
}
