// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/launch.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/cuda/device/epilogue/epilogue_alone.h"
#include "kernels/cuda/device/epilogue/exact_sums.h"
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mma_parameters.h"
#include "kernels/cuda/device/operands/dequantize.h"
#include "kernels/cuda/device/operands/factors.h"
#include "kernels/cuda/device/operands/metadata.h"
#include "kernels/cuda/device/operands/pack.h"
#include "kernels/cuda/device/operands/split.h"
#include "kernels/cuda/device/operands/weights.h"
#include "kernels/cuda/device/runtime.h"
#include "kernels/cuda/device/tile_map.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/recent_problems.h"
#include "kernels/cuda/row_table.h"
#include "kernels/cuda/rows.h"
#include "kernels/dequantize.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"

namespace gemmd {
namespace {

constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
constexpr int kBytesOfStep = 32 * sizeof(uint32_t);  // Metadata of a row of instructions.
constexpr int64_t kMaxBatches =
    65535;  // Max matrices per launch: the limit of the grid's third extent.

static_assert(std::all_of(kCudaRows.begin(), kCudaRows.end(),
                          [](const CudaRow& row) {
                            return !CanReadAcross(row) ||
                                   (GroupOf(row.instruction) == CudaGroup::kWgmmaF16 &&
                                    row.promotion_k == 0);
                          }),
              "this group has code for rows that read across k");

std::vector<CudaFunction> MakeFunctionTable() {
  std::vector<CudaFunction> table;
  const auto add = [&](std::span<const CudaFunction> group) {
    table.insert(table.end(), group.begin(), group.end());
  };
  const auto add_all = [&]<size_t... kAt>(std::index_sequence<kAt...>) {
    (add(FunctionsOf<static_cast<CudaGroup>(kAt)>()), ...);
  };
  add_all(std::make_index_sequence<kCudaGroups>());
  add(FunctionsOf<CudaGroup::kWgmmaF16, Across::kA>());
  add(FunctionsOf<CudaGroup::kWgmmaF16, Across::kB>());
  add(FunctionsOf<CudaGroup::kWgmmaF16, Across::kBoth>());
  add(FunctionsOf<CudaGroup::kPromoted, Across::kNone, /*kScalesSums=*/true>());
  return table;
}

const void* FunctionOf(const CudaRow& row) {
  static const auto* const table =
      new std::vector<CudaFunction>(MakeFunctionTable());  // Never destroyed.
  const auto found = std::find_if(table->begin(), table->end(),
                                  [&row](const CudaFunction& entry) { return entry.row == row; });
  return found == table->end() ? nullptr : found->function;
}

// The code that the current GPU runs.
struct Code {
  const void* function;
  mma::Chip chip;  // The chip that the code was compiled for; the GPU may be a later one.
};

absl::StatusOr<Code> FindCode(std::string_view name, const CudaRow& row) {
  const void* const function = FunctionOf(row);
  if (function == nullptr) {
    return absl::FailedPreconditionError(Concat("kernel: this build has no code of ", name));
  }
  cudaFuncAttributes attributes = {};
  RETURN_IF_ERROR(CudaStatus(cudaFuncGetAttributes(&attributes, function), name));
  const std::optional<mma::Chip> chip = mma::ChipFromCapability(attributes.ptxVersion);
  // The function for a chip that lacks the instruction is empty.
  if (!chip || !RunsOn(row, *chip)) {
    return absl::FailedPreconditionError(Concat("kernel: this build has no code of ", name,
                                                ", which sm_", attributes.ptxVersion, " lacks"));
  }
  // Kernels that use more than 48 KiB of shared memory must opt in.
  RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, SharedBytes(row)),
      name));
  return Code{function, *chip};
}

