// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <dnnl.hpp>
#include <fstream>
#include <limits>
#include <random>

#include "kernels/cpu/engine.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/widen.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr int64_t kExtent = 384;

bool HasFeatures(dnnl_cpu_isa_t wanted) {
  return (static_cast<int>(dnnl_get_effective_cpu_isa()) & wanted) == wanted;
}

// The shortest of several runs: until the two shortest agree, which shows that nothing else had the
// core during them, or the time is up.
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

MatrixLayout Square(ElementType type) {
  return TightLayout("sample", type, Order::kRowMajor, kExtent, kExtent).value();
}

Problem SampleProblem(const Kernel& kernel) {
  Problem problem;
  problem.m = problem.n = problem.k = kExtent;
  problem.a = Square(kernel.a);
  problem.b = Square(kernel.b);
  problem.d = Square(kernel.recipe.accumulation);
  problem.accumulation = kernel.recipe.accumulation;
  return problem;
}

double OperationsPerSecond(const Kernel& kernel) {
  const Problem problem = SampleProblem(kernel);
  const std::vector<std::byte> a = SampleMatrix(problem.a);
  const std::vector<std::byte> b = SampleMatrix(problem.b);
  std::vector<std::byte> d(static_cast<size_t>(problem.d.batch_stride_bytes));
  const GemmArgs args = {.problem = problem,
                         .a = a.data(),
                         .b = b.data(),
                         .c = nullptr,
                         .bias = nullptr,
                         .a_scale = {},
                         .b_scale = {},
                         .d = d.data(),
                         .workspace = {}};
  if (!kernel.launch(args).ok()) return 0;  // The first one also warms caches and threads.
  const double seconds = FastestSeconds([&] { kernel.launch(args).IgnoreError(); });
  return static_cast<double>(Operations(problem)) / seconds;
}

double ConvertedElementsPerSecond() {
  const MatrixLayout from = Square(ElementType::kE4m3);
  const MatrixLayout to = Square(ElementType::kF32);
  const std::vector<std::byte> source = SampleMatrix(from);
  std::vector<std::byte> copy(static_cast<size_t>(to.batch_stride_bytes));
  const auto convert = [&] { Widen(Widening::kValue, from, source.data(), to, copy.data()); };
  convert();
  return static_cast<double>(kExtent * kExtent) / FastestSeconds(convert);
}

// A row that gives its engine the operands in place, so that the engine alone is measured.
bool MeasuresEngine(const Kernel& kernel) {
  return kernel.a == kernel.recipe.a_compute && kernel.b == kernel.recipe.b_compute &&
         kernel.b != ElementType::kU8;
}

}  // namespace

absl::Status AvailableEverywhere(const Target&) { return absl::OkStatus(); }

absl::Status AvailableWithAvx512(const Target& target) {
  if (target.has_avx512_core) return absl::OkStatus();
  return absl::FailedPreconditionError(
      GotWant("device", "a processor without AVX-512 (F, BW, DQ, VL)", "one with it for bf16"));
}

absl::Status AvailableWithVnni(const Target& target) {
  if (target.has_avx512_vnni) return absl::OkStatus();
  return absl::FailedPreconditionError(
      GotWant("device", "a processor without AVX-512 VNNI",
              "one with it, since oneDNN saturates 16-bit sums of 8-bit products elsewhere"));
}

void SetThreads(int threads) { omp_set_num_threads(std::max(1, threads)); }

Target HostTarget() {
  return {.kind = DeviceKind::kCpu,
          .has_avx512_vnni = HasFeatures(dnnl_cpu_isa_avx512_core_vnni),
          .has_avx512_core = HasFeatures(dnnl_cpu_isa_avx512_core)};
}

std::string HostName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t value = line.find(": ");
    if (line.starts_with("model name") && value != std::string::npos) return line.substr(value + 2);
  }
  return "unknown processor";
}

std::vector<LibraryVersion> CpuLibraries() {
  const dnnl_version_t* dnnl = dnnl_version();
  // "OpenBLAS 0.3.21 DYNAMIC_ARCH ...": the second word.
  const std::string openblas = openblas_get_config();
  const size_t space = openblas.find(' ');
  const std::string version =
      space == std::string::npos
          ? openblas
          : openblas.substr(space + 1, openblas.find(' ', space + 1) - space - 1);
  return {{"oneDNN", Concat(dnnl->major, ".", dnnl->minor, ".", dnnl->patch)},
          {"OpenBLAS", version}};
}

DeviceProfile MeasureHost() {
  // On one thread, times the threads: several that share a core for a while, as on a busy machine,
  // wait for each other by spinning, which was seen to make a rate 40 times too low for all of the
  // daemon's life.
  const int threads = omp_get_max_threads();
  SetThreads(1);
  DeviceProfile profile;
  profile.target = HostTarget();
  for (const Kernel& kernel : CpuKernels()) {
    const bool is_known =
        std::any_of(profile.rates.begin(), profile.rates.end(),
                    [&](const EngineRate& rate) { return rate.engine == kernel.engine; });
    if (is_known || !MeasuresEngine(kernel) || !kernel.available(profile.target).ok()) continue;
    profile.rates.push_back({std::string(kernel.engine), threads * OperationsPerSecond(kernel)});
  }
  profile.converted_elements_per_second = threads * ConvertedElementsPerSecond();
  SetThreads(threads);
  return profile;
}

}  // namespace gemmd
