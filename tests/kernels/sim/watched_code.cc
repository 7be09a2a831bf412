// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/sim/watched_code.h"

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "kernels/sim/vector_product.h"

namespace gemmd {
namespace {

const sim::VectorCode* watched_code = nullptr;

std::set<std::string> ReadFeatures() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> features;
    for (std::string word; words >> word;) features.insert(word);
    return features;
  }
  return {};
}

}  // namespace

namespace sim {

// The symbols of MultiplyVectors as the linker renames them.
#define GEMMD_MULTIPLY_VECTORS \
  "_ZN5gemmd3sim15MultiplyVectorsERKNS0_10VectorCodeERKNS0_9Product2DERKNS0_17AccumulatorMatrixE"
void RealMultiplyVectors(
    const VectorCode& code, const Product2D& product,
    const AccumulatorMatrix& accumulators) asm("__real_" GEMMD_MULTIPLY_VECTORS);
void WatchedMultiplyVectors(
    const VectorCode& code, const Product2D& product,
    const AccumulatorMatrix& accumulators) asm("__wrap_" GEMMD_MULTIPLY_VECTORS);

void WatchedMultiplyVectors(const VectorCode& code, const Product2D& product,
                            const AccumulatorMatrix& accumulators) {
  watched_code = &code;
  RealMultiplyVectors(code, product, accumulators);
}

}  // namespace sim

const sim::VectorCode* TakeWatchedCode() { return std::exchange(watched_code, nullptr); }

bool ProcessorHas(std::string_view feature) {
  static const std::set<std::string> features = ReadFeatures();
  return features.count(std::string(feature)) > 0;
}

const sim::VectorCode* WantedCode(const mma::Instruction& instruction) {
  if (instruction.scales > 0) return nullptr;  // Only the plain code applies factors.
  if (!ProcessorHas("avx2") || !ProcessorHas("fma") || !ProcessorHas("popcnt")) return nullptr;
  const bool has_avx512 =
      ProcessorHas("avx512f") && ProcessorHas("avx512bw") && ProcessorHas("avx512dq");
  return has_avx512 ? sim::Avx512Code() : sim::Avx2Code();
}

}  // namespace gemmd
