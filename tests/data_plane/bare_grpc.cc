// SPDX-License-Identifier: Apache-2.0
#include "tests/data_plane/bare_grpc.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "tests/data_plane/measure.h"

namespace gemmd {
namespace {

constexpr absl::string_view kTake = "/bare/take";
constexpr absl::string_view kPour = "/bare/pour/";
constexpr absl::string_view kEcho = "/bare/echo/";
constexpr absl::string_view kAnswer = "/bare/answer/";

// The client library's chunk size.
constexpr size_t kChunkBytes = size_t{2} << 20;

// Long enough to miss every cache.
constexpr size_t kAreaBytes = size_t{256} << 20;

// Copies to a position that advances cyclically through an area.
class Copier {
 public:
  explicit Copier(std::vector<std::byte>& area) : area_(area) {}

  void Take(const grpc::ByteBuffer& message) {
    std::vector<grpc::Slice> slices;
    if (!message.Dump(&slices).ok()) Fail("bare gRPC: got a message without slices");
    for (const grpc::Slice& slice : slices) {
      if (slice.size() > area_.size() - at_) at_ = 0;
      std::memcpy(area_.data() + at_, slice.begin(), std::min(slice.size(), area_.size()));
      at_ += slice.size();
    }
  }

 private:
  std::vector<std::byte>& area_;
  size_t at_ = 0;
};

// One call; its path determines what is done with its messages.
class BareCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit BareCall(absl::string_view path) {
    if (absl::ConsumePrefix(&path, kPour)) {
      left_ = Number(path);
      Pour();
      return;
    }
    takes_ = path == kTake;
    is_unary_ = absl::ConsumePrefix(&path, kAnswer);
    if (is_unary_ || absl::ConsumePrefix(&path, kEcho)) answer_bytes_ = Number(path);
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok && takes_) return EndTaking();
    if (!ok) return Finish(grpc::Status::OK);
    if (takes_) {
      thread_local std::vector<std::byte> area(size_t{64} << 20);
      Copier(area).Take(incoming_);
      incoming_.Clear();
      return StartRead(&incoming_);
    }
    outgoing_ = Bytes(answer_bytes_);
    if (!is_unary_) return StartWrite(&outgoing_);
    StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    left_ > 0 ? Pour() : StartRead(&incoming_);
  }
  void OnDone() override { delete this; }

 private:
  static size_t Number(absl::string_view text) {
    uint64_t number = 0;
    if (!absl::SimpleAtoi(text, &number)) Fail("bare gRPC: got a path without a number");
    return number;
  }
  void Pour() {
    --left_;
    outgoing_ = Bytes(kChunkBytes, left_ * kChunkBytes);
    if (left_ > 0) return StartWrite(&outgoing_);
    StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void EndTaking() {
    outgoing_ = Bytes(1);
    StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
  }

  bool takes_ = false;
  bool is_unary_ = false;
  size_t answer_bytes_ = 0;
  size_t left_ = 0;  // Chunks to be poured.
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
};

// The client's end of one stream.
class BareStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  BareStream(grpc::GenericStub& stub, size_t chunks, bool is_up, std::vector<std::byte>& area)
      : left_(is_up ? chunks : 0), copier_(area) {
    const std::string path = is_up ? std::string(kTake) : absl::StrCat(kPour, chunks);
    stub.PrepareBidiStreamingCall(&context_, path, {}, this);
    StartRead(&incoming_);
    Send();
    StartCall();
  }
  void OnWriteDone(bool ok) override {
    if (ok) Send();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    copier_.Take(incoming_);
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok()) Fail("bare gRPC: " + status.error_message());
    done_.Notify();
  }
  void Wait() { done_.WaitForNotification(); }

 private:
  void Send() {
    if (left_ == 0) return StartWritesDone();
    --left_;
    outgoing_ = Bytes(kChunkBytes, left_ * kChunkBytes);
    StartWrite(&outgoing_);
  }

  grpc::ClientContext context_;
  size_t left_;
  Copier copier_;
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;
  absl::Notification done_;
};

}  // namespace

std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

grpc::ByteBuffer Bytes(size_t bytes, size_t from) {
  static const auto& area = *new std::vector<std::byte>(kAreaBytes, std::byte{7});
  if (bytes > kAreaBytes) Fail("bare gRPC: got a message that is too long");
  const size_t at = from % (kAreaBytes - bytes + 1);
  const grpc::Slice slice(area.data() + at, bytes, grpc::Slice::STATIC_SLICE);
  return {&slice, 1};
}

std::string BareGrpc::EchoPath(size_t answer_bytes) { return absl::StrCat(kEcho, answer_bytes); }
std::string BareGrpc::AnswerPath(size_t answer_bytes) {
  return absl::StrCat(kAnswer, answer_bytes);
}

grpc::ServerGenericBidiReactor* BareGrpc::Service::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  return new BareCall(context->method());
}

BareGrpc::BareGrpc(const std::string& beside) {
  const bool is_unix = absl::StartsWith(beside, "unix:");
  const std::string own = is_unix ? beside + ".bare" : "127.0.0.1:0";
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(own, grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service_);
  builder.SetMaxReceiveMessageSize(-1);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) Fail("bare gRPC: cannot listen on " + own);
  address_ = is_unix ? own : absl::StrCat("127.0.0.1:", port);
  for (int i = 0; i < kConnections; ++i) {
    stubs_.push_back(std::make_unique<grpc::GenericStub>(OwnChannel(address_)));
    areas_.emplace_back(size_t{64} << 20);
  }
}

BareGrpc::~BareGrpc() {
  stubs_.clear();
  server_->Shutdown();
}

void BareGrpc::Down(size_t bytes, int connection) { Call(AnswerPath(bytes), Bytes(1), connection); }

void BareGrpc::Call(const std::string& path, const grpc::ByteBuffer& request, int connection) {
  grpc::ClientContext context;
  grpc::ByteBuffer answer;
  absl::Notification done;
  stubs_.at(static_cast<size_t>(connection))
      ->UnaryCall(&context, path, {}, &request, &answer, [&](const grpc::Status& status) {
        if (!status.ok()) Fail("bare gRPC: " + status.error_message());
        done.Notify();
      });
  done.WaitForNotification();
}

void BareGrpc::Stream(size_t bytes, int connections, bool is_up) {
  std::vector<std::unique_ptr<BareStream>> streams;
  const size_t chunks = bytes / kChunkBytes / static_cast<size_t>(connections);
  if (chunks == 0) Fail("bare gRPC: got less than a chunk for each stream (--transfer-mib)");
  for (size_t i = 0; i < static_cast<size_t>(connections); ++i) {
    streams.push_back(std::make_unique<BareStream>(*stubs_[i], chunks, is_up, areas_[i]));
  }
  for (const auto& stream : streams) stream->Wait();
}

}  // namespace gemmd
