// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/prediction_case.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/host_rates.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

using Bytes = std::vector<std::byte>;

// Matrices of small repeating numbers; a sparse one keeps the first two of each four.
Bytes FillOperand(const MatrixLayout& layout, int64_t batch) {
  constexpr int64_t kPeriod = 840;  // Whole bytes of every type.
  std::vector<float> values(kPeriod);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(1 + i * i % 7);
  Bytes period(static_cast<size_t>(kPeriod * BitsOf(layout.type) / 8));
  EncodeLine(layout.type, values.data(), kPeriod, period.data());
  Bytes bytes(static_cast<size_t>(BytesOf("x", layout, batch).value().full));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = period[i % period.size()];
  if (layout.is_sparse()) {
    const SparseLayout sparse =
        SparseLayoutOf("x", layout.type, layout.rows, layout.columns).value();
    for (int64_t i = 0; i < batch; ++i) {
      std::byte* const matrix = bytes.data() + i * layout.batch_stride_bytes;
      for (int64_t row = 0; row < sparse.rows; ++row) {
        std::byte* const line = matrix + sparse.indices_offset(row);
        std::memset(line, 0x44, static_cast<size_t>(sparse.index_line_bytes));
      }
    }
  }
  return bytes;
}

// Operands and result of a problem.
struct Memory {
  Bytes a, b, c, bias, d, workspace;
  std::vector<float> a_scale, b_scale;
  Bytes a_factors, b_factors;
};

// Factors of one.
Bytes FactorsOf(const BlockScale* blocks, int64_t extent, int64_t k) {
  if (blocks == nullptr) return {};
  const auto count = static_cast<size_t>(blocks->line_blocks(extent) * blocks->depth_blocks(k));
  const std::vector<float> ones(count, 1.0F);
  Bytes bytes(count * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), ones.data(), bytes.size());
  return bytes;
}

absl::StatusOr<Memory> MakeMemory(const Kernel& kernel, const Problem& problem) {
  constexpr int64_t kAlignment = 64;
  Memory memory;
  RETURN_IF_ERROR(Validate(problem));
  RETURN_IF_ERROR(kernel.supports(problem));
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel.workspace_bytes(problem));
  memory.a = FillOperand(problem.a, problem.batch);
  memory.b = FillOperand(problem.b, problem.batch);
  memory.d.resize(static_cast<size_t>(BytesWritten(problem)));
  memory.workspace.resize(static_cast<size_t>(workspace_bytes + kAlignment));
  if (problem.has_c()) memory.c = FillOperand(problem.c, problem.batch);
  if (problem.bias_axis != BiasAxis::kNone) {
    memory.bias.resize(static_cast<size_t>(8 * std::max(problem.m, problem.n)));
  }
  memory.a_factors = FactorsOf(problem.blocks_of_a(), problem.m, problem.k);
  memory.b_factors = FactorsOf(problem.blocks_of_b(), problem.n, problem.k);
  if (problem.a_scale == ScaleKind::kVector) {
    memory.a_scale.assign(static_cast<size_t>(problem.m), 0.5F);
  }
  if (problem.b_scale == ScaleKind::kVector) {
    memory.b_scale.assign(static_cast<size_t>(problem.n), 0.5F);
  }
  return memory;
}

MatrixLayout Tight(ElementType type, Order order, int64_t rows, int64_t columns) {
  return TightLayout("x", type, order, rows, columns).value();
}

void Finish(const Kernel& kernel, Problem& problem) {
  problem.c = problem.d;
  problem.alpha = 0.1;
  problem.beta = 0.25;
  problem.bias_axis = BiasAxis::kColumns;
  problem.bias_type = problem.d.type;
  if (kernel.a == ElementType::kE4m3 || kernel.a == ElementType::kS8) {
    problem.a_scale = ScaleKind::kVector;
    problem.b_scale = ScaleKind::kVector;
  }
  problem.activation = Activation::kGeluErf;
}

}  // namespace

