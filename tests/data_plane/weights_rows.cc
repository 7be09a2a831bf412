// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <span>

#include "gemmd/v1/gemm.pb.h"
#include "tests/data_plane/rows.h"

namespace gemmd {
namespace {

constexpr int64_t kRows = 8;
constexpr int64_t kDepth = 384;
constexpr int64_t kWords = 30522;

std::vector<float> RandomF32(int64_t count, uint32_t seed) {
  std::vector<float> values;
  for (const Bf16& value : RandomBf16(count, seed)) values.push_back(static_cast<float>(value));
  return values;
}

}  // namespace

void MeasureWeights(const Targets& targets) {
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
  const auto numpy = [&] {
    FILE* const peer = popen(targets.numpy.c_str(), "r");
    double seconds = 0;
    if (peer == nullptr || std::fscanf(peer, "%lf", &seconds) != 1) Fail("NumPy: got no time");
    pclose(peer);
    return seconds;
  };
  const auto ours = [&] {
    std::vector<double> seconds;
    for (int i = 0; i < 20; ++i) seconds.push_back(SecondsOf(multiply));
    seconds.erase(seconds.begin(), seconds.begin() + 5);
    return Median(seconds);
  };
  const std::vector<double> seconds = InTurns({ours, numpy}, targets.turns);
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

}  // namespace gemmd
