// SPDX-License-Identifier: Apache-2.0
//
// What a device can do, and how fast it was when that was measured. A profile knows no family of
// kernels: each family takes what it needs from these numbers (KernelFamily::predicted_seconds).
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/mma/element_type.h"
#include "kernels/problem.h"

namespace gemmd {

// Seconds of products of one kind, measured where m, n and k each take one of a few extents, and
// those of all other products by interpolation.
class ExtentGrid {
 public:
  // Libraries change their ways with the extents: one line, less than a register tile, less than a
  // cache.
  static constexpr std::array<int64_t, 6> kExtents = {1, 8, 64, 384, 1024, 16384};

  // `measure(m, n, k)` gives the seconds of a product, or 0 for one that shall follow from two
  // smaller ones, which differ from it in one extent only.
  template <typename Measure>
  static ExtentGrid Of(const Measure& measure) {
    ExtentGrid grid;
    for (size_t i = 0; i < kSize; ++i) {
      for (size_t j = 0; j < kSize; ++j) {
        for (size_t l = 0; l < kSize; ++l) {
          const double seconds = measure(kExtents[i], kExtents[j], kExtents[l]);
          grid.At({i, j, l}) = seconds > 0 ? std::log2(seconds) : grid.Grown({i, j, l});
        }
      }
    }
    return grid;
  }

  // The seconds of a product whose extents are 1 or more. Between the extents above, logarithms are
  // interpolated; beyond the last one, time grows with each extent as it did up to there.
  double Seconds(int64_t m, int64_t n, int64_t k) const;

 private:
  static constexpr size_t kSize = kExtents.size();
  using Indices = std::array<size_t, 3>;
  using Logarithms = std::array<double, 3>;

  double& At(const Indices& at) { return logarithms_[(at[0] * kSize + at[1]) * kSize + at[2]]; }
  double At(const Indices& at) const {
    return logarithms_[(at[0] * kSize + at[1]) * kSize + at[2]];
  }
  double Grown(const Indices& at) const;
  double Inside(const Logarithms& extents) const;

  std::array<double, kSize* kSize* kSize> logarithms_ = {};
};

// A number for each element type.
class ByType {
 public:
  double& operator[](ElementType type) { return values_[static_cast<size_t>(type)]; }
  double operator[](ElementType type) const { return values_[static_cast<size_t>(type)]; }

 private:
  std::array<double, kAllElementTypes.size()> values_ = {};
};

// What the epilogue costs in one of its types. Everything but the first two is for one element.
struct EpilogueCosts {
  double matrix = 0;                   // A matrix of the batch.
  double line = 0;                     // A line of a tile (at most 256 elements).
  double zero = 0;                     // Where there is no product.
  ByType load;                         // An accumulator of the type that it has in memory.
  double load_integer_from_float = 0;  // An s32 accumulator that f64 holds.
  double scale = 0;
  double alpha = 0;
  double c = 0;         // An element of C in D's order, beside decoding.
  double c_across = 0;  // The same where C lies in the other order.
  double bias = 0;
  ByType decode;  // C or bias.
  std::array<double, 5> activation = {};
  ByType encode;
};

// How operands are copied into other types.
struct CopyCosts {
  double matrix = 0;
  double line = 0;
  double biased_line = 0;  // A line of u8 that becomes s8, less 128.
  std::array<ByType, kAllElementTypes.size()> widen = {};  // [from][to]
  ByType expand;  // An element of the dense matrix that a sparse one becomes.
};

// The products of an engine of a library: X Y, each factor as it lies (0) or transposed (1).
struct EngineTimes {
  std::string engine;  // Kernel::engine.
  std::array<std::array<ExtentGrid, 2>, 2> grids;
  // What an element of X costs more where Y is u8 less 128, since each line of X must be summed; X
  // as it lies (0) or transposed (1).
  std::array<double, 2> biased = {};
};

// The parts of a simulated product, in counts, and what one of each costs in an engine's products.
struct SimulatedWork {
  static constexpr size_t kParts = 6;
  // One matrix; elements of the operands of one instruction; elements that are packed, and those of
  // them that are narrower than a byte and not beyond an edge; multiplications; sums that are
  // stored.
  enum Part : size_t { kMatrix, kMapped, kPacked, kNarrow, kMultiplied, kStored };
  std::array<double, kParts> parts = {};
};

struct SimulatorTimes {
  std::string engine;
  SimulatedWork seconds;  // The time that one of each takes.
};

// What products cost on one thread of this host, in seconds, beside and including the multiplying:
// all that predictions for `cpu` and `sim` devices rest on. host_rates.h measures it.
struct HostCosts {
  int threads = 1;  // Those that launches may use; all costs are those of one.
  double launch = 0;
  double share = 0;                     // Handing work to OpenMP's threads, and waiting for them.
  double start_thread = 0;              // Starting a thread, and waiting for its end.
  double memory_bytes_per_second = 0;   // Operands too large for caches; 0: not measured.
  double cleared_bytes_per_second = 0;  // Memory for D that is new; 0: not measured.
  CopyCosts copies;
  EpilogueCosts finish_f32;
  EpilogueCosts finish_f64;
  std::vector<EngineTimes> engines;
  std::vector<SimulatorTimes> simulators;
};

// The epilogue of one matrix on one thread. `stored` is the type of the accumulators in memory,
// `type` the one that they represent (kernels/epilogue.h).
double EpilogueSeconds(const HostCosts& costs, const Problem& problem, ElementType stored,
                       ElementType type);

// Copying one matrix into another type on one thread.
double WideningSeconds(const HostCosts& costs, const MatrixLayout& from, ElementType to);

// Making one sparse matrix dense on one thread.
double ExpansionSeconds(const HostCosts& costs, const MatrixLayout& sparse);

// A measured rate of one engine on one device.
struct EngineRate {
  std::string engine;            // Kernel::engine.
  double operations_per_second;  // 2*m*n*k over the seconds it took.
};

struct DeviceProfile {
  Target target;
  std::vector<EngineRate> rates;
  // Operations a second of each kernel of Catalog(target.kind), by Kernel::position; 0 for a kernel
  // that was not measured. Empty if only engines are measured.
  std::vector<double> kernel_rates = {};
  double converted_elements_per_second = 1e9;  // Widening an operand or finishing an output.
  // What products cost on this host; null: not measured, and for devices that are not of the host.
  std::shared_ptr<const HostCosts> host = nullptr;
  double memory_bytes_per_second = 0;  // The device's own memory; 0: unknown, counts as endless.
  double copied_bytes_per_second = 0;  // Between host and device; 0: operands are not copied.
};

}  // namespace gemmd
