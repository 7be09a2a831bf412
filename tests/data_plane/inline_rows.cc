// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <iostream>
#include <memory>
#include <span>
#include <string>

#include "gemmd/v1/gemm.pb.h"
#include "tests/data_plane/bare_grpc.h"
#include "tests/data_plane/rows.h"

namespace gemmd {
namespace {

constexpr int64_t kBytes = int64_t{64} << 20;

// Products that move 64 MiB: of 16 x 2^20 and 2^20 x 1 numbers, or of 4096 x 1 and 1 x 4096.
class Products {
 public:
  // Calls through protobuf messages, as older clients did, or through views.
  Products(const std::string& address, const std::string& device, bool as_messages)
      : client_(Connect(address)), device_(device), as_messages_(as_messages) {}

  void Up() { Multiply(kFew, kDepth, 1); }
  void Down() { Multiply(kWide, 1, kWide); }

  static constexpr double kUpBytes = static_cast<double>(kBytes) * (1 + 1.0 / 16);

 private:
  static constexpr int64_t kFew = 16;
  static constexpr int64_t kDepth = kBytes / 4 / kFew;
  static constexpr int64_t kWide = 4096;

  static MatrixView Zeros(int64_t rows, int64_t columns) {
    static const auto& zeros = *new std::vector<std::byte>(static_cast<size_t>(kBytes));
    return PackedView(v1::ELEMENT_TYPE_F32,
                      std::span(zeros).first(static_cast<size_t>(4 * rows * columns)), rows,
                      columns);
  }

  void Multiply(int64_t m, int64_t k, int64_t n) {
    ProductOptions options;
    options.device = device_;
    if (as_messages_) {
      Value(client_.Multiply(Value(BuildRequest(Zeros(m, k), Zeros(k, n), options))));
      return;
    }
    d_.resize(static_cast<size_t>(4 * m * n));
    options.into = d_;
    Value(client_.Multiply(Zeros(m, k), Zeros(k, n), options));
  }

  Client client_;
  const std::string device_;
  const bool as_messages_;
  std::vector<std::byte> d_;
};

}  // namespace

void AnswerInline(const Targets& targets) {
  Products products(targets.tcp, "cpu", /*as_messages=*/false);
  products.Up();
  products.Down();
  for (std::string line; std::getline(std::cin, line);) {
    if (line != "up" && line != "down") Fail("call: got " + line + ", want up or down");
    const double seconds = SecondsOf([&] { line == "up" ? products.Up() : products.Down(); });
    // Page faults are not counted here.
    std::printf("%.9f 0\n", seconds);
    std::fflush(stdout);
  }
}

void MeasureInline(const Targets& targets) {
  BareGrpc bare(targets.tcp);
  // In f32, for which every device named cpu has a kernel.
  Products now(targets.tcp, "cpu", /*as_messages=*/false);
  std::unique_ptr<Products> before;
  if (!targets.baseline_tcp.empty()) {
    before = std::make_unique<Products>(targets.baseline_tcp, "cpu", /*as_messages=*/true);
  }
  for (const bool is_up : {true, false}) {
    const double seconds = targets.seconds / 2;
    std::vector<std::function<double()>> measures = {
        [&] { return RateOf([&] { is_up ? bare.Up(kBytes) : bare.Down(kBytes); }, seconds); },
        [&] { return RateOf([&] { is_up ? now.Up() : now.Down(); }, seconds); }};
    if (before != nullptr) {
      measures.push_back(
          [&] { return RateOf([&] { is_up ? before->Up() : before->Down(); }, seconds); });
    }
    const std::vector<double> rates = InTurns(measures, targets.turns);
    const double bytes = 1e-9 * (is_up ? Products::kUpBytes : static_cast<double>(kBytes));
    Row row = {.what = is_up ? "inline, 68 MiB up, TCP" : "inline, 64 MiB down, TCP",
               .unit = "GB/s",
               .seen = bytes * rates[1],
               .measure = is_up ? "bare gRPC, one copy" : "bare gRPC",
               .by = 1e-9 * static_cast<double>(kBytes) * rates[0],
               .wanted = 0.8};
    if (before != nullptr) row.baseline = bytes * rates[2];
    Print(row);
    if (!row.baseline) continue;
    row.measure = "baseline";
    row.by = *row.baseline;
    row.wanted = 2.5;
    Print(row);
  }
}

}  // namespace gemmd
