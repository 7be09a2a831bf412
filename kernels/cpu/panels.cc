// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/panels.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

constexpr double kMaxSeconds = 0.02;

// Memory bandwidth of a processor, even if others use the memory.
constexpr double kBytesPerSecond = 2.5e9;
constexpr int64_t kCacheLine = 64;

// No extent is halved below this; a product of three such extents takes a few milliseconds on one
// thread. OpenBLAS and oneDNN work in blocks of k of 192 to 384 elements.
constexpr int64_t kMinExtent = 256;
constexpr int64_t kGranule = 64;  // Extents of panels are multiples of it: whole tiles and lines.

// The bytes that `lines` lines read from memory. A short line of a large matrix still reads a cache
// line.
double BytesOfLines(double lines, double length, ElementType type) {
  return lines * std::max<double>(kCacheLine, length * BitsOf(type) / 8);
}

double BytesOf(const Factor& factor, int64_t rows, int64_t columns) {
  const auto down = static_cast<double>(rows);
  const auto along = static_cast<double>(columns);
  return factor.transposed ? BytesOfLines(along, down, factor.type)
                           : BytesOfLines(down, along, factor.type);
}

double SecondsOf(const Engine& engine, const PlainProduct& product, const PanelShape& panel,
                 int threads) {
  const double operations = 2.0 * static_cast<double>(panel.m) * static_cast<double>(panel.n) *
                            static_cast<double>(panel.k);
  const double bytes =
      BytesOf(product.x, panel.m, panel.k) + BytesOf(product.y, panel.k, panel.n) +
      BytesOfLines(static_cast<double>(panel.m), static_cast<double>(panel.n), engine.accumulator);
  return std::max(operations / (PanelRate(engine) * threads), bytes / kBytesPerSecond);
}

// The part of a factor that begins at an element.
Factor PartOf(const Factor& factor, int64_t row, int64_t column) {
  const int64_t elements = factor.transposed ? column * factor.leading_dimension + row
                                             : row * factor.leading_dimension + column;
  Factor part = factor;
  part.data += elements * (BitsOf(factor.type) / 8);
  return part;
}

PlainProduct PartOf(const Engine& engine, const PlainProduct& product, const PanelShape& panel,
                    int64_t row, int64_t column, int64_t k) {
  PlainProduct part = product;
  part.m = std::min(panel.m, product.m - row);
  part.n = std::min(panel.n, product.n - column);
  part.k = std::min(panel.k, product.k - k);
  part.x = PartOf(product.x, row, k);
  part.y = PartOf(product.y, k, column);
  part.d += (row * product.leading_dimension + column) * (BitsOf(engine.accumulator) / 8);
  part.adds_to_d = product.adds_to_d || k > 0;
  return part;
}

}  // namespace

double PanelRate(const Engine& engine) {
  return HasAmx() ? engine.panel_rate_gain_of_amx * engine.panel_rate : engine.panel_rate;
}

PanelShape PanelOf(const Engine& engine, const PlainProduct& product, int threads) {
  PanelShape panel = {product.m, product.n, product.k};
  const std::array<int64_t*, 3> order = engine.prefers_panels_along_k
                                            ? std::array<int64_t*, 3>{&panel.k, &panel.m, &panel.n}
                                            : std::array<int64_t*, 3>{&panel.m, &panel.k, &panel.n};
  for (int64_t* const extent : order) {
    while (*extent >= 2 * kMinExtent && SecondsOf(engine, product, panel, threads) > kMaxSeconds) {
      *extent = (*extent / 2 + kGranule - 1) / kGranule * kGranule;
    }
  }
  return panel;
}

absl::Status MultiplyInPanels(const Engine& engine, const PlainProduct& product,
                              const PanelShape& panel, AbortFlag abort) {
  for (int64_t row = 0; row < product.m; row += panel.m) {
    for (int64_t column = 0; column < product.n; column += panel.n) {
      for (int64_t k = 0; k < product.k; k += panel.k) {
        if (IsSet(abort)) return AbortedLaunch();
        RETURN_IF_ERROR(engine.multiply(PartOf(engine, product, panel, row, column, k)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace gemmd