// Cached: asking CUDA takes as long as a launch.
absl::StatusOr<Code> CodeOf(std::string_view name, const CudaRow& row) {
  struct Found {
    int gpu;
    CudaRow row;
    Code code;
  };
  static auto* const found = new std::vector<Found>();  // Never destroyed.
  static std::mutex mutex;
  int gpu = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&gpu), "GPU"));
  const std::lock_guard lock(mutex);
  const auto known = std::find_if(found->begin(), found->end(), [&](const Found& entry) {
    return entry.gpu == gpu && entry.row == row;
  });
  if (known != found->end()) return known->code;
  ASSIGN_OR_RETURN(const Code code, FindCode(name, row));
  found->push_back({gpu, row, code});
  return code;
}

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The GPU addresses of a launch's buffers.
struct Places {
  // Data derived from A and B: in forms, or in the workspace.
  std::byte* a = nullptr;
  std::byte* b = nullptr;
  SplitParameters split = {};  // Null if nothing is split.
  std::byte* factors = nullptr;
  SumsInMemory sums;  // Null if no sums are kept.
};

Places PlacesOf(const GemmArgs& args, const CudaPlan& plan) {
  std::byte* next = args.workspace.data();
  const auto take = [&next](const OperandForm& form, int64_t bytes) {
    return form.bytes != nullptr ? form.bytes : std::exchange(next, next + bytes);
  };
  Places places;
  places.a = take(args.a_form, plan.a_workspace_bytes);
  std::byte* const marks = take({}, plan.split.bytes);
  places.factors = take({}, plan.factors.bytes);
  places.b = take(args.b_form, plan.b_workspace_bytes);
  if (plan.sums.are_kept) {
    places.sums = {.data = next,
                   .line_stride_bytes = plan.sums.line_stride_bytes,
                   .batch_stride_bytes = plan.sums.batch_stride_bytes};
  }
  if (!plan.split.is_used) return places;
  const SplitPlan& split = plan.split;
  places.split = {
      .a_ranges = reinterpret_cast<const MagnitudeRange*>(places.a + split.a_ranges_offset),
      .b_ranges = reinterpret_cast<const MagnitudeRange*>(places.b),
      .a_ranges_of_matrix = plan.a.batch_stride_bytes == 0 ? 0 : RangesOf(plan.a.lines),
      .b_ranges_of_matrix = plan.b.batch_stride_bytes == 0 ? 0 : RangesOf(plan.b.lines),
      .any = reinterpret_cast<uint32_t*>(marks),
      .marks = reinterpret_cast<uint32_t*>(marks + split.marks_offset),
      .words_of_row = split.words_of_row,
      .k = args.problem.k,
  };
  return places;
}

// Without its address.
absl::StatusOr<OperandLines> LinesOf(std::string_view field, const OperandPlan& plan) {
  if (plan.lines > kMaxBlocks || plan.line_stride_bytes > kMaxLineBytes) {
    return absl::ResourceExhaustedError(Concat(field, ": got ", plan.lines, " lines of ",
                                               plan.line_bytes,
                                               " bytes, want at most 2^31 - 1 of less than 2^31"));
  }
  return OperandLines{.data = nullptr,
                      .batch_stride_bytes = plan.batch_stride_bytes,
                      .lines = static_cast<int>(plan.lines),
                      .line_bytes = static_cast<int>(plan.line_bytes),
                      .line_stride_bytes = static_cast<int>(plan.line_stride_bytes)};
}

// Everything that launches of one problem by one kernel share, except addresses.
struct PreparedLaunch {
  Multiplication multiplication;
  Code code;
  CudaPlan plan;
  MmaParameters parameters = {};  // Those of the first launch.
  cudaLaunchConfig_t config = {};
  std::array<cudaLaunchAttribute, 2> attributes = {};

  const CudaRow& row() const { return multiplication.row; }
  bool has_maps() const { return HasRingOn(row(), code.chip); }
  // Whether the copy engine writes D, or the sums that are kept.
  bool has_store() const { return HasWarpgroups(row()) && !IsNarrow(row()); }
};

std::byte* StoredAt(const GemmArgs& args, const Places& places) {
  return places.sums.data != nullptr ? const_cast<std::byte*>(places.sums.data) : args.d;
}

