// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "tests/data_plane/bare_grpc.h"
#include "tests/data_plane/raw_calls.h"
#include "tests/data_plane/rows.h"

namespace gemmd {
namespace {

constexpr int64_t kSide = 64;
constexpr int kInFlight = 64;
// The number of products in one message; the maximum that a stream may have unanswered, and a
// caller in total.
constexpr int kListed = 64;
constexpr int kMaxOnStream = 1024;
constexpr int kMaxOfCaller = 2048;
constexpr size_t kResultBytes = 4 * kSide * kSide;
// Apart from D, an answer has some hundred bytes.
constexpr size_t kAnswerWithoutD = 256;

// 64^3 with operands that are sent and with operands that are resident.
class SmallProducts {
 public:
  explicit SmallProducts(const Targets& targets)
      : device_(targets.device),
        left_(RandomBf16(kSide * kSide, 1)),
        right_(RandomBf16(kSide * kSide, 2)),
        client_(Connect(targets.unix_socket)),
        a_(Value(client_.Put(View(left_, kSide, kSide)))),
        b_(Value(client_.Put(View(right_, kSide, kSide)))) {
    session_ = Value(client_.OpenSession()).token;
    const std::vector<float> zeros(kSide * kSide);
    for (int i = 0; i < kInFlight; ++i) {
      results_.push_back(Value(client_.Put(View(zeros, kSide, kSide))));
    }
  }

  const std::string& session() const { return session_; }

  v1::MultiplyRequest Inline() const {
    ProductOptions options;
    options.device = device_;
    return Value(BuildRequest(View(left_, kSide, kSide), View(right_, kSide, kSide), options));
  }
  // D is sent back, or goes into one of several tensors.
  v1::MultiplyRequest Resident(std::optional<size_t> into) const {
    if (!into) {
      ProductOptions options;
      options.device = device_;
      return Value(BuildRequest(Operand(a_), Operand(b_), options));
    }
    return Value(BuildChainRequest(a_, b_, Into(*into)));
  }
  // Computes it; the times of its stages.
  Timing Chain() { return TimingOf(*Value(client_.Chain(a_, b_, Into(0))).response); }

 private:
  ChainOptions Into(size_t result) const {
    ChainOptions chain;
    chain.product.device = device_;
    chain.into = results_[result % results_.size()].view();
    return chain;
  }

