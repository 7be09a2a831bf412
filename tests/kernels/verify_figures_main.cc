// SPDX-License-Identifier: Apache-2.0
//
// Prints what checks find of faults, and what they refuse that is right. Exits with 1 where they
// are not what they must be: all faults of integers found, 99.9 % of those above rounding by checks
// of the whole D, samples as the formula says, and nothing right refused. tests/kernels/reports
// has a run's figures.
// usage: gemmd-verify-figures [FAULTS [CLEAN_PRODUCTS]]    100000 and 1000000 without them
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/cpu/host.h"
#include "tests/kernels/verify_figures.h"

namespace gemmd {
namespace {

constexpr FaultyCase kCases[] = {
    {.kernel = "mma.m16n8k32.s32.s8.s8.s32", .d = ElementType::kS32},
    {.kernel = "mma.m16n8k32.s32.u8.s8.s32", .d = ElementType::kS32},
    {.kernel = "mma.m16n8k64.s32.s4.u4.s32", .d = ElementType::kS32, .k = 128},
    {.kernel = "mma.m16n8k256.s32.b1.b1.s32.and.popc", .d = ElementType::kS32, .k = 512},
    {.kernel = "mma.sp.m16n8k64.s32.s8.s8.s32", .d = ElementType::kS32, .is_sparse = true},
    {.kernel = "openblas.s32.s4.u4.via_f64", .d = ElementType::kS32},
    // Sums that may exceed 32 bits.
    {.kernel = "openblas.s32.u8.u8.via_f64", .d = ElementType::kS32, .m = 16, .n = 16, .k = 33'056},
    {.kernel = "mma.m16n8k32.s32.s8.s8.s32", .d = ElementType::kS8, .has_epilogue = true},
    {.kernel = "mma.m16n8k32.s32.u8.u8.s32",
     .d = ElementType::kU8,
     .has_epilogue = true,
     .activation = Activation::kRelu},
    {.kernel = "mma.m16n8k16.f32.f16.f16.f32", .d = ElementType::kF32},
    {.kernel = "mma.m16n8k16.f32.f16.f16.f32", .d = ElementType::kF16},
    {.kernel = "mma.m16n8k16.f32.f16.f16.f32", .d = ElementType::kF32, .has_epilogue = true},
    {.kernel = "mma.m16n8k16.f32.f16.f16.f32",
     .d = ElementType::kF16,
     .has_epilogue = true,
     .activation = Activation::kGeluTanh},
    {.kernel = "mma.m16n8k16.f32.bf16.bf16.f32", .d = ElementType::kBf16},
    {.kernel = "mma.m16n8k8.f32.tf32.tf32.f32", .d = ElementType::kF32},
    {.kernel = "mma.m16n8k16.f64", .d = ElementType::kF64},
    {.kernel = "mma.m16n8k32.f32.e4m3.e4m3.f32", .d = ElementType::kF32},
    {.kernel = "mma.m16n8k32.f32.e4m3.e4m3.f32",
     .d = ElementType::kE4m3,
     .has_epilogue = true,
     .activation = Activation::kRelu},
    {.kernel = "mma.m16n8k32.f32.e5m2.e5m2.f32", .d = ElementType::kE5m2},
    {.kernel = "mma.m16n8k32.kind::f8f6f4.f32.e3m2.e2m3.f32", .d = ElementType::kF32},
    {.kernel = "mma.m16n8k32.kind::f8f6f4.f32.e2m1.e2m1.f32", .d = ElementType::kF32},
    {.kernel = "mma.sp.m16n8k32.f32.f16.f16.f32", .d = ElementType::kF32, .is_sparse = true},
    {.kernel = "wgmma.m64n16k16.f32.bf16.bf16", .d = ElementType::kF32, .m = 80},
    {.kernel = "wmma.m16n16k16.row.col.f32.f16.f16.f32", .d = ElementType::kF32},
    {.kernel = "openblas.f32.f32.f32", .d = ElementType::kF32},
    {.kernel = "openblas.f32.f32.f32", .d = ElementType::kF32, .is_sparse = true},
    {.kernel = "openblas.f32.f32.f32",
     .d = ElementType::kF32,
     .has_epilogue = true,
     .activation = Activation::kSilu},
    {.kernel = "openblas.f32.f32.f32", .d = ElementType::kE4m3},
    {.kernel = "openblas.f64.f64.f64", .d = ElementType::kF64},
    {.kernel = "onednn.f32.bf16.bf16.via_f32", .d = ElementType::kBf16},
};

double Percent(int64_t part, int64_t whole) {
  return whole == 0 ? 100 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

bool FindsAll(const Found& found) { return found.found == found.faults; }

bool FindsEnough(const Found& found) { return Percent(found.above_found, found.above) >= 99.9; }

void Add(const Found& more, Found& to) {
  to.faults += more.faults;
  to.found += more.found;
  to.above += more.above;
  to.above_found += more.above_found;
}

void Add(const FaultFigures& more, FaultFigures& to) {
  Add(more.sums, to.sums);
  Add(more.whole, to.whole);
  Add(more.part, to.part);
}

std::string Shares(const Found& found) {
  if (found.faults == 0) return "-, -";
  char text[96];
  std::snprintf(text, sizeof(text), "%.2f %% of %" PRId64 ", %.3f %% of %" PRId64,
                Percent(found.found, found.faults), found.faults,
                Percent(found.above_found, found.above), found.above);
  return text;
}

void Print(const char* name, const FaultFigures& figures) {
  std::printf("%s: sampled:1 %s; sampled:1/64 %.2f %%; checksum %s\n", name,
              Shares(figures.whole).c_str(), Percent(figures.part.found, figures.part.faults),
              Shares(figures.sums).c_str());
}

std::string Describe(const FaultyCase& of) {
  std::string text(of.kernel);
  text += " D ";
  text += NameOf(of.d);
  if (of.is_sparse) text += ", A 2:4";
  if (of.has_epilogue) text += ", alpha, C, bias";
  if (of.activation != Activation::kNone) text += ", activation";
  if (of.k > 10'000) text += ", long k";
  return text;
}

bool PrintFaults(int64_t faults, RandomSource& random) {
  std::printf("Each line: the share found of faults that change D, and of those above rounding.\n");
  const auto cells = static_cast<int64_t>(std::size(kCases) * (std::size(kAllFaults) * 3 - 1));
  const int64_t faults_of_cell = (faults + cells - 1) / cells;
  bool is_good = true;
  FaultFigures total;
  std::array<FaultFigures, std::size(kAllFaults)> of_kind;
  std::array<FaultFigures, std::size(kAllFaults)> floats;
  for (const FaultyCase& of : kCases) {
    FaultFigures of_case;
    for (const FaultKind kind : kAllFaults) {
      for (const FaultAt at : kAllPlaces) {
        if (!IsPossible(at, kind)) continue;
        const FaultFigures figures = CountFound(of, at, kind, faults_of_cell, random);
        const std::string name =
            Describe(of) + ", " + std::string(NameOf(kind)) + " in " + std::string(NameOf(at));
        Print(name.c_str(), figures);
        if (figures.sums.found > 0) {
          std::printf("    smallest change that checksum found: %.3g (%.6g ulp)\n",
                      figures.least_found, figures.least_found_ulp);
        }
        const bool is_integer = IsInteger(of.d);
        const bool has_missed = is_integer
                                    ? !FindsAll(figures.whole) || !FindsAll(figures.sums)
                                    : !FindsEnough(figures.whole) || !FindsEnough(figures.sums);
        if (has_missed) std::printf("    MISSED\n");
        if (has_missed && is_integer) is_good = false;
        if (!is_integer) Add(figures, floats[static_cast<size_t>(kind)]);
        Add(figures, of_case);
        Add(figures, of_kind[static_cast<size_t>(kind)]);
        Add(figures, total);
      }
    }
    Print((Describe(of) + ", all faults").c_str(), of_case);
    std::fflush(stdout);
  }
  for (const FaultKind kind : kAllFaults) {
    Print(("all products, " + std::string(NameOf(kind))).c_str(),
          of_kind[static_cast<size_t>(kind)]);
    const FaultFigures& figures = floats[static_cast<size_t>(kind)];
    Print(("floats, " + std::string(NameOf(kind))).c_str(), figures);
    if (!FindsEnough(figures.whole) || !FindsEnough(figures.sums)) is_good = false;
  }
  Print("all products, all faults", total);
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

int Main(int64_t faults, int64_t clean) {
  const OneThread one_thread;
  RandomSource random;
  bool is_good = true;
  if (faults > 0) {
    is_good = PrintFaults(faults, random);
    is_good = PrintSamples(faults, random) && is_good;
  }
  for (const Operands operands : {Operands::kUsual, Operands::kChosen}) {
    const CleanFigures figures = CountRefused(clean / 2, operands, random);
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
  const int64_t faults = argc > 1 ? std::atoll(argv[1]) : 100'000;
  const int64_t clean = argc > 2 ? std::atoll(argv[2]) : 1'000'000;
  return gemmd::Main(faults, clean);
}