// The epilogue of sums that a narrow row leaves in the workspace.
EpilogueParameters EpilogueOfSums(const CudaRow& row, const Problem& problem,
                                  const SumsInMemory& sums) {
  EpilogueParameters parameters;
  parameters.m = problem.m;
  parameters.n = problem.n;
  parameters.d = {.data = const_cast<std::byte*>(sums.data),
                  .line_stride_bytes = sums.line_stride_bytes,
                  .batch_stride_bytes = sums.batch_stride_bytes,
                  .type = AccumulatorType(row),
                  .order = Order::kRowMajor};
  parameters.stores_directly = true;
  parameters.pairs_are_aligned = true;
  return parameters;
}

// Everything but the maps that depends on addresses.
void SetAddresses(const CudaRow& row, const CudaPlan& plan, const GemmArgs& args,
                  const Places& places, MmaParameters& parameters) {
  parameters.a.data = plan.a.is_packed ? places.a + plan.a.offset : args.a;
  parameters.b.data = plan.b.is_packed ? places.b + plan.b.offset : args.b;
  parameters.metadata = reinterpret_cast<const uint32_t*>(places.a + plan.metadata_offset);
  parameters.abort = args.abort_word;
  parameters.split = places.split;
  parameters.factors.a = reinterpret_cast<const float*>(places.factors + plan.factors.a.offset);
  parameters.factors.b = reinterpret_cast<const float*>(places.factors + plan.factors.b.offset);
  if (IsNarrow(row) && plan.sums.are_kept) {
    parameters.epilogue = EpilogueOfSums(row, args.problem, places.sums);
    return;
  }
  parameters.epilogue = EpilogueOf(args, AccumulatorType(row));
  // Finished sums already include alpha.
  if (parameters.finishes_sums) parameters.epilogue.alpha_f32 = 1;
}

absl::Status MoveMaps(const PreparedLaunch& prepared, const GemmArgs& args, const Places& places,
                      MmaParameters& parameters) {
  if (prepared.has_maps()) {
    RETURN_IF_ERROR(MoveTileMap(parameters.a.data, parameters.a_map));
    RETURN_IF_ERROR(MoveTileMap(parameters.b.data, parameters.b_map));
    if (prepared.row().instruction.is_sparse()) {
      RETURN_IF_ERROR(MoveTileMap(parameters.metadata, parameters.metadata_map));
    }
  }
  if (!prepared.has_store()) return absl::OkStatus();
  return MoveTileMap(StoredAt(args, places), parameters.d_map);
}

// The box of one of `copies` that bring the tile's lines, or one part of them.
TileBox BoxOf(const TileLines& tile, int copies) {
  return {.line_bytes = tile.line_bytes,
          .lines = tile.lines / tile.parts / copies,
          .is_swizzled = true};
}

// If f32 are split, the copy engine sees each matrix as two.
absl::StatusOr<TileMap> OperandMapOf(const CudaRow& row, const OperandPlan& plan,
                                     OperandLines lines, const TileBox& box, int64_t batch) {
  if (!row.splits_f32) return TileMapOf(lines, box, batch);
  const int64_t matrices = plan.batch_stride_bytes == 0 ? 1 : batch;
  lines.batch_stride_bytes = plan.part_bytes();
  return TileMapOf(lines, box, matrices * PartsOfOperands(row));
}

absl::Status MakeTileMaps(const CudaRow& row, mma::Chip chip, const CudaPlan& plan,
                          const Problem& problem, MmaParameters& parameters) {
  const TileBox a = BoxOf(TileLinesOf(row, mma::Operand::kA), 1);
  const TileBox b = BoxOf(TileLinesOf(row, mma::Operand::kB), ClusterOn(row, chip));
  ASSIGN_OR_RETURN(parameters.a_map, OperandMapOf(row, plan.a, parameters.a, a, problem.batch));
  ASSIGN_OR_RETURN(parameters.b_map, OperandMapOf(row, plan.b, parameters.b, b, problem.batch));
  if (!row.instruction.is_sparse()) return absl::OkStatus();
  const OperandLines metadata = {.data = reinterpret_cast<const std::byte*>(parameters.metadata),
                                 .batch_stride_bytes = plan.metadata_batch_stride_bytes,
                                 .lines = parameters.tiles_m * (row.tile.m / kMetadataRows),
                                 .line_bytes = parameters.metadata_steps * kBytesOfStep,
                                 .line_stride_bytes = parameters.metadata_steps * kBytesOfStep};
  const TileBox box = {.line_bytes = MetadataLineBytes(row),
                       .lines = row.tile.m / kMetadataRows,
                       .is_swizzled = false};
  ASSIGN_OR_RETURN(parameters.metadata_map, TileMapOf(metadata, box, problem.batch));
  return absl::OkStatus();
}

