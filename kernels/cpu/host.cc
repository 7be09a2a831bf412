// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <dnnl.hpp>
#include <fstream>

#include "kernels/cpu/engine.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

bool HasFeatures(dnnl_cpu_isa_t wanted) {
  return (static_cast<int>(dnnl_get_effective_cpu_isa()) & wanted) == wanted;
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
              "one with it, because oneDNN saturates 16-bit sums of 8-bit products elsewhere"));
}

void SetThreads(int threads) { omp_set_num_threads(std::max(1, threads)); }

Target HostTarget() {
  return {.kind = DeviceKind::kCpu,
          .has_avx512_vnni = HasFeatures(dnnl_cpu_isa_avx512_core_vnni),
          .has_avx512_core = HasFeatures(dnnl_cpu_isa_avx512_core)};
}

bool HasAmx() { return HasFeatures(dnnl_cpu_isa_avx512_core_amx); }

std::string ProcessorName() {
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

namespace {

// dnnl_sgemm on 2 threads against 1 was measured at 171 against 228 GFLOP/s at 64^3 (0.5e6
// operations) and 334 against 253 at 80^3 (1.0e6).
constexpr double kSharedOperations = 1e6;

// The overhead of an element of D, in multiplications and additions.
constexpr int64_t kMinDepth = 64;

}  // namespace

bool IsTooSmallToShare(const Problem& problem, int64_t matrices) {
  const double operations = 2 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                            static_cast<double>(std::max(problem.k, kMinDepth));
  return operations * static_cast<double>(matrices) < kSharedOperations;
}

int ThreadsOfLaunches() { return omp_get_max_threads(); }

double MeasureSharing(int threads) {
  constexpr int kTimes = 20;
  // Spinning threads may share a core during this measurement; in later use they have one each.
  double shortest = 2e-5;
  if (threads <= 1) return 0;
  for (int i = 0; i < kTimes; ++i) {
    int sum = 0;
    const auto start = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += omp_get_thread_num();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (sum >= 0) shortest = std::min(shortest, elapsed.count());
  }
  return shortest;
}

OneThread::OneThread() : restored_(omp_get_max_threads()) {
  if (restored_ > 1) omp_set_num_threads(1);
}

OneThread::~OneThread() {
  if (restored_ > 1) omp_set_num_threads(restored_);
}

}  // namespace gemmd
