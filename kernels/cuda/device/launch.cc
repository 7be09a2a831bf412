// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/launch.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "kernels/cuda/device/epilogue/epilogue_alone.h"
#include "kernels/cuda/device/epilogue/exact_sums.h"
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mma_parameters.h"
#include "kernels/cuda/device/operands/metadata.h"
#include "kernels/cuda/device/operands/pack.h"
#include "kernels/cuda/device/operands/split.h"
#include "kernels/cuda/device/runtime.h"
#include "kernels/cuda/device/tile_map.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/row_table.h"
#include "kernels/cuda/rows.h"
#include "kernels/mma/find.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();
constexpr int kBytesOfStep = 32 * sizeof(uint32_t);  // Metadata of a row of instructions.
constexpr int64_t kMostBatches = 65535;  // A launch has no more: the grid's third extent.

using FunctionTable = std::unordered_map<const CudaRow*, const void*>;

FunctionTable MakeFunctionTable() {
  FunctionTable table;
  const auto add = [&](std::span<const CudaFunction> group) {
    for (const CudaFunction& entry : group) {
      for (const CudaRow& row : kCudaRows) {
        if (row == entry.row) table[&row] = entry.function;
      }
    }
  };
  const auto add_all = [&]<size_t... kAt>(std::index_sequence<kAt...>) {
    (add(FunctionsOf<static_cast<CudaGroup>(kAt)>()), ...);
  };
  add_all(std::make_index_sequence<kCudaGroups>());
  return table;
}

const void* FunctionOf(const CudaRow& row) {
  static const auto* const table = new FunctionTable(MakeFunctionTable());  // Never destroyed.
  const auto entry = table->find(&row);
  return entry == table->end() ? nullptr : entry->second;
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
  // For a chip that lacks the instruction there is a function, but it is empty.
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

// What was found once stays so: to ask CUDA takes as long as to launch.
absl::StatusOr<Code> CodeOf(std::string_view name, const CudaRow& row) {
  using Found = std::map<std::pair<int, const CudaRow*>, Code>;
  static auto* const found = new Found();  // Never destroyed.
  static std::mutex mutex;
  int gpu = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&gpu), "GPU"));
  const std::lock_guard lock(mutex);
  if (const auto known = found->find({gpu, &row}); known != found->end()) return known->second;
  ASSIGN_OR_RETURN(const Code code, FindCode(name, row));
  found->emplace(std::pair(gpu, &row), code);
  return code;
}

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Where the parts of a launch's workspace begin, and what is made of operands elsewhere.
struct MadeOf {
  std::byte* memory = nullptr;
  bool is_form = false;  // It is no part of the workspace.
  bool is_made = false;
};
struct Parts {
  MadeOf a;
  std::byte* split = nullptr;
  MadeOf b;
  std::byte* sums = nullptr;
};

Parts PartsOf(const GemmArgs& args, const CudaPlan& plan) {
  std::byte* next = args.workspace.data();
  const auto take = [&next](int64_t bytes) { return std::exchange(next, next + bytes); };
  const auto made = [&](const OperandForm& form, int64_t bytes) {
    if (form.bytes == nullptr) return MadeOf{.memory = take(bytes)};
    return MadeOf{.memory = form.bytes, .is_form = true, .is_made = form.is_made};
  };
  Parts parts;
  parts.a = made(args.a_form, plan.a_workspace_bytes);
  parts.split = take(plan.split.bytes);
  parts.b = made(args.b_form, plan.b_workspace_bytes);
  parts.sums = next;
  return parts;
}

absl::StatusOr<OperandLines> LinesOf(std::string_view field, const OperandPlan& plan,
                                     const std::byte* data, const std::byte* made) {
  if (plan.lines > kMostBlocks || plan.line_stride_bytes > kMostLineBytes) {
    return absl::ResourceExhaustedError(Concat(field, ": got ", plan.lines, " lines of ",
                                               plan.line_bytes,
                                               " bytes, want at most 2^31 - 1 of less than 2^31"));
  }
  return OperandLines{.data = plan.is_packed ? made + plan.offset : data,
                      .batch_stride_bytes = plan.batch_stride_bytes,
                      .lines = static_cast<int>(plan.lines),
                      .line_bytes = static_cast<int>(plan.line_bytes),
                      .line_stride_bytes = static_cast<int>(plan.line_stride_bytes)};
}

TileBox BoxOf(const TileLines& tile, int parts) {
  return {.line_bytes = tile.line_bytes, .lines = tile.lines / parts, .is_swizzled = true};
}

// Where f32 are split, each matrix is two for the copy engine.
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