// Sets what the copy engine writes for a warpgroup row.
absl::Status SetStore(const CudaRow& row, const GemmArgs& args, const CudaPlan& plan,
                      const Places& places, MmaParameters& parameters) {
  const Problem& problem = args.problem;
  const SumsPlan& sums = plan.sums;
  parameters.stored_type = sums.are_kept ? AccumulatorType(row) : problem.d.type;
  parameters.stored_alpha =
      sums.are_kept || parameters.finishes_sums ? 1 : static_cast<float>(problem.alpha);
  const int element_bytes = BitsOf(parameters.stored_type) / 8;
  const int64_t stride = sums.are_kept ? sums.line_stride_bytes : problem.d.line_stride_bytes();
  if (problem.m > kMaxBlocks || stride > kMaxLineBytes) {
    return absl::ResourceExhaustedError(Concat("d: got ", problem.m, " lines every ", stride,
                                               " bytes, want at most 2^31 - 1 every 2^31"));
  }
  const OperandLines lines = {
      .data = StoredAt(args, places),
      .batch_stride_bytes = sums.are_kept ? sums.batch_stride_bytes : problem.d.batch_stride_bytes,
      .lines = static_cast<int>(problem.m),
      .line_bytes = static_cast<int>(problem.n * element_bytes),
      .line_stride_bytes = static_cast<int>(stride)};
  const TileBox box = {.line_bytes = BlockOfRowBytes(parameters.stored_type),
                       .lines = row.instruction_rows(),
                       .is_swizzled = true,
                       .element_bytes = element_bytes,
                       .line_multiple = element_bytes};
  ASSIGN_OR_RETURN(parameters.d_map, TileMapOf(lines, box, problem.batch));
  return absl::OkStatus();
}

// Sets the number of tiles of all matrices, and the number of blocks that share them: as many as
// fit the multiprocessors.
absl::Status SetTiles(const CudaRow& row, mma::Chip chip, const GemmArgs& args,
                      MmaParameters& parameters) {
  const int64_t tiles = int64_t{parameters.tiles_m} * parameters.tiles_n;
  const int64_t batch = args.problem.batch;
  if (batch > kMaxBlocks / tiles) {
    return absl::ResourceExhaustedError(
        Concat("batch: got ", batch, " matrices of ", tiles, " tiles, want at most 2^31 tiles"));
  }
  parameters.tiles = static_cast<int>(tiles * batch);
  parameters.blocks = std::min(parameters.tiles, std::max(1, args.target.multiprocessors) *
                                                     BlocksPerMultiprocessor(row, chip));
  return absl::OkStatus();
}

// Everything but the addresses.
void SetFactors(const CudaRow& row, const Problem& problem, const FactorPlan& plan,
                FactorParameters& parameters) {
  const auto of_matrix = [&plan](const FactorPlan::Lines& lines) {
    return lines.matrices == 1 ? 0 : lines.floats(plan.promotions);
  };
  const BlockScale* const of_b = problem.blocks_of_b();
  parameters.a_of_matrix = of_matrix(plan.a);
  parameters.b_of_matrix = of_matrix(plan.b);
  parameters.a_lines = plan.a.lines;
  parameters.b_lines = plan.b.lines;
  parameters.are_columns_shared =
      of_b == nullptr || of_b->lines % ColumnsOfFactor(row) == 0 || of_b->lines >= problem.n;
}

