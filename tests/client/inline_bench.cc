// SPDX-License-Identifier: Apache-2.0
//
// How fast products whose operands travel with them move their bytes over one TCP connection of
// loopback, beside what gRPC moves when nobody looks at the bytes, in turns.
//
// usage: inline_bench [messages|views]=ADDRESS ... [SECONDS]
// A daemon is asked through the client library's views or through messages of protobuf.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "gemmd/client.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace gemmd {
namespace {

constexpr int64_t kBytes = int64_t{64} << 20;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Zeros that are never written.
std::vector<std::byte>& Block() {
  static std::vector<std::byte> block(static_cast<size_t>(kBytes));
  return block;
}

grpc::ByteBuffer BlockMessage() {
  const grpc::Slice slice(Block().data(), Block().size(), grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer EmptyMessage() {
  const grpc::Slice slice;
  return grpc::ByteBuffer(&slice, 1);
}

// Takes one message, copies its slices to one place, and answers nothing; or answers with the
// block where it is asked to.
class ProbeCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit ProbeCall(bool sends) : sends_(sends) { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (ok && !sends_) Copy();
    message_ = sends_ ? BlockMessage() : EmptyMessage();
    StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  void Copy() {
    static std::vector<std::byte> area(static_cast<size_t>(kBytes));
    std::vector<grpc::Slice> slices;
    if (!message_.Dump(&slices).ok()) std::abort();
    std::byte* to = area.data();
    for (const grpc::Slice& slice : slices) {
      std::memcpy(to, slice.begin(), slice.size());
      to += slice.size();
    }
  }

  const bool sends_;
  grpc::ByteBuffer message_;
};

class Probe : public grpc::CallbackGenericService {
 public:
  Probe() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    builder.SetMaxReceiveMessageSize(-1);
    server_ = builder.BuildAndStart();
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    stub_ = std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials(), arguments));
  }
  ~Probe() override {
    stub_ = nullptr;
    server_->Shutdown();
  }

  void Up() { Call("/probe/up", BlockMessage()); }
  void Down() { Call("/probe/down", EmptyMessage()); }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new ProbeCall(absl::EndsWith(context->method(), "down"));
  }
  void Call(const std::string& method, const grpc::ByteBuffer& request) {
    grpc::ClientContext context;
    grpc::ByteBuffer answer;
    absl::Notification done;
    stub_->UnaryCall(&context, method, {}, &request, &answer, [&](const grpc::Status& status) {
      if (!status.ok()) std::abort();
      done.Notify();
    });
    done.WaitForNotification();
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

// Products that move 64 MiB: of 16 x 2^20 and 2^20 x 1 numbers, or of 4096 x 1 and 1 x 4096.
class Products {
 public:
  explicit Products(const std::string& address, bool as_messages)
      : as_messages_(as_messages), client_(Client::Create(address).value()) {}

  void Up() { Multiply(kFew, kDepth, 1); }
  void Down() { Multiply(kWide, 1, kWide); }
  double compute_ms() const { return compute_ns_ * 1e-6; }
  double server_ms() const { return server_ns_ * 1e-6; }

  static constexpr double kUpBytes = static_cast<double>(kBytes) * (1 + 1.0 / 16);

 private:
  static constexpr int64_t kFew = 16;
  static constexpr int64_t kDepth = kBytes / 4 / kFew;
  static constexpr int64_t kWide = 4096;

  MatrixView Zeros(int64_t rows, int64_t columns) const {
    return PackedView(v1::ELEMENT_TYPE_F32,
                      std::span(Block()).first(static_cast<size_t>(4 * rows * columns)), rows,
                      columns);
  }

  void Multiply(int64_t m, int64_t k, int64_t n) {
    v1::Timing timing;
    if (as_messages_) {
      const auto answer = client_.Multiply(BuildRequest(Zeros(m, k), Zeros(k, n)).value());
      timing = answer.value().timing();
    } else {
      d_.resize(static_cast<size_t>(4 * m * n));
      timing = client_.Multiply(Zeros(m, k), Zeros(k, n), {.into = d_}).value().timing();
    }
    compute_ns_ = static_cast<double>(timing.compute_ns());
    server_ns_ = static_cast<double>(timing.total_ns());
  }

  const bool as_messages_;
  Client client_;
  std::vector<std::byte> d_;
  double compute_ns_ = 0;
  double server_ns_ = 0;
};

// Calls a second, of one after the other.
double RateOf(const std::function<void()>& call, double seconds) {
  call();
  const double start = Seconds();
  int calls = 0;
  while (Seconds() < start + seconds) {
    call();
    ++calls;
  }
  return calls / (Seconds() - start);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Row {
  std::string name;
  std::function<void()> up;
  std::function<void()> down;
  double up_bytes;
  std::vector<double> up_rates = {};
  std::vector<double> down_rates = {};
};

int Main(std::vector<std::string> arguments) {
  double seconds = 10;
  double asked = 0;
  if (!arguments.empty() && absl::SimpleAtod(arguments.back(), &asked)) {
    seconds = asked;
    arguments.pop_back();
  }
  Probe probe;
  std::vector<Row> rows;
  rows.push_back({"bare gRPC, one copy", [&] { probe.Up(); }, [&] { probe.Down(); },
                  static_cast<double>(kBytes)});
  std::vector<std::unique_ptr<Products>> daemons;
  for (const std::string& argument : arguments) {
    absl::string_view address = argument;
    const bool as_messages = absl::ConsumePrefix(&address, "messages=");
    if (!as_messages && !absl::ConsumePrefix(&address, "views=")) return 2;
    daemons.push_back(std::make_unique<Products>(std::string(address), as_messages));
    Products& products = *daemons.back();
    rows.push_back(
        {argument, [&] { products.Up(); }, [&] { products.Down(); }, Products::kUpBytes});
  }
  constexpr int kTurns = 5;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Row& row : rows) {
      row.up_rates.push_back(row.up_bytes * RateOf(row.up, seconds / kTurns));
      row.down_rates.push_back(static_cast<double>(kBytes) * RateOf(row.down, seconds / kTurns));
    }
  }
  const double bare_up = Median(rows[0].up_rates);
  const double bare_down = Median(rows[0].down_rates);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double up = Median(rows[i].up_rates);
    const double down = Median(rows[i].down_rates);
    std::printf("%-32s up %.2f GB/s, %.2f of bare; down %.2f GB/s, %.2f of bare\n",
                rows[i].name.c_str(), up * 1e-9, up / bare_up, down * 1e-9, down / bare_down);
    if (i == 0) continue;
    Products& products = *daemons[i - 1];
    products.Up();
    std::printf("  up: compute %.1f ms, server %.1f ms;", products.compute_ms(),
                products.server_ms());
    products.Down();
    std::printf(" down: compute %.1f ms, server %.1f ms\n", products.compute_ms(),
                products.server_ms());
  }
  return 0;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::Main({argv + 1, argv + argc}); }
