// SPDX-License-Identifier: Apache-2.0
//
// What products cost on one thread of this host, in seconds, beside and including the multiplying:
// all that predictions for `cpu` and `sim` devices rest on. host_rates.h measures it.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "kernels/extent_grid.h"
#include "kernels/mma/element_type.h"
#include "kernels/problem.h"

namespace gemmd {

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

}  // namespace gemmd