absl::Status SetParameters(const CudaRow& row, mma::Chip chip, const GemmArgs& args,
                           const CudaPlan& plan, MmaParameters& parameters) {
  const Problem& problem = args.problem;
  const int64_t tiles_m = TilesDown(row, problem.m);
  const int64_t tiles_n = DivideUp(problem.n, row.tile.n);
  const int64_t tiles_k = DivideUp(problem.k, row.tile.k);
  const int64_t steps = tiles_k * StepsOfTile(row);
  if (tiles_m > kMaxBlocks / tiles_n || steps > kMaxBlocks / kBytesOfStep) {
    return absl::ResourceExhaustedError(Concat("d: got ", problem.m, "x", problem.n,
                                               " and k = ", problem.k,
                                               ", want at most 2^31 tiles of ", row.tile.m, "x",
                                               row.tile.n, " and steps of ", row.instruction.k));
  }
  ASSIGN_OR_RETURN(parameters.a, LinesOf("a", plan.a));
  ASSIGN_OR_RETURN(parameters.b, LinesOf("b", plan.b));
  parameters.metadata_batch_stride_words = plan.metadata_batch_stride_bytes / 4;
  parameters.metadata_steps = static_cast<int>(steps / StepsOfMetadata(row));
  parameters.steps = static_cast<int>(DivideUp(problem.k, row.instruction.k));
  parameters.tiles_m = static_cast<int>(tiles_m);
  parameters.tiles_n = static_cast<int>(tiles_n);
  parameters.tiles_k = static_cast<int>(tiles_k);
  parameters.finishes_sums =
      HasWarpgroups(row) && !plan.sums.are_kept && !StoresDirectly(problem, AccumulatorType(row));
  SetFactors(row, problem, plan.factors, parameters.factors);
  const Places places = PlacesOf(args, plan);
  SetAddresses(row, plan, args, places, parameters);
  if (HasRingOn(row, chip)) {
    RETURN_IF_ERROR(MakeTileMaps(row, chip, plan, problem, parameters));
  }
  if (!HasWarpgroups(row)) return absl::OkStatus();
  if (!IsNarrow(row)) RETURN_IF_ERROR(SetStore(row, args, plan, places, parameters));
  return SetTiles(row, chip, args, parameters);
}

