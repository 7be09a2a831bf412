// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <thread>

#include "gemmd/v1/gemm.pb.h"
#include "tests/data_plane/bare_grpc.h"
#include "tests/data_plane/rows.h"

namespace gemmd {
namespace {

// A and B of one square product, in bf16.
struct Squares {
  explicit Squares(int64_t of_side)
      : side(of_side), left(RandomBf16(side * side, 1)), right(RandomBf16(side * side, 2)) {}

  MatrixView a() const { return View(left, side, side); }
  MatrixView b() const { return View(right, side, side); }

  const int64_t side;
  const std::vector<Bf16> left;
  const std::vector<Bf16> right;
};

// As protobuf messages, which older clients sent: seconds of a round trip.
double SecondsOfMessages(Client& client, const MatrixView& a, const MatrixView& b,
                         const std::string& device) {
  ProductOptions options;
  options.device = device;
  const v1::MultiplyRequest request = Value(BuildRequest(a, b, options));
  return SecondsOf([&] { Value(client.Multiply(request)); });
}

void MeasureAllResident(const Targets& targets) {
  const Squares squares(8192);
  Client client = Connect(targets.unix_socket);
  const ResidentTensor a = Value(client.Put(squares.a()));
  const ResidentTensor b = Value(client.Put(squares.b()));
  ChainOptions chain;
  chain.product.device = targets.device;
  const ChainResult first = Value(client.Chain(a, b, chain));
  chain.into = first.tensor->view();
  std::vector<Timing> timings;
  const double until = NowSeconds() + targets.seconds * 2;
  while (NowSeconds() < until) {
    timings.push_back(TimingOf(*Value(client.Chain(a, b, chain)).response));
  }
  Row row = {.what = "8192^3 bf16, all resident, the server's time",
             .unit = "us",
             .seen = MedianUs(timings, [](const Timing& one) { return one.total_ns; }),
             .measure = "1.1 kernel + 100 us",
             .by = 1.1 * MedianUs(timings, [](const Timing& one) { return one.compute_ns; }) + 100,
             .wanted = 1,
             .is_most = true};
  if (!targets.baseline_unix.empty()) {
    Client before = Connect(targets.baseline_unix);
    row.baseline =
        1e6 * InTurns({[&] {
                        return SecondsOfMessages(before, squares.a(), squares.b(), targets.device);
                      }},
                      3)[0];
  }
  Print(row);
}

// Weights are k x n, or n x k as in the layers of networks, which is the order that kernels read.
void MeasureFewRows(const Targets& targets, v1::Order order) {
  constexpr int64_t kRows = 16;
  constexpr int64_t kSide = 8192;
  const std::vector<Bf16> rows = RandomBf16(kRows * kSide, 1);
  const std::vector<Bf16> weights = RandomBf16(kSide * kSide, 2);
  Client client = Connect(targets.unix_socket);
  MatrixView view = View(weights, kSide, kSide);
  view.order = order;
  const ResidentTensor b = Value(client.Put(view));
  std::vector<float> d(kRows * kSide);
  ProductOptions options;
  options.device = targets.device;
  options.into = std::as_writable_bytes(std::span(d));
  std::vector<double> seconds;
  std::vector<Timing> timings;
  const double until = NowSeconds() + targets.seconds * 2;
  while (NowSeconds() < until) {
    Timing timing;
    seconds.push_back(SecondsOf(
        [&] { timing = Value(client.Multiply(View(rows, kRows, kSide), b, options)).timing(); }));
    timings.push_back(timing);
  }
  // Without the first ones, which make the form of B.
  const auto first = static_cast<std::ptrdiff_t>(timings.size() / 4);
  seconds.erase(seconds.begin(), seconds.begin() + first);
  timings.erase(timings.begin(), timings.begin() + first);
  const std::string what = std::string("16x8192x8192 bf16, B resident ") +
                           (order == v1::ORDER_COLUMN_MAJOR ? "column major" : "row major");
  Row row = {.what = what + ", round trip p50",
             .unit = "us",
             .seen = 1e6 * Median(seconds),
             .measure = "400 us",
             .by = 400,
             .wanted = 1,
             .is_most = true};
  if (!targets.baseline_unix.empty()) {
    Client before = Connect(targets.baseline_unix);
    row.baseline = 1e6 * InTurns({[&] {
                                   return SecondsOfMessages(before, View(rows, kRows, kSide), view,
                                                            targets.device);
                                 }},
                                 3)[0];
  }
  Print(row);
  Print({.what = what + ", the server's time above the kernel's p50",
         .unit = "us",
         .seen = MedianUs(timings, [](const Timing& one) { return one.total_ns - one.compute_ns; }),
         .measure = "120 us",
         .by = 120,
         .wanted = 1,
         .is_most = true});
  PrintStages(what, timings);
}

// Calls a second of several callers, each on its own connection.
double RateOfCallers(const std::function<void(int caller)>& call, double seconds) {
  std::atomic<int64_t> calls = 0;
  std::vector<std::thread> callers;
  const double start = NowSeconds();
  for (int i = 0; i < BareGrpc::kConnections; ++i) {
    callers.emplace_back([&, i] {
      while (NowSeconds() < start + seconds) {
        call(i);
        ++calls;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  return static_cast<double>(calls.load()) / (NowSeconds() - start);
}

void MeasureFourCallers(const Targets& targets) {
  const Squares squares(4096);
  const size_t operands = 2 * sizeof(Bf16) * squares.left.size();
  const size_t result = sizeof(float) * squares.left.size();
  BareGrpc bare(targets.unix_socket);
  std::vector<Client> clients;
  std::vector<Client> before;
  std::vector<std::vector<float>> results;
  for (int i = 0; i < BareGrpc::kConnections; ++i) {
    clients.push_back(Connect(targets.unix_socket));
    if (!targets.baseline_unix.empty()) before.push_back(Connect(targets.baseline_unix));
    results.emplace_back(squares.left.size());
  }
  std::atomic<int64_t> kernel_ns = 1;
  const auto multiply = [&](int i) {
    const auto caller = static_cast<size_t>(i);
    ProductOptions options;
    options.device = targets.device;
    options.into = std::as_writable_bytes(std::span(results[caller]));
    const MultiplyResult product =
        Value(clients[caller].Multiply(squares.a(), squares.b(), options));
    kernel_ns = product.timing().compute_ns;
  };
  std::vector<std::function<double()>> measures = {
      [&] { return RateOfCallers(multiply, targets.seconds); },
      [&] { return RateOfCallers([&](int i) { bare.Up(operands, i); }, targets.seconds); },
      [&] { return RateOfCallers([&](int i) { bare.Down(result, i); }, targets.seconds); }};
  if (!before.empty()) {
    measures.push_back([&] {
      const auto old = [&](int i) {
        SecondsOfMessages(before[static_cast<size_t>(i)], squares.a(), squares.b(), targets.device);
      };
      return RateOfCallers(old, targets.seconds);
    });
  }
  const std::vector<double> rates = InTurns(measures, targets.turns);
  const double kernel = 1e9 / static_cast<double>(kernel_ns.load());
  Row row = {.what = "4096^3 bf16 inline, 4 callers, unix",
             .unit = "products/s",
             .seen = rates[0],
             .measure = "slowest of bare up, bare down, kernel",
             .by = std::min({rates[1], rates[2], kernel}),
             .wanted = 0.8};
  if (!before.empty()) row.baseline = rates[3];
  Print(row);
}

}  // namespace

void MeasureLarge(const Targets& targets) {
  MeasureAllResident(targets);
  MeasureFewRows(targets, v1::ORDER_ROW_MAJOR);
  MeasureFewRows(targets, v1::ORDER_COLUMN_MAJOR);
  MeasureFourCallers(targets);
}

}  // namespace gemmd
