// SPDX-License-Identifier: Apache-2.0
//
// What it costs that libraries are called panel by panel, so that their products can be aborted:
// the time of a cube in panels over that of one call, in turns in one process, for each engine.
// Beside it the same of the processor's time, which on a busy machine tells what the clock cannot.
// With --most, an engine whose median of the ratios in turns is above MOST is measured again, up to
// five times in all; where it never is at most that, the exit status is 1.
// usage: gemmd-panels-overhead [--most=MOST] [EXTENT [TURNS [THREADS]]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/panels.h"
#include "kernels/matrix/element.h"

namespace gemmd {
namespace {

std::vector<std::byte> Ones(ElementType type, int64_t count) {
  const std::vector<float> values(static_cast<size_t>(count), 1);
  std::vector<std::byte> bytes(static_cast<size_t>(count * BitsOf(type) / 8));
  EncodeLine(type, values.data(), count, bytes.data());
  return bytes;
}

double ProcessorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Cost {
  double seconds;
  double processor_seconds;
};

Cost CostOf(const Engine& engine, const PlainProduct& product, const PanelShape& panel) {
  const absl::Time start = absl::Now();
  const double processor_start = ProcessorSeconds();
  if (!MultiplyInPanels(engine, product, panel, nullptr).ok()) std::abort();
  return {absl::ToDoubleSeconds(absl::Now() - start), ProcessorSeconds() - processor_start};
}

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The median of the ratios in turns.
double Measure(const Engine& engine, int64_t extent, int turns, int threads) {
  const std::vector<std::byte> x = Ones(engine.operand, extent * extent);
  std::vector<std::byte> d(static_cast<size_t>(extent * extent * BitsOf(engine.accumulator) / 8));
  PlainProduct product;
  product.m = product.n = product.k = product.leading_dimension = extent;
  product.x = {.data = x.data(), .type = engine.operand, .leading_dimension = extent};
  product.y = product.x;
  product.d = d.data();
  const PanelShape whole = {extent, extent, extent};
  const PanelShape panel = PanelOf(engine, product, threads);
  CostOf(engine, product, whole);
  std::vector<double> of_whole;
  std::vector<double> of_panels;
  std::vector<double> ratios;
  std::vector<double> processor_ratios;
  for (int turn = 0; turn < turns; ++turn) {
    const Cost one = CostOf(engine, product, whole);
    const Cost many = CostOf(engine, product, panel);
    of_whole.push_back(one.seconds);
    of_panels.push_back(many.seconds);
    ratios.push_back(many.seconds / one.seconds);
    processor_ratios.push_back(many.processor_seconds / one.processor_seconds);
  }
  std::printf("%-14s %5ldx%ldx%ld  %8.2f ms  %8.2f ms  %.3f  %.3f  %.3f\n",
              std::string(engine.name).c_str(), static_cast<long>(panel.m),
              static_cast<long>(panel.n), static_cast<long>(panel.k), MedianOf(of_whole) * 1e3,
              MedianOf(of_panels) * 1e3, MedianOf(ratios),
              *std::min_element(of_panels.begin(), of_panels.end()) /
                  *std::min_element(of_whole.begin(), of_whole.end()),
              MedianOf(processor_ratios));
  return MedianOf(ratios);
}

// Whether the best of a few rounds is at most the bound: other work on the machine takes caches and
// processors from either, but not each time.
bool Holds(const Engine& engine, int64_t extent, int turns, int threads, double most) {
  constexpr int kRounds = 5;
  if (!engine.available(HostTarget()).ok()) return true;
  for (int round = 0; round < kRounds; ++round) {
    if (Measure(engine, extent, turns, threads) <= most) return true;
  }
  return false;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) {
  constexpr std::string_view kMax = "--most=";
  double most = std::numeric_limits<double>::infinity();
  if (argc > 1 && std::string_view(argv[1]).substr(0, kMax.size()) == kMax) {
    most = std::atof(argv[1] + kMax.size());  // NOLINT(cert-err34-c)
    --argc;
    ++argv;
  }
  const long extent = argc > 1 ? std::atol(argv[1]) : 2048;  // NOLINT(cert-err34-c)
  const int turns = argc > 2 ? std::atoi(argv[2]) : 21;      // NOLINT(cert-err34-c)
  const int threads = argc > 3 ? std::atoi(argv[3]) : 2;     // NOLINT(cert-err34-c)
  if (!(most > 0) || extent < 1 || turns < 1 || threads < 1) {
    std::fprintf(stderr, "usage: gemmd-panels-overhead [--most=MOST] [EXTENT [TURNS [THREADS]]]\n");
    return 2;
  }
  gemmd::SetThreads(threads);
  std::printf(
      "engine         panel                 one call      panels  median  fastest  processor\n");
  bool holds = true;
  for (const gemmd::Engine* engine : {&gemmd::kOneDnnF32, &gemmd::kOneDnnBf16, &gemmd::kOneDnnS8,
                                      &gemmd::kOpenBlasF32, &gemmd::kOpenBlasF64}) {
    holds = gemmd::Holds(*engine, extent, turns, threads, most) && holds;
  }
  return holds ? 0 : 1;
}