std::vector<PredictionCase> PredictionCases(DeviceKind kind) {
  using enum Order;
  if (kind == DeviceKind::kCpu) {
    return {
        {.name = "one element", .m = 1, .n = 1, .k = 1},
        {.name = "one element, long", .m = 1, .n = 1, .k = 65536},
        {.name = "tiny", .m = 8, .n = 8, .k = 8},
        {.name = "tiny batched", .m = 1, .n = 1, .k = 1, .batch = 100000},
        {.name = "tiny batched", .m = 4, .n = 4, .k = 4, .batch = 20000},
        {.name = "tiny batched", .m = 16, .n = 16, .k = 16, .batch = 4000},
        {.name = "tiny batched, one B", .m = 1, .n = 16, .k = 16, .batch = 4000, .shares_b = true},
        {.name = "small batched", .m = 64, .n = 64, .k = 64, .batch = 100},
        {.name = "k = 0", .m = 512, .n = 512, .k = 0},
        {.name = "k = 0, batched", .m = 4, .n = 4, .k = 0, .batch = 20000},
        {.name = "k = 1", .m = 512, .n = 512, .k = 1},
        {.name = "skinny m", .m = 1, .n = 1024, .k = 1024},
        {.name = "skinny m", .m = 4, .n = 1024, .k = 1024},
        {.name = "skinny m", .m = 16, .n = 1024, .k = 1024},
        {.name = "skinny n", .m = 1024, .n = 1, .k = 1024},
        {.name = "skinny n", .m = 1024, .n = 8, .k = 1024},
        {.name = "skinny k", .m = 512, .n = 512, .k = 8},
        {.name = "dots", .m = 8, .n = 8, .k = 16384},
        {.name = "odd", .m = 1000, .n = 37, .k = 129},
        {.name = "odd", .m = 129, .n = 257, .k = 63},
        {.name = "odd", .m = 33, .n = 1, .k = 333},
        {.name = "square", .m = 128, .n = 128, .k = 128},
        {.name = "square", .m = 768, .n = 768, .k = 768},
        {.name = "transposed B", .m = 384, .n = 384, .k = 384, .b = kColumnMajor},
        {.name = "transposed A", .m = 384, .n = 384, .k = 384, .a = kColumnMajor},
        {.name = "column-major",
         .m = 300,
         .n = 200,
         .k = 100,
         .a = kColumnMajor,
         .b = kColumnMajor,
         .d = kColumnMajor},
        {.name = "skinny, transposed B", .m = 1, .n = 1024, .k = 1024, .b = kColumnMajor},
        {.name = "skinny, transposed A", .m = 1024, .n = 1, .k = 1024, .a = kColumnMajor},
        {.name = "sparse A", .m = 512, .n = 16, .k = 512, .has_sparse_a = true},
        {.name = "finished", .m = 384, .n = 384, .k = 16, .is_finished = true},
        {.name = "finished, batched", .m = 4, .n = 4, .k = 4, .batch = 4000, .is_finished = true},
        {.name = "stored in f16", .m = 384, .n = 384, .k = 16, .is_stored_narrow = true},
    };
  }
  return {
      {.name = "one element", .m = 1, .n = 1, .k = 1},
      {.name = "one element, long", .m = 1, .n = 1, .k = 4096},
      {.name = "tiny", .m = 8, .n = 8, .k = 8},
      {.name = "tiny batched", .m = 1, .n = 1, .k = 1, .batch = 100},
      {.name = "tiny batched", .m = 16, .n = 16, .k = 16, .batch = 100},
      {.name = "k = 0", .m = 256, .n = 256, .k = 0},
      {.name = "k = 0, batched", .m = 4, .n = 4, .k = 0, .batch = 1000},
      {.name = "k = 1", .m = 128, .n = 128, .k = 1},
      {.name = "skinny m", .m = 1, .n = 256, .k = 256},
      {.name = "skinny m", .m = 16, .n = 256, .k = 256},
      {.name = "skinny n", .m = 256, .n = 1, .k = 256},
      {.name = "odd", .m = 100, .n = 37, .k = 129},
      {.name = "odd", .m = 33, .n = 65, .k = 1},
      {.name = "square", .m = 192, .n = 192, .k = 192},
      {.name = "transposed B", .m = 128, .n = 128, .k = 128, .b = kColumnMajor},
      {.name = "column-major",
       .m = 96,
       .n = 64,
       .k = 100,
       .a = kColumnMajor,
       .b = kColumnMajor,
       .d = kColumnMajor},
      {.name = "finished", .m = 256, .n = 256, .k = 16, .is_finished = true},
      {.name = "stored in f16", .m = 256, .n = 256, .k = 16, .is_stored_narrow = true},
  };
}