// What the copy engine writes for a row of warpgroups.
absl::Status SetStore(const CudaRow& row, const GemmArgs& args, const CudaPlan& plan,
                      std::byte* kept_sums, MmaParameters& parameters) {
  const Problem& problem = args.problem;
  const SumsPlan& sums = plan.sums;
  parameters.stored_type = sums.are_kept ? AccumulatorType(row) : problem.d.type;
  parameters.stored_alpha =
      sums.are_kept || parameters.finishes_sums ? 1 : static_cast<float>(problem.alpha);
  const int element_bytes = BitsOf(parameters.stored_type) / 8;
  const int64_t stride = sums.are_kept ? sums.line_stride_bytes : problem.d.line_stride_bytes();
  if (problem.m > kMostBlocks || stride > kMostLineBytes) {
    return absl::ResourceExhaustedError(Concat("d: got ", problem.m, " lines every ", stride,
                                               " bytes, want at most 2^31 - 1 every 2^31"));
  }
  const OperandLines lines = {
      .data = sums.are_kept ? kept_sums : args.d,
      .batch_stride_bytes = sums.are_kept ? sums.batch_stride_bytes : problem.d.batch_stride_bytes,
      .lines = static_cast<int>(problem.m),
      .line_bytes = static_cast<int>(problem.n * element_bytes),
      .line_stride_bytes = static_cast<int>(stride)};
  const TileBox box = {.line_bytes = kBlockOfRowBytes,
                       .lines = row.instruction_rows(),
                       .is_swizzled = true,
                       .element_bytes = element_bytes,
                       .line_multiple = element_bytes};
  ASSIGN_OR_RETURN(parameters.d_map, TileMapOf(lines, box, problem.batch));
  return absl::OkStatus();
}

// Sums that a narrow row leaves in the workspace.
EpilogueParameters EpilogueOfSums(const CudaRow& row, const GemmArgs& args, const SumsPlan& sums,
                                  std::byte* kept_sums) {
  EpilogueParameters parameters;
  parameters.m = args.problem.m;
  parameters.n = args.problem.n;
  parameters.d = {.data = kept_sums,
                  .line_stride_bytes = sums.line_stride_bytes,
                  .batch_stride_bytes = sums.batch_stride_bytes,
                  .type = AccumulatorType(row),
                  .order = Order::kRowMajor};
  parameters.stores_directly = true;
  parameters.pairs_are_aligned = true;
  return parameters;
}

// The tiles of all matrices, and the blocks that share them: one on each multiprocessor.
absl::Status SetTiles(const GemmArgs& args, MmaParameters& parameters) {
  const int64_t tiles = int64_t{parameters.tiles_m} * parameters.tiles_n;
  const int64_t batch = args.problem.batch;
  if (batch > kMostBlocks / tiles) {
    return absl::ResourceExhaustedError(
        Concat("batch: got ", batch, " matrices of ", tiles, " tiles, want at most 2^31 tiles"));
  }
  parameters.tiles = static_cast<int>(tiles * batch);
  parameters.blocks = std::min(parameters.tiles, std::max(1, args.target.multiprocessors));
  return absl::OkStatus();
}

SplitParameters SplitParametersOf(const GemmArgs& args, const CudaPlan& plan, const Parts& parts) {
  const SplitPlan& split = plan.split;
  return {
      .a_ranges = reinterpret_cast<const MagnitudeRange*>(parts.a.memory + split.a_ranges_offset),
      .b_ranges = reinterpret_cast<const MagnitudeRange*>(parts.b.memory),
      .a_ranges_of_matrix = plan.a.batch_stride_bytes == 0 ? 0 : RangesOf(plan.a.lines),
      .b_ranges_of_matrix = plan.b.batch_stride_bytes == 0 ? 0 : RangesOf(plan.b.lines),
      .any = reinterpret_cast<uint32_t*>(parts.split),
      .marks = reinterpret_cast<uint32_t*>(parts.split + split.marks_offset),
      .words_of_row = split.words_of_row,
      .k = args.problem.k,
  };
}