// How blocks are launched; a launch adds the stream, the attributes' address and, for rows without
// warpgroups, its matrices.
void SetConfig(PreparedLaunch& prepared) {
  const CudaRow& row = prepared.row();
  const mma::Chip chip = prepared.code.chip;
  const MmaParameters& parameters = prepared.parameters;
  const int blocks =
      HasWarpgroups(row) ? parameters.blocks : parameters.tiles_m * parameters.tiles_n;
  unsigned count = 0;
  if (BeginsEarly(row, chip)) {
    prepared.attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    prepared.attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (const auto cluster = static_cast<unsigned>(ClusterOn(row, chip)); cluster > 1) {
    prepared.attributes[count].id = cudaLaunchAttributeClusterDimension;
    prepared.attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  prepared.config = {.gridDim = dim3(static_cast<unsigned>(blocks)),
                     .blockDim = dim3(static_cast<unsigned>(ThreadsOfBlock(row, chip))),
                     .dynamicSmemBytes = static_cast<size_t>(SharedBytes(row)),
                     .stream = nullptr,
                     .attrs = nullptr,
                     .numAttrs = count};
}

absl::Status Clear(std::byte* begin, std::byte* end, CUstream_st* stream) {
  return CudaStatus(cudaMemsetAsync(begin, 0, static_cast<size_t>(end - begin), stream), "split");
}

// Zeroes the memory of the split; parts that are adjacent in the workspace with one call.
absl::Status ClearForSplit(const GemmArgs& args, const CudaPlan& plan, const Places& places,
                           CUstream_st* stream) {
  const bool has_a_form = args.a_form.bytes != nullptr;
  const bool has_b_form = args.b_form.bytes != nullptr;
  std::byte* const marks = reinterpret_cast<std::byte*>(places.split.any);
  std::byte* const a_begin = places.a + plan.split.a_ranges_offset;
  std::byte* const a_end = places.a + plan.a_workspace_bytes;
  std::byte* const b_end = places.b + plan.split.b_ranges_bytes;
  RETURN_IF_ERROR(
      Clear(has_a_form ? marks : a_begin, has_b_form ? marks + plan.split.bytes : b_end, stream));
  if (has_a_form && !args.a_form.is_made) RETURN_IF_ERROR(Clear(a_begin, a_end, stream));
  if (!has_b_form || args.b_form.is_made) return absl::OkStatus();
  return Clear(places.b, b_end, stream);
}

// Derives data from A and B, unless an earlier launch did.
absl::Status PrepareOperands(const PreparedLaunch& prepared, const GemmArgs& args,
                             const Places& places, CUstream_st* stream) {
  const CudaRow& row = prepared.row();
  const CudaPlan& plan = prepared.plan;
  absl::InlinedVector<PackedOperand, 2> used;
  if (!args.a_form.is_made) used.push_back({mma::Operand::kA, plan.a, args.a, places.a});
  if (!args.b_form.is_made) used.push_back({mma::Operand::kB, plan.b, args.b, places.b});
  if (row.splits_f32) {
    for (const PackedOperand& one : used) {
      const bool is_a = one.operand == mma::Operand::kA;
      std::byte* const ranges = is_a ? one.made + plan.split.a_ranges_offset : one.made;
      RETURN_IF_ERROR(SplitOperand(row, one.operand, args.problem, one.plan, one.source, one.made,
                                   reinterpret_cast<MagnitudeRange*>(ranges), stream));
    }
    return absl::OkStatus();
  }
  absl::InlinedVector<PackedOperand, 2> packed;
  for (const PackedOperand& one : used) {
    if (one.plan.is_packed) packed.push_back(one);
  }
  RETURN_IF_ERROR(PackOperands(row, args.problem, packed, stream));
  if (args.a_form.is_made || !row.instruction.is_sparse()) return absl::OkStatus();
  return RepackMetadata(row, args.problem, plan, args.a, places.a, stream);
}

// Launches the kernel, once for as many matrices as fit a grid; changes `parameters` for each
// launch.
absl::Status LaunchProduct(std::string_view name, const PreparedLaunch& prepared,
                           MmaParameters& parameters, int64_t batch, CUstream_st* stream) {
  const bool is_persistent = HasWarpgroups(prepared.row());
  std::array<cudaLaunchAttribute, 2> attributes = prepared.attributes;
  cudaLaunchConfig_t config = prepared.config;
  config.stream = stream;
  config.attrs = attributes.data();
  for (int64_t first = 0; first < batch; first += is_persistent ? batch : kMaxBatches) {
    parameters.first_batch = first;
    if (!is_persistent) {
      config.gridDim.z = static_cast<unsigned>(std::min(batch - first, kMaxBatches));
    }
    void* arguments[] = {&parameters};
    RETURN_IF_ERROR(
        CudaStatus(cudaLaunchKernelExC(&config, prepared.code.function, arguments), name));
  }
  return absl::OkStatus();
}

// The arguments of the transposed problem.
GemmArgs TransposedArgs(const GemmArgs& args, const Problem& transposed) {
  return {.problem = transposed,
          .target = args.target,
          .a = args.b,
          .b = args.a,
          .c = args.c,
          .bias = args.bias,
          .a_scale = args.b_scale,
          .b_scale = args.a_scale,
          .d = args.d,
          .workspace = args.workspace,
          .abort = args.abort,
          .abort_word = args.abort_word,
          .a_form = args.b_form,
          .b_form = args.a_form,
          .a_factors = args.b_factors,
          .b_factors = args.a_factors};
}

GemmArgs ArgsOf(const PreparedLaunch& prepared, const GemmArgs& args) {
  const Multiplication& multiplication = prepared.multiplication;
  return multiplication.is_transposed ? TransposedArgs(args, multiplication.problem) : args;
}

absl::StatusOr<std::shared_ptr<const PreparedLaunch>> Prepare(const Kernel& kernel,
                                                              const GemmArgs& args) {
  auto prepared = std::make_shared<PreparedLaunch>(
      PreparedLaunch{.multiplication = MultiplicationOf(*CudaRowOf(kernel), args.problem),
                     .code = {},
                     .plan = {}});
  const CudaRow& row = prepared->row();
  ASSIGN_OR_RETURN(prepared->code, CodeOf(kernel.name, row));
  const GemmArgs multiplied = ArgsOf(*prepared, args);
  ASSIGN_OR_RETURN(prepared->plan, PlanOf(row, multiplied.problem));
  if (row.splits_f32 && !prepared->plan.split.is_used) return prepared;
  RETURN_IF_ERROR(
      SetParameters(row, prepared->code.chip, multiplied, prepared->plan, prepared->parameters));
  SetConfig(*prepared);
  return prepared;
}

// Planning and encoding maps takes as long as a launch, so it is cached per problem.
absl::StatusOr<std::shared_ptr<const PreparedLaunch>> FindOrPrepare(const Kernel& kernel,
                                                                    const GemmArgs& args) {
  static auto* const recent = new RecentProblems<PreparedLaunch>();  // Never destroyed.
  LaunchKey key = {.row = CudaRowOf(kernel),
                   .gpu = 0,
                   .multiprocessors = args.target.multiprocessors,
                   .problem = &args.problem};
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&key.gpu), "GPU"));
  std::shared_ptr<const PreparedLaunch> prepared = recent->Find(key);
  if (prepared != nullptr) return prepared;
  ASSIGN_OR_RETURN(prepared, Prepare(kernel, args));
  recent->Keep(key, prepared);
  return prepared;
}

