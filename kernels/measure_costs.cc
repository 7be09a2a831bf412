// SPDX-License-Identifier: Apache-2.0
#include "kernels/measure_costs.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/widen.h"
#include "kernels/epilogue.h"
#include "kernels/fastest_time.h"
#include "kernels/sparse24.h"

namespace gemmd {
namespace {

constexpr double kMostSeconds = 1e-3;  // For each of some hundred measurements.

// Two tiles of the epilogue.
constexpr int64_t kLines = 32;
constexpr int64_t kLength = 256;
constexpr int64_t kElements = kLines * kLength;

MatrixLayout Layout(ElementType type, int64_t rows, int64_t columns,
                    Order order = Order::kRowMajor) {
  return TightLayout("sample", type, order, rows, columns).value();
}

// Bytes that are a one of the type, or close to it.
std::vector<std::byte> Ones(ElementType type, int64_t elements) {
  const std::vector<float> values(static_cast<size_t>(elements), 1.0F);
  std::vector<std::byte> bytes(static_cast<size_t>(elements) * 8);
  EncodeLine(type, values.data(), elements, bytes.data());
  return bytes;
}

double WideningOf(ElementType from, ElementType to, int64_t lines, int64_t length) {
  const std::vector<std::byte> source = Ones(from, lines * length);
  std::vector<std::byte> copy(source.size());
  const MatrixLayout source_layout = Layout(from, lines, length);
  const MatrixLayout copy_layout = Layout(to, lines, length);
  const bool is_biased = from == ElementType::kU8 && to == ElementType::kS8;
  const Widening widening = is_biased ? Widening::kLess128 : Widening::kValue;
  return FastestSeconds(
      [&] { Widen(widening, source_layout, source.data(), copy_layout, copy.data()); },
      kMostSeconds);
}

double ExpansionOf(ElementType type) {
  constexpr int64_t kRows = 4;
  constexpr int64_t kColumns = 1024;
  const SparseLayout layout = SparseLayoutOf("sample", type, kRows, kColumns).value();
  const std::vector<std::byte> sparse(static_cast<size_t>(layout.bytes), std::byte{0x44});
  std::vector<std::byte> dense(static_cast<size_t>(layout.dense_bytes));
  return FastestSeconds([&] { Expand(layout, sparse.data(), dense.data()); }, kMostSeconds) /
         (kRows * kColumns);
}

// One epilogue, which the functions below vary.
struct Sample {
  Problem problem;
  Accumulators accumulators;
  std::vector<std::byte> accumulated;
  std::vector<std::byte> c;
  std::vector<std::byte> bias;
  std::vector<float> a_scale;
  std::vector<float> b_scale;

  explicit Sample(ElementType stored, ElementType type, int64_t m = kLines, int64_t n = kLength)
      : accumulated(Ones(stored, m * n)) {
    problem.m = m;
    problem.n = n;
    problem.k = 1;
    problem.d = Layout(type, m, n);
    problem.accumulation = type;
    accumulators.data = accumulated.data();
    accumulators.stored = stored;
    accumulators.leading_dimension = n;
    accumulators.type = type;
  }

  double Seconds() const {
    std::vector<std::byte> d(static_cast<size_t>(problem.m * problem.n) * 8);
    const GemmArgs args = {.problem = problem,
                           .target = {},
                           .a = nullptr,
                           .b = nullptr,
                           .c = c.data(),
                           .bias = bias.data(),
                           .a_scale = a_scale,
                           .b_scale = b_scale,
                           .d = d.data(),
                           .workspace = {}};
    return FastestSeconds([&] { ApplyEpilogue(args, 0, accumulators); }, kMostSeconds);
  }
};

// What a sample takes longer than another, for each element.
double Added(const Sample& sample, double seconds) {
  return std::max(0.0, sample.Seconds() - seconds) / kElements;
}

double MeasureC(ElementType type, ElementType c, Order order, double seconds) {
  Sample sample(type, type);
  sample.problem.beta = 0.5;
  sample.problem.c = Layout(c, kLines, kLength, order);
  sample.c = Ones(c, kLines * kLength);
  return Added(sample, seconds);
}

double MeasureScales(ElementType type, double seconds) {
  Sample sample(type, type);
  sample.problem.a_scale = sample.problem.b_scale = ScaleKind::kVector;
  sample.a_scale.assign(kLines, 1.0F);
  sample.b_scale.assign(kLength, 1.0F);
  return Added(sample, seconds);
}

double MeasureAlpha(ElementType type, double seconds) {
  Sample sample(type, type);
  sample.problem.alpha = 0.5;
  return Added(sample, seconds);
}

double MeasureBias(ElementType type, double seconds) {
  Sample sample(type, type);
  sample.problem.bias_axis = BiasAxis::kColumns;
  sample.problem.bias_type = type;
  sample.bias = Ones(type, kLength);
  return Added(sample, seconds);
}

double MeasureActivation(ElementType type, Activation activation, double seconds) {
  Sample sample(type, type);
  sample.problem.activation = activation;
  // Half of the numbers are so large that their activations are themselves or zero, which takes
  // less time.
  std::vector<float> values(kElements);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7 % 33) - 16;
  EncodeLine(type, values.data(), kElements, sample.accumulated.data());
  return Added(sample, seconds);
}

}  // namespace