absl::StatusOr<MmaParameters> ParametersOf(const CudaRow& row, mma::Chip chip, const GemmArgs& args,
                                           const CudaPlan& plan, const Parts& parts) {
  const Problem& problem = args.problem;
  const int64_t tiles_m = TilesDown(row, problem.m);
  const int64_t tiles_n = DivideUp(problem.n, row.tile.n);
  const int64_t tiles_k = DivideUp(problem.k, row.tile.k);
  const int64_t steps = tiles_k * StepsOfTile(row);
  if (tiles_m > kMostBlocks / tiles_n || steps > kMostBlocks / kBytesOfStep) {
    return absl::ResourceExhaustedError(Concat("d: got ", problem.m, "x", problem.n,
                                               " and k = ", problem.k,
                                               ", want at most 2^31 tiles of ", row.tile.m, "x",
                                               row.tile.n, " and steps of ", row.instruction.k));
  }
  MmaParameters parameters;
  ASSIGN_OR_RETURN(parameters.a, LinesOf("a", plan.a, args.a, parts.a.memory));
  ASSIGN_OR_RETURN(parameters.b, LinesOf("b", plan.b, args.b, parts.b.memory));
  parameters.metadata = reinterpret_cast<const uint32_t*>(parts.a.memory + plan.metadata_offset);
  parameters.metadata_batch_stride_words = plan.metadata_batch_stride_bytes / 4;
  parameters.metadata_steps = static_cast<int>(steps / StepsOfMetadata(row));
  parameters.steps = static_cast<int>(DivideUp(problem.k, row.instruction.k));
  parameters.tiles_m = static_cast<int>(tiles_m);
  parameters.tiles_n = static_cast<int>(tiles_n);
  parameters.tiles_k = static_cast<int>(tiles_k);
  parameters.first_batch = 0;
  parameters.abort = args.abort_word;
  parameters.epilogue = EpilogueOf(args, AccumulatorType(row));
  if (HasRingOn(row, chip)) {
    RETURN_IF_ERROR(MakeTileMaps(row, chip, plan, problem, parameters));
  }
  if (!HasWarpgroups(row)) return parameters;
  parameters.finishes_sums = !plan.sums.are_kept && !StoresDirectly(problem, AccumulatorType(row));
  // What is finished has been multiplied by alpha.
  if (parameters.finishes_sums) parameters.epilogue.alpha_f32 = 1;
  if (!IsNarrow(row)) {
    RETURN_IF_ERROR(SetStore(row, args, plan, parts.sums, parameters));
  } else if (plan.sums.are_kept) {
    parameters.epilogue = EpilogueOfSums(row, args, plan.sums, parts.sums);
  }
  RETURN_IF_ERROR(SetTiles(args, parameters));
  if (row.splits_f32) parameters.split = SplitParametersOf(args, plan, parts);
  return parameters;
}

absl::Status Clear(std::byte* begin, std::byte* end, CUstream_st* stream) {
  return CudaStatus(cudaMemsetAsync(begin, 0, static_cast<size_t>(end - begin), stream), "split");
}

// Sets to zero what the split wants so: in the workspace, where that lies together, at once.
absl::Status ClearForSplit(const CudaPlan& plan, const Parts& parts, CUstream_st* stream) {
  const SplitPlan& split = plan.split;
  std::byte* const a_begin = parts.a.memory + split.a_ranges_offset;
  std::byte* const a_end = parts.a.memory + plan.a_workspace_bytes;
  std::byte* const b_end = parts.b.memory + split.b_ranges_bytes;
  RETURN_IF_ERROR(Clear(parts.a.is_form ? parts.split : a_begin,
                        parts.b.is_form ? parts.split + split.bytes : b_end, stream));
  if (parts.a.is_form && !parts.a.is_made) RETURN_IF_ERROR(Clear(a_begin, a_end, stream));
  if (!parts.b.is_form || parts.b.is_made) return absl::OkStatus();
  return Clear(parts.b.memory, b_end, stream);
}

absl::Status SplitOperands(const CudaRow& row, const GemmArgs& args, const CudaPlan& plan,
                           const Parts& parts, CUstream_st* stream) {
  RETURN_IF_ERROR(ClearForSplit(plan, parts, stream));
  if (!parts.a.is_made) {
    std::byte* const ranges = parts.a.memory + plan.split.a_ranges_offset;
    RETURN_IF_ERROR(SplitOperand(row, mma::Operand::kA, args.problem, plan.a, args.a,
                                 parts.a.memory, reinterpret_cast<MagnitudeRange*>(ranges),
                                 stream));
  }
  if (parts.b.is_made) return absl::OkStatus();
  return SplitOperand(row, mma::Operand::kB, args.problem, plan.b, args.b, parts.b.memory,
                      reinterpret_cast<MagnitudeRange*>(parts.b.memory), stream);
}

