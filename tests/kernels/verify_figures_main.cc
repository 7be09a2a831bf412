// SPDX-License-Identifier: Apache-2.0
//
// Prints what checks find of flipped bits, and what they refuse that is right. Exits with 1 where
// they are not what they must be: all flips of integers found, 99.9 % of those above rounding,
// samples as the formula says, and nothing right refused. server/README.md has a run's figures.
// usage: gemmd-verify-figures [FLIPS [CLEAN_PRODUCTS]]    100000 and 1000000 without them
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "kernels/cpu/host.h"
#include "tests/kernels/verify_figures.h"

namespace gemmd {
namespace {

struct Row {
  std::string_view kernel;
  ElementType d;
  bool is_sparse = false;
};

constexpr Row kRows[] = {
    {"mma.m16n8k32.s32.s8.s8.s32", ElementType::kS32},
    {"mma.m16n8k16.f32.f16.f16.f32", ElementType::kF32},
    {"mma.m16n8k16.f32.f16.f16.f32", ElementType::kF16},
    {"openblas.f32.f32.f32", ElementType::kF32},
    {"openblas.f64.f64.f64", ElementType::kF64},
    {"mma.sp.m16n8k32.f32.f16.f16.f32", ElementType::kF32, true},
};

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 1 : static_cast<double>(part) / static_cast<double>(whole);
}

bool PrintSums(int64_t flips, RandomSource& random) {
  bool is_good = true;
  for (const Row& row : kRows) {
    const FlippedShape shape = {.m = 64, .n = 96, .k = 128, .is_sparse = row.is_sparse};
    for (const FlipAt at : kAllFlips) {
      const FlipFigures figures =
          CountFoundBySums(KernelNamed(row.kernel), row.d, at, flips / 18, shape, random);
      const double above = Share(figures.above_found, figures.above);
      std::printf("%s D %s, flip in %s: %" PRId64
                  " flips, found %.4f %%, above 1 %% of the rms "
                  "%.4f %% of %" PRId64 ", above rounding %.4f %% of %" PRId64
                  ", smallest found %.3g (%.6g ulp)\n",
                  std::string(row.kernel).c_str(), std::string(NameOf(row.d)).c_str(),
                  std::string(NameOf(at)).c_str(), figures.flips,
                  100 * Share(figures.found, figures.flips),
                  100 * Share(figures.large_found, figures.large), figures.large, 100 * above,
                  figures.above, figures.least_found, figures.least_found_ulp);
      const bool is_exact = row.d == ElementType::kS32;
      if (!(above >= 0.999) || (is_exact && figures.found != figures.flips)) is_good = false;
    }
  }
  return is_good;
}

bool PrintSamples(int64_t flips, RandomSource& random) {
  bool is_good = true;
  for (const double rate : {1.0 / 1024, 1.0 / 64, 1.0 / 4}) {
    const SampleFigures figures =
        CountFoundBySample(KernelNamed("mma.m16n8k16.f32.f16.f16.f32"), flips / 3, rate, random);
    std::printf("sampled at %g: found %" PRId64 " of %" PRId64 ", predicted %.1f\n", rate,
                figures.found, figures.flips,
                figures.predicted * static_cast<double>(figures.flips));
    if (!IsAsPredicted(figures)) is_good = false;
  }
  return is_good;
}

int Main(int64_t flips, int64_t clean) {
  const OneThread one_thread;
  RandomSource random;
  bool is_good = PrintSums(flips, random);
  is_good = PrintSamples(flips, random) && is_good;
  for (const Operands operands : {Operands::kUsual, Operands::kChosen}) {
    const CleanFigures figures = CountRefused(clean, operands, random);
    std::printf("right products%s: %" PRId64 " (%" PRId64 " with a sparse A), refused %" PRId64
                ", rows computed again %" PRId64 ", checks without a verdict %" PRId64 "\n",
                operands == Operands::kChosen ? " of chosen operands" : "", figures.products,
                figures.sparse, figures.refused, figures.suspicions, figures.not_verified);
    if (figures.refused > 0) is_good = false;
  }
  return is_good ? 0 : 1;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) {
  const int64_t flips = argc > 1 ? std::atoll(argv[1]) : 100'000;
  const int64_t clean = argc > 2 ? std::atoll(argv[2]) : 1'000'000;
  return gemmd::Main(flips, clean);
}