Problem ProblemOf(const PredictionCase& c, const Kernel& kernel) {
  const bool is_sparse = kernel.instruction != nullptr
                             ? kernel.instruction->is_sparse()
                             : c.has_sparse_a && SparseFormOf(kernel.a).has_value();
  Problem problem;
  problem.m = c.m;
  problem.n = c.n;
  problem.k = c.k;
  problem.batch = c.batch;
  problem.a = is_sparse ? TightSparseLayout("a", kernel.a, c.m, c.k).value()
                        : Tight(kernel.a, c.a, c.m, c.k);
  problem.b = Tight(kernel.b, c.b, c.k, c.n);
  if (c.shares_b) problem.b.batch_stride_bytes = 0;
  problem.d =
      Tight(c.is_stored_narrow ? ElementType::kF16 : kernel.recipe.accumulation, c.d, c.m, c.n);
  problem.accumulation = kernel.recipe.accumulation;
  if (kernel.instruction != nullptr && kernel.instruction->bit_count == mma::BitCount::kXor) {
    problem.bit_operation = BitOperation::kXor;
  }
  if (c.is_finished) Finish(kernel, problem);
  if (kernel.recipe.block_scaling == BlockScaling::kParts) {
    problem.a_scale = problem.b_scale = ScaleKind::kBlocks;
    problem.a_blocks = {.lines = 1, .depth = 128};
    problem.b_blocks = {.lines = 128, .depth = 128};
  }
  return problem;
}

absl::StatusOr<double> FastestLaunch(const Kernel& kernel, const Problem& problem,
                                     const Target& target, double enough_seconds,
                                     double max_seconds) {
  ASSIGN_OR_RETURN(Memory memory, MakeMemory(kernel, problem));
  void* workspace = memory.workspace.data();
  size_t space = memory.workspace.size();
  std::align(64, space - 64, workspace, space);
  const GemmArgs args = {.problem = problem,
                         .target = target,
                         .a = memory.a.data(),
                         .b = memory.b.data(),
                         .c = memory.c.data(),
                         .bias = memory.bias.data(),
                         .a_scale = memory.a_scale,
                         .b_scale = memory.b_scale,
                         .d = memory.d.data(),
                         .workspace = {static_cast<std::byte*>(workspace), space},
                         .a_factors = memory.a_factors.data(),
                         .b_factors = memory.b_factors.data()};
  // Short ones run once before they count, so that caches are warm, and then at least three times.
  constexpr int kMin = 3;
  if (enough_seconds < max_seconds) RETURN_IF_ERROR(kernel.launch(args));
  double fastest = std::numeric_limits<double>::infinity();
  int launches = 0;
  for (double total = 0; total < max_seconds || (launches < kMin && fastest > enough_seconds);) {
    const double start = ThreadSeconds();
    RETURN_IF_ERROR(kernel.launch(args));
    const double seconds = ThreadSeconds() - start;
    total += seconds;
    ++launches;
    fastest = std::min(fastest, seconds);
    if (launches >= kMin && fastest <= enough_seconds) break;
  }
  return fastest;
}

}  // namespace gemmd