CopyCosts MeasureCopies() {
  CopyCosts costs;
  constexpr int64_t kLong = 4096;
  constexpr int64_t kMany = 64;
  const double one = WideningOf(ElementType::kF16, ElementType::kF32, 1, 1);
  const double many = WideningOf(ElementType::kF16, ElementType::kF32, kMany, 1);
  costs.line = std::max(0.0, many - one) / (kMany - 1);
  costs.matrix = std::max(0.0, one - costs.line);
  const double biased = WideningOf(ElementType::kU8, ElementType::kS8, kMany, 1);
  costs.biased_line = std::max(0.0, biased - costs.matrix) / kMany;
  for (const ElementType from : kAllElementTypes) {
    for (const ElementType to : {ElementType::kF64, ElementType::kF32, ElementType::kBf16,
                                 ElementType::kS8, ElementType::kU8}) {
      const bool is_widened =
          BitsOf(from) <= BitsOf(to) && from != ElementType::kF64 && from != ElementType::kS32;
      if (!is_widened) continue;
      const double seconds = WideningOf(from, to, 1, kLong);
      costs.widen[static_cast<size_t>(from)][to] = std::max(0.0, seconds - one) / kLong;
    }
    if (SparseFormOf(from)) costs.expand[from] = ExpansionOf(from);
  }
  return costs;
}

EpilogueCosts MeasureEpilogue(ElementType type) {
  EpilogueCosts costs;
  const double one = Sample(type, type, 1, 1).Seconds();
  const double many = Sample(type, type, kLines, 1).Seconds();
  costs.line = std::max(0.0, many - one) / (kLines - 1);
  costs.matrix = std::max(0.0, one - costs.line);
  const double lines = costs.matrix + kLines * costs.line;
  // An encoding of D in the type itself is the least that is done; loads are what comes before it.
  Sample empty(type, type);
  empty.problem.k = 0;
  empty.accumulators.data = nullptr;
  const double zero = empty.Seconds();
  const double base = Sample(type, type).Seconds();
  costs.encode[type] = std::max(0.0, zero - lines) / kElements;
  costs.load[type] = std::max(0.0, base - zero) / kElements;
  for (const ElementType d : kAllElementTypes) {
    if (d == type) continue;
    empty.problem.d = Layout(d, kLines, kLength);
    costs.encode[d] = std::max(0.0, empty.Seconds() - lines) / kElements;
  }
  if (type == ElementType::kF64) {
    const double in_f64 = Sample(ElementType::kF64, ElementType::kS32).Seconds();
    const double in_s32 = Sample(ElementType::kS32, ElementType::kS32).Seconds();
    const double stored = lines + kElements * costs.encode[ElementType::kS32];
    costs.load[ElementType::kS32] = std::max(0.0, in_s32 - stored) / kElements;
    costs.load_integer_from_float = std::max(0.0, in_f64 - stored) / kElements;
  }
  costs.scale = MeasureScales(type, base);
  costs.alpha = MeasureAlpha(type, base);
  costs.bias = MeasureBias(type, base);
  costs.c = MeasureC(type, type, Order::kRowMajor, base);
  costs.c_across = MeasureC(type, type, Order::kColumnMajor, base);
  for (const ElementType c : {ElementType::kF16, ElementType::kBf16, ElementType::kE4m3,
                              ElementType::kS8, ElementType::kS4}) {
    costs.decode[c] = std::max(0.0, MeasureC(type, c, Order::kRowMajor, base) - costs.c);
  }
  for (const Activation activation :
       {Activation::kRelu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kSilu}) {
    costs.activation[static_cast<size_t>(activation)] = MeasureActivation(type, activation, base);
  }
  return costs;
}

double MeasureThreadStart() {
  constexpr int kTimes = 20;
  double shortest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::thread([] {}).join();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    shortest = std::min(shortest, elapsed.count());
  }
  return shortest;
}

// The C library reads as fast as memory gives, whatever this file is compiled for.
double MeasureMemoryBytesPerSecond() {
  constexpr size_t kBytes = size_t{24} << 20;
  const std::vector<std::byte> bytes(kBytes, std::byte{1});
  size_t found = 0;
  const double seconds = FastestSeconds(
      [&] { found += std::memchr(bytes.data(), 2, kBytes) != nullptr ? 1 : 0; }, 1e-2);
  return found == 0 ? static_cast<double>(kBytes) / seconds : 0;
}

double MeasureClearedBytesPerSecond() {
  constexpr size_t kBytes = size_t{4} << 20;
  size_t sum = 0;
  const double seconds = FastestSeconds(
      [&] { sum += std::string(kBytes, '\0').back() == '\0' ? 1 : 0; }, kMostSeconds);
  return sum > 0 ? static_cast<double>(kBytes) / seconds : 0;
}

}  // namespace gemmd