absl::Status PrepareOperands(const CudaRow& row, const GemmArgs& args, const CudaPlan& plan,
                             const Parts& parts, CUstream_st* stream) {
  if (row.splits_f32) return SplitOperands(row, args, plan, parts, stream);
  if (plan.a.is_packed && !parts.a.is_made) {
    RETURN_IF_ERROR(
        PackOperand(row, mma::Operand::kA, args.problem, plan.a, args.a, parts.a.memory, stream));
  }
  if (plan.b.is_packed && !parts.b.is_made) {
    RETURN_IF_ERROR(
        PackOperand(row, mma::Operand::kB, args.problem, plan.b, args.b, parts.b.memory, stream));
  }
  if (!row.instruction.is_sparse() || parts.a.is_made) return absl::OkStatus();
  return RepackMetadata(row, args.problem, plan, args.a, parts.a.memory, stream);
}

// Makes one launch for as many matrices as a grid has room for; changes `parameters` for each.
absl::Status LaunchProduct(std::string_view name, const CudaRow& row, const Code& code,
                           MmaParameters& parameters, int64_t batch, CUstream_st* stream) {
  const auto blocks_of_cluster = static_cast<unsigned>(ClusterOn(row, code.chip));
  const auto threads = static_cast<unsigned>(ThreadsOfBlock(row, code.chip));
  const bool is_persistent = HasWarpgroups(row);
  for (int64_t first = 0; first < batch; first += is_persistent ? batch : kMostBatches) {
    parameters.first_batch = first;
    const int64_t batches = batch - first < kMostBatches ? batch - first : kMostBatches;
    const dim3 grid = is_persistent
                          ? dim3(static_cast<unsigned>(parameters.blocks))
                          : dim3(static_cast<unsigned>(parameters.tiles_m * parameters.tiles_n), 1,
                                 static_cast<unsigned>(batches));
    void* arguments[] = {&parameters};
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (BeginsEarly(row, code.chip)) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (blocks_of_cluster > 1) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count++].val.clusterDim = {blocks_of_cluster, 1, 1};
    }
    const cudaLaunchConfig_t launch = {.gridDim = grid,
                                       .blockDim = dim3(threads),
                                       .dynamicSmemBytes = static_cast<size_t>(SharedBytes(row)),
                                       .stream = stream,
                                       .attrs = attributes,
                                       .numAttrs = count};
    RETURN_IF_ERROR(CudaStatus(cudaLaunchKernelExC(&launch, code.function, arguments), name));
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
          .b_form = args.a_form};
}

absl::Status LaunchAsMultiplied(std::string_view name, const CudaRow& row, const GemmArgs& args,
                                CUstream_st* stream) {
  ASSIGN_OR_RETURN(const Code code, CodeOf(name, row));
  if (!args.problem.has_output()) return absl::OkStatus();
  if (!args.problem.has_product()) {
    return LaunchEpilogueAlone(args, AccumulatorType(row), SumsInMemory(), stream);
  }
  ASSIGN_OR_RETURN(const CudaPlan plan, PlanOf(row, args.problem));
  const Parts parts = PartsOf(args, plan);
  SumsInMemory sums;
  if (plan.sums.are_kept) {
    sums = {.data = parts.sums,
            .line_stride_bytes = plan.sums.line_stride_bytes,
            .batch_stride_bytes = plan.sums.batch_stride_bytes};
  }
  ExactMarks marks;
  if (!row.splits_f32 || plan.split.is_used) {
    ASSIGN_OR_RETURN(MmaParameters parameters, ParametersOf(row, code.chip, args, plan, parts));
    RETURN_IF_ERROR(PrepareOperands(row, args, plan, parts, stream));
    RETURN_IF_ERROR(LaunchProduct(name, row, code, parameters, args.problem.batch, stream));
    marks = {.any = parameters.split.any,
             .marks = parameters.split.marks,
             .words_of_row = parameters.split.words_of_row};
  }
  if (row.splits_f32) RETURN_IF_ERROR(LaunchExactSums(args, marks, sums, stream));
  if (!plan.sums.are_kept) return absl::OkStatus();
  return LaunchEpilogueAlone(args, AccumulatorType(row), sums, stream);
}

}  // namespace

bool HasCode(const Kernel& kernel) {
  const bool has_code = CodeOf(kernel.name, *CudaRowOf(kernel)).ok();
  cudaGetLastError();  // Clears the error: having no code is an answer.
  return has_code;
}

absl::Status LaunchOnStream(const Kernel& kernel, const GemmArgs& args, CUstream_st* stream) {
  const Multiplication multiplied = MultiplicationOf(*CudaRowOf(kernel), args.problem);
  return LaunchAsMultiplied(
      kernel.name, multiplied.row,
      multiplied.is_transposed ? TransposedArgs(args, multiplied.problem) : args, stream);
}

}  // namespace gemmd
