// SPDX-License-Identifier: Apache-2.0
//
// The capabilities and measured speeds of a device. A profile is independent of kernel families:
// each family uses the numbers that it needs (KernelFamily::predicted_seconds).
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

// Seconds of products of one kind: measured on a grid of a few extents of m, n and k, interpolated
// elsewhere.
class ExtentGrid {
 public:
  // Libraries change their algorithms with the extents: one line, less than a register tile, less
  // than a cache.
  static constexpr std::array<int64_t, 6> kExtents = {1, 8, 64, 384, 1024, 16384};

  // `measure(m, n, k)` returns the seconds of a product, or 0 to extrapolate it from two smaller
  // products that differ from it in one extent only.
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
  // interpolated; beyond the last one, time grows with each extent as it did before.
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

// Seconds of the epilogue in one of its types. All members but the first two are per element.
struct EpilogueCosts {
  double matrix = 0;                   // A matrix of the batch.
  double line = 0;                     // A line of a tile (at most 256 elements).
  double zero = 0;                     // If there is no product.
  ByType load;                         // Loading an accumulator, by its type in memory.
  double load_integer_from_float = 0;  // Loading an s32 accumulator stored as f64.
  double scale = 0;
  double alpha = 0;
  double c = 0;         // An element of C in D's order, without decoding.
  double c_across = 0;  // The same if C has the other order.
  double bias = 0;
  ByType decode;  // C or bias.
  std::array<double, 5> activation = {};
  ByType encode;
};

// Seconds per element to convert operands to other types.
struct CopyCosts {
  double matrix = 0;
  double line = 0;
  double biased_line = 0;  // Per line of u8 converted to s8 by subtracting 128.
  std::array<ByType, kAllElementTypes.size()> widen = {};  // [from][to]
  ByType expand;  // An element of the dense matrix that a sparse one becomes.
};

// Times of a library engine's products X Y, each factor untransposed (0) or transposed (1).
struct EngineTimes {
  std::string engine;  // Kernel::engine.
  std::array<std::array<ExtentGrid, 2>, 2> grids;
  // The extra cost per element of X if Y is u8 less 128, because each line of X must be summed; X
  // untransposed (0) or transposed (1).
  std::array<double, 2> biased = {};
};

// The parts of a simulated product: counts, or the cost of one of each in an engine's products.
struct SimulatedWork {
  static constexpr size_t kParts = 6;
  // Matrices; elements of the operands of one instruction; packed elements; packed elements
  // narrower than a byte and inside the matrix; multiplications; stored sums.
  enum Part : size_t { kMatrix, kMapped, kPacked, kNarrow, kMultiplied, kStored };
  std::array<double, kParts> parts = {};
};

// The costs of a simulated f32 product in addition to its two f16 products
// (kernels/matrix/split_float.h), in seconds.
struct SplitCosts {
  double split = 0;  // An element of A or B as two f16.
  double join = 0;   // An element of D.
  double sum = 0;    // An exact sum, and each of its multiplications.
  double add = 0;
};

struct SimulatorTimes {
  std::string engine;
  SimulatedWork seconds;  // The time that one of each takes.
};

// The costs of products on one thread of this host, in seconds: the basis of predictions for `cpu`
// and `sim` devices. Measured by host_rates.h.
struct HostCosts {
  int threads = 1;  // Threads that launches may use; all costs are per thread.
  double launch = 0;
  double share = 0;                     // Handing work to OpenMP's threads, and waiting for them.
  double start_thread = 0;              // Starting a thread, and waiting for its end.
  double memory_bytes_per_second = 0;   // Operands too large for caches; 0: not measured.
  double cleared_bytes_per_second = 0;  // Fresh memory for D; 0: not measured.
  CopyCosts copies;
  EpilogueCosts finish_f32;
  EpilogueCosts finish_f64;
  SplitCosts splitting;
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
  // Costs on this host; null if not measured, or if the device is a GPU.
  std::shared_ptr<const HostCosts> host = nullptr;
  double memory_bytes_per_second = 0;  // The device's own memory; 0: unknown, treated as infinite.
  double copied_bytes_per_second = 0;  // Between host and device; 0: operands are not copied.
};

}  // namespace gemmd
