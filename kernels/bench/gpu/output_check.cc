// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/output_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/bench/problem.h"
#include "kernels/default_recipe.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd::bench {
namespace {

using Bytes = std::vector<std::byte>;
using Places = std::vector<int64_t>;

constexpr int64_t kMaxPlaces = 64;   // Rows, and columns, of a sample: 4096 elements.
constexpr int64_t kMinPlaces = 16;   // Min rows and columns, for any depth.
constexpr int64_t kMaxMatrices = 4;  // Max matrices of a batch to check.

uint64_t ElementAt(const MatrixLayout& layout, const std::byte* bytes, int64_t row,
                   int64_t column) {
  const bool is_row_major = layout.order == Order::kRowMajor;
  const std::byte* const line = bytes + (is_row_major ? row : column) * layout.line_stride_bytes();
  return LoadBits(layout.type, line, is_row_major ? column : row);
}

// Copies some rows or columns of a dense matrix. `places` are indices along the axis other than k.
Bytes GatherDense(const MatrixLayout& from, const std::byte* bytes, const Places& places,
                  bool takes_rows, const MatrixLayout& to) {
  Bytes gathered(static_cast<size_t>(to.lines() * to.line_stride_bytes()));
  const bool lines_are_places = takes_rows == (from.order == Order::kRowMajor);
  const auto count = static_cast<int64_t>(places.size());
  for (int64_t i = 0; i < count; ++i) {
    std::byte* const line = gathered.data() + i * to.line_stride_bytes();
    const int64_t place = places[static_cast<size_t>(i)];
    if (lines_are_places) {
      std::memcpy(line, bytes + place * from.line_stride_bytes(),
                  static_cast<size_t>(to.line_stride_bytes()));
      continue;
    }
    for (int64_t p = 0; p < to.line_length(); ++p) {
      const std::byte* const across = bytes + p * from.line_stride_bytes();
      StoreBits(from.type, line, p, LoadBits(from.type, across, place));
    }
  }
  return gathered;
}

absl::StatusOr<Bytes> GatherSparse(const MatrixLayout& from, const std::byte* bytes,
                                   const Places& rows) {
  const auto count = static_cast<int64_t>(rows.size());
  ASSIGN_OR_RETURN(const SparseLayout whole,
                   SparseLayoutOf("a", from.type, from.rows, from.columns));
  ASSIGN_OR_RETURN(const SparseLayout part, SparseLayoutOf("a", from.type, count, from.columns));
  Bytes gathered(static_cast<size_t>(part.bytes));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    std::memcpy(gathered.data() + part.values_offset(i), bytes + whole.values_offset(row),
                static_cast<size_t>(part.value_line_bytes));
    std::memcpy(gathered.data() + part.indices_offset(i), bytes + whole.indices_offset(row),
                static_cast<size_t>(part.index_line_bytes));
  }
  return gathered;
}

// A small problem of the same depth.
struct Sample {
  Places rows;
  Places columns;
  Problem problem;
  Bytes a;
  Bytes b;
  Bytes bias;
  Bytes a_factors;
  Bytes b_factors;
  Bytes d;
};