// Launches the kernel that multiplies packed weights in place of the row's own.
absl::Status LaunchWeights(std::string_view name, const PreparedLaunch& prepared,
                           const WeightsPlan& weights, const MmaParameters& product,
                           int multiprocessors, CUstream_st* stream) {
  ASSIGN_OR_RETURN(const WeightsKernel kernel, WeightsKernelOf(prepared.row()));
  WeightsParameters parameters = {.product = product,
                                  .weights = product.a.data,
                                  .bytes_of_tile = weights.bytes_of_tile(),
                                  .stages = static_cast<int>(weights.chunks / kWeightChunks)};
  parameters.product.blocks =
      std::min(product.tiles, std::max(1, multiprocessors) * kernel.blocks_of_multiprocessor);
  cudaLaunchConfig_t config = {.gridDim = dim3(static_cast<unsigned>(parameters.product.blocks)),
                               .blockDim = dim3(static_cast<unsigned>(kernel.threads)),
                               .dynamicSmemBytes = static_cast<size_t>(kernel.shared_bytes),
                               .stream = stream,
                               .attrs = nullptr,
                               .numAttrs = 0};
  void* arguments[] = {&parameters};
  return CudaStatus(cudaLaunchKernelExC(&config, kernel.function, arguments), name);
}

// If the multiplied A are packed weights, `weights` describes them.
absl::Status LaunchPrepared(std::string_view name, const PreparedLaunch& prepared,
                            const GemmArgs& args, const WeightsPlan* weights, CUstream_st* stream) {
  const CudaRow& row = prepared.row();
  const CudaPlan& plan = prepared.plan;
  const int64_t of_forms = (args.a_form.bytes != nullptr ? plan.a_workspace_bytes : 0) +
                           (args.b_form.bytes != nullptr ? plan.b_workspace_bytes : 0);
  const auto workspace_bytes = static_cast<int64_t>(args.workspace.size());
  if (plan.workspace_bytes - of_forms > workspace_bytes) {
    return absl::InternalError(GotWant("workspace", Concat(workspace_bytes, " bytes"),
                                       Concat(plan.workspace_bytes - of_forms)));
  }
  const Places places = PlacesOf(args, plan);
  if (!row.splits_f32 || plan.split.is_used) {
    MmaParameters parameters = prepared.parameters;
    SetAddresses(row, plan, args, places, parameters);
    RETURN_IF_ERROR(MoveMaps(prepared, args, places, parameters));
    if (row.splits_f32) RETURN_IF_ERROR(ClearForSplit(args, plan, places, stream));
    RETURN_IF_ERROR(PrepareOperands(prepared, args, places, stream));
    if (plan.factors.is_used()) {
      RETURN_IF_ERROR(LayOutFactors(args.problem, plan.factors, args.a_factors, args.b_factors,
                                    places.factors, stream));
    }
    RETURN_IF_ERROR(weights != nullptr
                        ? LaunchWeights(name, prepared, *weights, parameters,
                                        args.target.multiprocessors, stream)
                        : LaunchProduct(name, prepared, parameters, args.problem.batch, stream));
  }
  if (row.splits_f32) RETURN_IF_ERROR(LaunchExactSums(args, places.split, places.sums, stream));
  if (!plan.sums.are_kept) return absl::OkStatus();
  return LaunchEpilogueAlone(args, AccumulatorType(row), places.sums, stream);
}

