// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gemmd/v1/gemm.pb.h"
#include "kserve/v2/inference.pb.h"
#include "tests/data_plane/raw_calls.h"
#include "tests/data_plane/rows.h"

namespace gemmd {
namespace {

std::vector<float> RandomF32(int64_t count, uint32_t seed) {
  std::vector<float> values;
  for (const Bf16& value : RandomBf16(count, seed)) values.push_back(static_cast<float>(value));
  return values;
}

// The number that the command prints.
double SecondsFrom(const std::string& command) {
  FILE* const peer = popen(command.c_str(), "r");
  double seconds = 0;
  if (peer == nullptr || std::fscanf(peer, "%lf", &seconds) != 1) {
    Fail("got no time from: " + command);
  }
  pclose(peer);
  return seconds;
}

// The median of 20 calls, without the first five.
double SecondsOfCalls(const std::function<void()>& call) {
  std::vector<double> seconds;
  for (int i = 0; i < 20; ++i) seconds.push_back(SecondsOf(call));
  seconds.erase(seconds.begin(), seconds.begin() + 5);
  return Median(seconds);
}

}  // namespace

void MeasureWeights(const Targets& targets) {
  constexpr int64_t kRows = 8;
  constexpr int64_t kDepth = 384;
  constexpr int64_t kWords = 30522;
  const std::vector<float> rows = RandomF32(kRows * kDepth, 1);
  const std::vector<float> weights = RandomF32(kWords * kDepth, 2);
  Client client = Connect(targets.unix_socket);
  const ResidentTensor w = Value(client.Put(View(weights, kWords, kDepth)));
  std::vector<float> d(kRows * kWords);
  ProductOptions options;
  options.device = "cpu";
  options.into = std::as_writable_bytes(std::span(d));
  const auto multiply = [&] {
    Value(client.Multiply(View(rows, kRows, kDepth), w.Transposed(), options));
  };
  const std::vector<double> seconds = InTurns(
      {[&] { return SecondsOfCalls(multiply); }, [&] { return SecondsFrom(targets.numpy); }},
      targets.turns);
  Row row = {.what = "8 x 384 times a resident (30522 x 384)^T, f32 on the CPU, round trip",
             .unit = "ms",
             .seen = 1e3 * seconds[0],
             .measure = "NumPy in its own process",
             .by = 1e3 * seconds[1],
             .wanted = 1.3,
             .is_most = true};
  if (!targets.baseline_unix.empty()) {
    Client before = Connect(targets.baseline_unix);
    MatrixView view = View(weights, kWords, kDepth);
    view.transpose = true;
    ProductOptions plain;
    plain.device = "cpu";
    const v1::MultiplyRequest request = Value(BuildRequest(View(rows, kRows, kDepth), view, plain));
    row.baseline =
        1e3 * InTurns({[&] { return SecondsOf([&] { Value(before.Multiply(request)); }); }},
                      targets.turns)[0];
  }
  Print(row);
}

void MeasureCpu(const Targets& targets) {
  constexpr int64_t kSide = 2048;
  Client client = Connect(targets.unix_socket);
  const ResidentTensor a = Value(client.Put(View(RandomF32(kSide * kSide, 1), kSide, kSide)));
  const ResidentTensor b = Value(client.Put(View(RandomF32(kSide * kSide, 2), kSide, kSide)));
  ChainOptions chain;
  chain.product.device = "cpu";
  const ChainResult first = Value(client.Chain(a, b, chain));
  chain.into = first.tensor->view();
  const std::string library = targets.library + " " + first.response->kernel();
  const std::vector<double> seconds =
      InTurns({[&] { return SecondsOfCalls([&] { Value(client.Chain(a, b, chain)); }); },
               [&] { return SecondsFrom(library); }},
              targets.turns);
  const auto rate = [](double of) { return 2e-9 * kSide * kSide * kSide / of; };
  Print({.what = "2048^3 f32 on the CPU, all resident, round trip",
         .unit = "GFLOP/s",
         .seen = rate(seconds[0]),
         .measure = "the library in its own process",
         .by = rate(seconds[1]),
         .wanted = 0.97});
}

// Triton batches what waits; gemmd joins it. Both get the same messages.
void MeasureModel(const Targets& targets) {
  constexpr int kCallers = 32;
  constexpr int64_t kDepth = 384;
  constexpr int64_t kWords = 30522;
  const std::vector<float> row = RandomF32(kDepth, 1);
  const std::vector<float> weights = RandomF32(kWords * kDepth, 2);
  Client client = Connect(targets.tcp);
  MatrixView b = View(weights, kDepth, kWords);
  b.order = v1::ORDER_COLUMN_MAJOR;
  PutOptions options;
  options.name = "weights";
  const ResidentTensor tensor = Value(client.Put(b, options));
  inference::ModelInferRequest request;
  request.set_model_name(options.name);
  auto& input = *request.add_inputs();
  input.set_name("A");
  input.set_datatype("FP32");
  input.add_shape(1);
  input.add_shape(kDepth);
  request.add_raw_input_contents(row.data(), row.size() * sizeof(float));
  const std::string path = "/inference.GRPCInferenceService/ModelInfer";
  RawCalls ours({.address = targets.tcp,
                 .path = path,
                 .requests = {Serialized(request)},
                 .session = Value(client.OpenSession()).token},
                kCallers);
  RawCalls triton({.address = targets.triton, .path = path, .requests = {Serialized(request)}},
                  kCallers);
  const std::vector<double> rates =
      InTurns({[&] { return ours.UnaryRate(kCallers, targets.seconds); },
               [&] { return triton.UnaryRate(kCallers, targets.seconds); }},
              targets.turns);
  Print({.what = "1 x 384 times a resident 384 x 30522, f32 on the CPU, 32 callers, KServe",
         .unit = "products/s",
         .seen = rates[0],
         .measure = "Triton with dynamic batching",
         .by = rates[1],
         .wanted = 1.3});
}

}  // namespace gemmd