absl::StatusOr<Sample> DrawSample(const Problem& problem, const std::byte* a, const std::byte* b,
                                  int64_t budget) {
  Sample sample;
  const bool takes_all = static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                             static_cast<double>(std::max<int64_t>(1, problem.k)) <=
                         static_cast<double>(budget);
  const auto affordable = static_cast<int64_t>(std::sqrt(
      static_cast<double>(budget) / static_cast<double>(std::max<int64_t>(1, problem.k))));
  const int64_t places = std::clamp(affordable, kMinPlaces, kMaxPlaces);
  sample.rows = DrawPlaces(problem.m, takes_all ? problem.m : places, 1);
  sample.columns = DrawPlaces(problem.n, takes_all ? problem.n : places, 2);
  const auto m = static_cast<int64_t>(sample.rows.size());
  const auto n = static_cast<int64_t>(sample.columns.size());

  Problem& small = sample.problem;
  small = problem;
  small.m = m;
  small.n = n;
  small.batch = 1;
  ASSIGN_OR_RETURN(small.b, TightLayout("b", problem.b.type, Order::kColumnMajor, problem.k, n));
  ASSIGN_OR_RETURN(small.d, TightLayout("d", problem.d.type, Order::kRowMajor, m, n));
  if (problem.a.is_sparse()) {
    ASSIGN_OR_RETURN(small.a, TightSparseLayout("a", problem.a.type, m, problem.k));
    ASSIGN_OR_RETURN(sample.a, GatherSparse(problem.a, a, sample.rows));
  } else {
    ASSIGN_OR_RETURN(small.a, TightLayout("a", problem.a.type, Order::kRowMajor, m, problem.k));
    sample.a = GatherDense(problem.a, a, sample.rows, true, small.a);
  }
  sample.b = GatherDense(problem.b, b, sample.columns, false, small.b);
  sample.d.resize(static_cast<size_t>(BytesOf(small.d)));
  return sample;
}

Bytes GatherBias(const Problem& problem, const Bytes& bias, const Places& columns) {
  if (bias.empty()) return {};
  const int64_t element_bytes = BitsOf(problem.bias_type) / 8;
  Bytes gathered;
  for (const int64_t column : columns) {
    const std::byte* const element = bias.data() + column * element_bytes;
    gathered.insert(gathered.end(), element, element + element_bytes);
  }
  return gathered;
}

// The factors of some rows or columns, which then are blocks of their own.
Bytes GatherFactors(const Bytes& factors, const Places& places, int64_t k, BlockScale& blocks) {
  const int64_t line_bytes = blocks.depth_blocks(k) * BytesOf(blocks.type);
  Bytes gathered;
  for (const int64_t place : places) {
    const std::byte* const line = factors.data() + blocks.offset(place, 0, k);
    gathered.insert(gathered.end(), line, line + line_bytes);
  }
  blocks.lines = 1;
  return gathered;
}

absl::Status Simulate(const Kernel& kernel, const Target& target, Sample& sample) {
  const Kernel* const simulated = SimulatedKernel(kernel);
  if (simulated == nullptr) {
    return absl::InternalError(Concat(kernel.name, ": the simulator has no such kernel"));
  }
  ASSIGN_OR_RETURN(const int64_t bytes, simulated->workspace_bytes(sample.problem));
  Bytes workspace(static_cast<size_t>(bytes));
  return simulated->launch({.problem = sample.problem,
                            .target = {.kind = DeviceKind::kSim, .chip = target.chip},
                            .a = sample.a.data(),
                            .b = sample.b.data(),
                            .c = nullptr,
                            .bias = sample.bias.empty() ? nullptr : sample.bias.data(),
                            .a_scale = {},
                            .b_scale = {},
                            .d = sample.d.data(),
                            .workspace = {workspace.data(), workspace.size()},
                            .a_factors = sample.a_factors.data(),
                            .b_factors = sample.b_factors.data()});
}

void Report(OutputCheck& check, const std::string& what) {
  if (check.mismatches++ == 0) check.first = what;
}

std::string Hex(uint64_t bits) {
  std::string text;
  for (; bits != 0 || text.empty(); bits >>= 4)
    text.insert(text.begin(), "0123456789abcdef"[bits & 15]);
  return "0x" + text;
}

void Compare(const Sample& sample, const Problem& problem, int64_t matrix, const std::byte* d,
             OutputCheck& check) {
  for (size_t i = 0; i < sample.rows.size(); ++i) {
    for (size_t j = 0; j < sample.columns.size(); ++j) {
      const uint64_t got = ElementAt(problem.d, d, sample.rows[i], sample.columns[j]);
      const uint64_t want = ElementAt(sample.problem.d, sample.d.data(), static_cast<int64_t>(i),
                                      static_cast<int64_t>(j));
      ++check.compared;
      if (got == want) continue;
      Report(check, Concat(matrix > 0 ? Concat("matrix ", matrix, ": ") : "", "d[", sample.rows[i],
                           "][", sample.columns[j], "]: got ", Hex(got), ", want ", Hex(want)));
    }
  }
}

