// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <fstream>

#include "kernels/cpu/engine.h"
#include "kernels/text.h"

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
              "one with it, since oneDNN saturates 16-bit sums of 8-bit products elsewhere"));
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

}  // namespace gemmd