// Makes what a product multiplies in place of an operand: its elements in 16 bits, or, if
// `weights` are given, the packed weights.
absl::Status MakeDequantized(const GemmArgs& args, const Dequantization& made,
                             const WeightsPlan* weights, mma::Operand operand, std::byte* target,
                             CUstream_st* stream) {
  if (target == nullptr) return absl::OkStatus();
  const bool is_a = operand == mma::Operand::kA;
  const std::byte* const source = is_a ? args.a : args.b;
  const std::byte* const factors = is_a ? args.a_factors : args.b_factors;
  if (weights != nullptr) {
    return PackWeights(args.problem, operand, *weights, source, factors, target, stream);
  }
  return DequantizeOnStream(DequantizeJobOf(args.problem, made, operand, source, factors, target),
                            stream);
}

// Dequantizes the operands, or packs the weights, and multiplies them.
absl::Status LaunchDequantizedOnStream(const Kernel& kernel, const GemmArgs& args,
                                       CUstream_st* stream) {
  const Problem& problem = args.problem;
  ASSIGN_OR_RETURN(const Dequantization made, DequantizationBy(kernel, problem));
  std::optional<WeightsPlan> weights;
  if (made.packs_weights) {
    weights = WeightsPlanOf(made.a_bytes > 0 ? problem.m : problem.n, problem.k);
  }
  const WeightsPlan* const plan = weights ? &*weights : nullptr;
  ASSIGN_OR_RETURN(const DequantizedProduct product, DequantizedProductOf(args, made));
  RETURN_IF_ERROR(MakeDequantized(args, made, plan, mma::Operand::kA, product.a, stream));
  RETURN_IF_ERROR(MakeDequantized(args, made, plan, mma::Operand::kB, product.b, stream));
  if (plan == nullptr) return LaunchOnStream(kernel, *product.args, stream);
  ASSIGN_OR_RETURN(const std::shared_ptr<const PreparedLaunch> prepared,
                   FindOrPrepare(kernel, *product.args));
  return LaunchPrepared(kernel.name, *prepared, ArgsOf(*prepared, *product.args), plan, stream);
}

}  // namespace

bool HasCode(const Kernel& kernel) {
  const bool has_code = CodeOf(kernel.name, *CudaRowOf(kernel)).ok();
  cudaGetLastError();  // Clears the error: lacking the code is a valid answer.
  return has_code;
}

absl::Status LaunchOnStream(const Kernel& kernel, const GemmArgs& args, CUstream_st* stream) {
  if (Dequantizes(kernel, args.problem)) return LaunchDequantizedOnStream(kernel, args, stream);
  if (!args.problem.has_output() || !args.problem.has_product()) {
    const CudaRow& row = *CudaRowOf(kernel);
    RETURN_IF_ERROR(CodeOf(kernel.name, row).status());
    if (!args.problem.has_output()) return absl::OkStatus();
    return LaunchEpilogueAlone(args, AccumulatorType(row), SumsInMemory(), stream);
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const PreparedLaunch> prepared,
                   FindOrPrepare(kernel, args));
  return LaunchPrepared(kernel.name, *prepared, ArgsOf(*prepared, args), nullptr, stream);
}

}  // namespace gemmd