bool IsAll(const std::byte* bytes, int64_t count, std::byte value) {
  return std::all_of(bytes, bytes + count, [value](std::byte byte) { return byte == value; });
}

// Checks that every element was overwritten, and no byte between lines was.
void CheckPoison(const Problem& problem, const Bytes& d, OutputCheck& check) {
  const MatrixLayout& layout = problem.d;
  const auto poison = static_cast<std::byte>(PoisonOf(layout.type));
  const int64_t size = BitsOf(layout.type) / 8;
  const int64_t line_bytes = layout.line_length() * size;
  // Lines are numbered over all matrices.
  for (int64_t i = 0; i < layout.lines() * problem.batch; ++i) {
    const std::byte* const line = d.data() + i * layout.line_stride_bytes();
    for (int64_t j = 0; j < layout.line_length(); ++j) {
      if (line[j * size] != poison || !IsAll(line + j * size, size, poison)) continue;
      Report(check, Concat("d: line ", i, ", element ", j, " was not written"));
    }
    if (!IsAll(line + line_bytes, layout.line_stride_bytes() - line_bytes, poison)) {
      Report(check, Concat("d: bytes behind line ", i, " were written"));
    }
  }
}

}  // namespace

uint8_t PoisonOf(ElementType type) { return IsFloat(type) ? 0xff : 0xa5; }

std::vector<int64_t> DrawPlaces(int64_t extent, int64_t count, uint64_t seed) {
  Places places;
  if (count >= extent) {
    for (int64_t i = 0; i < extent; ++i) places.push_back(i);
    return places;
  }
  std::mt19937_64 random(seed);
  places.push_back(0);
  const int64_t inner = extent - 2;
  const int64_t stretches = std::max<int64_t>(0, count - 2);
  for (int64_t i = 0; i < stretches; ++i) {
    const int64_t first = 1 + inner * i / stretches;
    const int64_t last = 1 + inner * (i + 1) / stretches;
    places.push_back(std::uniform_int_distribution<int64_t>(first, last - 1)(random));
  }
  if (count > 1) places.push_back(extent - 1);
  return places;
}

absl::StatusOr<OutputCheck> CheckOutput(const Kernel& kernel, const Target& target,
                                        const Problem& problem, const Operands& operands,
                                        const Bytes& d, int64_t budget) {
  OutputCheck check;
  check.elements = problem.m * problem.n * problem.batch;
  const Places matrices = DrawPlaces(problem.batch, kMaxMatrices, 3);
  for (const int64_t matrix : matrices) {
    ASSIGN_OR_RETURN(Sample sample,
                     DrawSample(problem, operands.a.data() + matrix * problem.a.batch_stride_bytes,
                                operands.b.data() + matrix * problem.b.batch_stride_bytes,
                                budget / static_cast<int64_t>(matrices.size())));
    sample.bias = GatherBias(problem, operands.bias, sample.columns);
    if (problem.blocks_of_a() != nullptr) {
      sample.a_factors =
          GatherFactors(operands.a_factors, sample.rows, problem.k, sample.problem.a_blocks);
    }
    if (problem.blocks_of_b() != nullptr) {
      sample.b_factors =
          GatherFactors(operands.b_factors, sample.columns, problem.k, sample.problem.b_blocks);
    }
    RETURN_IF_ERROR(Simulate(kernel, target, sample));
    Compare(sample, problem, matrix, d.data() + matrix * problem.d.batch_stride_bytes, check);
  }
  CheckPoison(problem, d, check);
  return check;
}

}  // namespace gemmd::bench