  const std::string device_;
  const std::vector<Bf16> left_;
  const std::vector<Bf16> right_;
  Client client_;
  const ResidentTensor a_;
  const ResidentTensor b_;
  std::string session_;
  std::vector<ResidentTensor> results_;
};

void MeasureUnary(const Targets& targets, const BareGrpc& bare, const SmallProducts& products,
                  int connections) {
  const grpc::ByteBuffer request = Serialized(products.Inline());
  RawCalls ours({.address = targets.unix_socket, .path = kMultiplyPath, .requests = {request}},
                connections);
  RawCalls echo({.address = bare.address(),
                 .path = BareGrpc::AnswerPath(kResultBytes),
                 .requests = {request}},
                connections);
  std::vector<std::function<double()>> measures = {
      [&] { return echo.UnaryRate(kInFlight, targets.seconds); },
      [&] { return ours.UnaryRate(kInFlight, targets.seconds); }};
  std::optional<RawCalls> before;
  if (!targets.baseline_unix.empty()) {
    before.emplace(
        RawTarget{.address = targets.baseline_unix, .path = kMultiplyPath, .requests = {request}},
        connections);
    measures.push_back([&] { return before->UnaryRate(kInFlight, targets.seconds); });
  }
  const std::vector<double> rates = InTurns(measures, targets.turns);
  Row row = {.what = "64^3 bf16 inline, unary, 64 in flight, " + std::to_string(connections) +
                     " connections",
             .unit = "products/s",
             .seen = rates[1],
             .measure = "bare unary echo",
             .by = rates[0],
             .wanted = 0.85};
  if (before) row.baseline = rates[2];
  Print(row);
}

void MeasureStream(const Targets& targets, const BareGrpc& bare, const SmallProducts& products,
                   int connections) {
  std::vector<grpc::ByteBuffer> requests;
  for (const bool is_kept : {false, true}) {
    requests.clear();
    for (size_t i = 0; i < kInFlight; ++i) {
      v1::MultiplyStreamRequest message;
      *message.add_requests() =
          products.Resident(is_kept ? std::optional<size_t>(i) : std::nullopt);
      requests.push_back(Serialized(message));
    }
    RawCalls ours({.address = targets.unix_socket,
                   .path = kStreamPath,
                   .requests = requests,
                   .session = products.session(),
                   .is_checked = true},
                  connections);
    const size_t answer = is_kept ? kAnswerWithoutD : kResultBytes;
    RawCalls echo(
        {.address = bare.address(), .path = BareGrpc::EchoPath(answer), .requests = requests},
        connections);
    const std::vector<double> rates =
        InTurns({[&] { return echo.StreamRate(kInFlight, targets.seconds); },
                 [&] { return ours.StreamRate(kInFlight, targets.seconds); }},
                targets.turns);
    Print({.what = std::string("64^3 bf16 stream, operands resident, D ") +
                   (is_kept ? "resident" : "inline") + ", 64 in flight, " +
                   std::to_string(connections) + " connections",
           .unit = "products/s",
           .seen = rates[1],
           .measure = "bare stream echo",
           .by = rates[0],
           .wanted = 0.85});
  }
}

void MeasureLists(const Targets& targets, const SmallProducts& products, int connections) {
  v1::MultiplyStreamRequest message;
  for (size_t i = 0; i < kListed; ++i) *message.add_requests() = products.Resident(i);
  RawCalls lists({.address = targets.unix_socket,
                  .path = kStreamPath,
                  .requests = {Serialized(message)},
                  .session = products.session(),
                  .products = kListed,
                  .is_checked = true},
                 connections);
  const int in_flight = std::min(kMaxOnStream * connections, kMaxOfCaller);
  const std::vector<double> rates =
      InTurns({[&] { return lists.StreamRate(in_flight, targets.seconds); }}, targets.turns);
  Print({.what =
             "64^3 bf16 resident, 64 in a message, " + std::to_string(connections) + " connections",
         .unit = "products/s",
         .seen = rates[0],
         .measure = "250,000 products/s",
         .by = 250'000,
         .wanted = 1});
}

void MeasureAlone(const Targets& targets, const BareGrpc& bare, SmallProducts& products) {
  constexpr int kWarm = 200;
  const int calls = kWarm + static_cast<int>(targets.seconds * 2000);
  const auto p50 = [&](const RawTarget& target) {
    std::vector<double> seconds = RawCalls(target, 1).Latencies(calls);
    seconds.erase(seconds.begin(), seconds.begin() + kWarm);
    return 1e6 * Median(seconds);
  };
  const grpc::ByteBuffer request = Serialized(products.Resident(0));
  const RawTarget ours = {.address = targets.unix_socket,
                          .path = kMultiplyPath,
                          .requests = {request},
                          .session = products.session()};
  const RawTarget echo = {.address = bare.address(),
                          .path = BareGrpc::AnswerPath(kAnswerWithoutD),
                          .requests = {request}};
  const grpc::Slice nothing;
  const RawTarget empty = {.address = targets.unix_socket,
                           .path = "/grpc.health.v1.Health/Check",
                           .requests = {grpc::ByteBuffer(&nothing, 1)}};
  const std::vector<double> micros =
      InTurns({[&] { return p50(ours); }, [&] { return p50(echo); }, [&] { return p50(empty); }},
              targets.turns);
  Row row = {.what = "64^3 bf16 resident, one caller, round trip p50",
             .unit = "us",
             .seen = micros[0],
             .measure = "bare unary echo, one caller",
             .by = micros[1],
             .wanted = 1.2,
             .is_most = true};
  Row beside_empty = row;
  beside_empty.measure = "an empty call of the daemon, one caller";
  beside_empty.by = micros[2];
  Print(beside_empty);
  if (!targets.baseline_unix.empty()) {
    row.baseline = p50({.address = targets.baseline_unix,
                        .path = kMultiplyPath,
                        .requests = {Serialized(products.Inline())}});
  }
  Print(row);
  std::vector<Timing> timings;
  for (int i = 0; i < calls; ++i) {
    const Timing timing = products.Chain();
    if (i >= kWarm) timings.push_back(timing);
  }
  Print({.what = "64^3 bf16 resident, one caller, the server's time p50",
         .unit = "us",
         .seen = MedianUs(timings, [](const Timing& one) { return one.total_ns; }),
         .measure = "35 us",
         .by = 35,
         .wanted = 1,
         .is_most = true});
  PrintStages("64^3 bf16 resident, one caller", timings);
}

constexpr int kConnections[] = {1, 4};

}  // namespace

void MeasureSmallUnary(const Targets& targets) {
  const BareGrpc bare(targets.unix_socket);
  const SmallProducts products(targets);
  for (const int connections : kConnections) MeasureUnary(targets, bare, products, connections);
}

void MeasureSmallStreams(const Targets& targets) {
  const BareGrpc bare(targets.unix_socket);
  const SmallProducts products(targets);
  for (const int connections : kConnections) MeasureStream(targets, bare, products, connections);
}

void MeasureSmallLists(const Targets& targets) {
  const SmallProducts products(targets);
  for (const int connections : kConnections) MeasureLists(targets, products, connections);
}

void MeasureSmallAlone(const Targets& targets) {
  const BareGrpc bare(targets.unix_socket);
  SmallProducts products(targets);
  MeasureAlone(targets, bare, products);
}

void MeasureStacking(const Targets& targets) {
  const BareGrpc bare(targets.unix_socket);
  constexpr int64_t kRows = 8;
  constexpr int64_t kDepth = 4096;
  constexpr int kCallers = 64;
  const std::vector<Bf16> rows = RandomBf16(kRows * kDepth, 1);
  const std::vector<Bf16> weights = RandomBf16(kDepth * kDepth, 2);
  struct Caller {
    Client client;
    ResidentTensor weights;
    std::optional<RawCalls> calls = {};
  };
  const auto open = [&](const std::string& address) {
    Client client = Connect(address);
    ResidentTensor tensor = Value(client.Put(View(weights, kDepth, kDepth)));
    return Caller{std::move(client), std::move(tensor)};
  };
  const auto start = [&](Caller& caller, const std::string& address) {
    ProductOptions options;
    options.device = targets.device;
    options.output_type = v1::ELEMENT_TYPE_BF16;
    const v1::MultiplyRequest request =
        Value(BuildRequest(View(rows, kRows, kDepth), caller.weights, options));
    caller.calls.emplace(RawTarget{.address = address,
                                   .path = kMultiplyPath,
                                   .requests = {Serialized(request)},
                                   .session = Value(caller.client.OpenSession()).token},
                         BareGrpc::kConnections);
  };
  // The operand that is sent, and as much back.
  RawCalls echo({.address = bare.address(),
                 .path = BareGrpc::AnswerPath(rows.size() * sizeof(Bf16)),
                 .requests = {Bytes(rows.size() * sizeof(Bf16))}},
                BareGrpc::kConnections);
  Caller stacked = open(targets.unix_socket);
  Caller alone = open(targets.alone);
  start(stacked, targets.unix_socket);
  start(alone, targets.alone);
  const std::vector<double> rates =
      InTurns({[&] { return stacked.calls->UnaryRate(kCallers, targets.seconds); },
               [&] { return alone.calls->UnaryRate(kCallers, targets.seconds); },
               [&] { return echo.UnaryRate(kCallers, targets.seconds); }},
              targets.turns);
  Row row = {.what = "64 callers, 8 x 4096 times a resident 4096^2, bf16",
             .unit = "products/s",
             .seen = rates[0],
             .measure = "each alone",
             .by = rates[1],
             .wanted = 5};
  Print(row);
  // Computing cannot be faster than this.
  row.measure = "bare unary echo";
  row.by = rates[2];
  row.wanted.reset();
  Print(row);
}

}  // namespace gemmd
