// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host_rates.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "kernels/catalog.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/widen.h"

namespace gemmd {
namespace {

// The shortest time of several runs. They end when the two shortest agree, which shows that nothing
// else had the core during them, or when the time is up.
template <typename Function>
double FastestSeconds(const Function& function) {
  constexpr double kAgreement = 1.05;
  constexpr double kMostSeconds = 0.1;
  double fastest = std::numeric_limits<double>::infinity();
  double second = fastest;
  for (double total = 0; total < kMostSeconds;) {
    const auto start = std::chrono::steady_clock::now();
    function();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const double seconds = std::max(elapsed.count(), 1e-9);
    total += seconds;
    second = std::min(second, std::max(seconds, fastest));
    fastest = std::min(fastest, seconds);
    if (std::isfinite(second) && second <= fastest * kAgreement) break;
  }
  return fastest;
}

// Small numbers of the type, neither zeros nor subnormals, which may be faster or slower to
// multiply.
std::vector<std::byte> SampleMatrix(const MatrixLayout& layout) {
  std::minstd_rand random(1);
  std::uniform_int_distribution<int> value(1, 7);
  std::vector<float> values(static_cast<size_t>(layout.rows * layout.columns));
  for (float& v : values) v = static_cast<float>(value(random));
  std::vector<std::byte> bytes(static_cast<size_t>(layout.batch_stride_bytes));
  EncodeLine(layout.type, values.data(), layout.rows * layout.columns, bytes.data());
  return bytes;
}

// 0 if the kernel cannot be measured.
double OperationsPerSecond(const Kernel& kernel, const Target& target) {
  const absl::StatusOr<Problem> sample = kernel.sample(target);
  if (!sample.ok()) return 0;
  const Problem& problem = *sample;
  const absl::StatusOr<int64_t> workspace_bytes = kernel.workspace_bytes(problem);
  if (!kernel.supports(problem).ok() || !workspace_bytes.ok()) return 0;
  std::vector<std::byte> workspace(static_cast<size_t>(*workspace_bytes));
  const std::vector<std::byte> a = SampleMatrix(problem.a);
  const std::vector<std::byte> b = SampleMatrix(problem.b);
  std::vector<std::byte> d(static_cast<size_t>(problem.d.batch_stride_bytes));
  const GemmArgs args = {.problem = problem,
                         .target = target,
                         .a = a.data(),
                         .b = b.data(),
                         .c = nullptr,
                         .bias = nullptr,
                         .a_scale = {},
                         .b_scale = {},
                         .d = d.data(),
                         .workspace = absl::MakeSpan(workspace)};
  if (!kernel.launch(args).ok()) return 0;  // The first launch also warms caches and threads.
  const double seconds = FastestSeconds([&] { kernel.launch(args).IgnoreError(); });
  return static_cast<double>(Operations(problem)) / seconds;
}

MatrixLayout Square(ElementType type, int64_t extent) {
  return TightLayout("sample", type, Order::kRowMajor, extent, extent).value();
}

double ConvertedElementsPerSecond() {
  constexpr int64_t kExtent = 384;
  const MatrixLayout from = Square(ElementType::kE4m3, kExtent);
  const MatrixLayout to = Square(ElementType::kF32, kExtent);
  const std::vector<std::byte> source = SampleMatrix(from);
  std::vector<std::byte> copy(static_cast<size_t>(to.batch_stride_bytes));
  const auto convert = [&] { Widen(Widening::kValue, from, source.data(), to, copy.data()); };
  convert();
  return static_cast<double>(kExtent * kExtent) / FastestSeconds(convert);
}

// Whether a row gives its engine the operands in place, so that the engine alone is measured.
bool MeasuresEngine(const Kernel& kernel) {
  return kernel.a == kernel.recipe.a_compute && kernel.b == kernel.recipe.b_compute &&
         kernel.b != ElementType::kU8;
}

}  // namespace

DeviceProfile MeasureRates(const Target& target) {
  // Rates are measured on one thread and multiplied by the threads. Several threads that share a
  // core for a while, as on a busy machine, wait for each other by spinning; that was seen to make
  // a rate 40 times too low for all of the daemon's life.
  const int threads = omp_get_max_threads();
  SetThreads(1);
  DeviceProfile profile;
  profile.target = target;
  for (const Kernel& kernel : Catalog(target.kind)) {
    const bool is_known =
        std::any_of(profile.rates.begin(), profile.rates.end(),
                    [&](const EngineRate& rate) { return rate.engine == kernel.engine; });
    if (is_known || !MeasuresEngine(kernel) || !kernel.available(target).ok()) continue;
    const double rate = OperationsPerSecond(kernel, target);
    if (rate > 0) profile.rates.push_back({std::string(kernel.engine), threads * rate});
  }
  profile.converted_elements_per_second = threads * ConvertedElementsPerSecond();
  SetThreads(threads);
  return profile;
}

}  // namespace gemmd
