// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/operands/pack_jobs.h"

#include <bit>

#include "kernels/cuda/geometry.h"
#include "kernels/matrix/status.h"

namespace gemmd {

absl::StatusOr<OperandPacking> PackingOf(const CudaRow& row, mma::Operand operand,
                                         const Problem& problem, const OperandPlan& plan,
                                         const std::byte* source, std::byte* made) {
  const bool is_a = operand == mma::Operand::kA;
  const MatrixLayout& layout = is_a ? problem.a : problem.b;
  const LineAxis axis = LineAxisOf(row, operand);
  ASSIGN_OR_RETURN(const ByteCount bytes, BytesOf(is_a ? "a" : "b", layout, problem.batch));
  OperandPacking packing;
  PackJob& job = packing.job;
  job.source = source;
  job.source_end = source + bytes.least;
  job.target = made + plan.offset;
  job.source_batch_stride = layout.batch_stride_bytes;
  job.target_line_stride = plan.line_stride_bytes;
  job.target_batch_stride = plan.batch_stride_bytes;
  job.lines = plan.lines;
  job.batch = plan.batch_stride_bytes == 0 ? 1 : problem.batch;
  if (layout.is_sparse()) {
    ASSIGN_OR_RETURN(const SparseLayout sparse,
                     SparseLayoutOf("a", layout.type, layout.rows, layout.columns));
    job.source_line_stride = sparse.value_line_bytes;
    job.length = sparse.kept();
    packing.lies_along = true;
  } else {
    job.source_line_stride = layout.line_stride_bytes();
    job.length = axis == LineAxis::kK ? problem.k : is_a ? problem.m : problem.n;
    packing.lies_along = AxisInMemory(operand, layout) == axis;
  }
  packing.bits = BitsOf(layout.type);
  packing.container = mma::ContainerBits(row.instruction, operand);
  packing.shift = mma::ContainerShift(row.instruction, operand);
  return packing;
}

absl::StatusOr<MetadataJob> MetadataJobOf(const CudaRow& row, const Problem& problem,
                                          const CudaPlan& plan, const std::byte* a,
                                          std::byte* made) {
  const mma::Instruction& instruction = row.instruction;
  ASSIGN_OR_RETURN(const SparseLayout sparse,
                   SparseLayoutOf("a", problem.a.type, problem.m, problem.k));
  MetadataJob job;
  const int steps_of_word = StepsOfMetadata(row);
  for (int lane = 0; lane < kLanes; ++lane) {
    job.lanes[lane] = MetadataLaneOf(instruction, steps_of_word, lane);
  }
  job.together_bits = std::countr_zero(static_cast<unsigned>(MetadataWordsTogether(row)));
  job.rows_of_tile = kMetadataRows;
  job.has_two_indices = sparse.form.kept_units() == 2;
  for (uint32_t index = 0; index < 2; ++index) {
    job.nibbles_of_one_index |= NibbleOfPlaces(instruction, sparse.form, index, index) << 4 * index;
  }
  job.nibble_beyond = NibbleOfPlaces(instruction, sparse.form, 0, job.has_two_indices ? 1 : 0);
  job.indices = a + sparse.indices_offset(0);
  job.words = reinterpret_cast<uint32_t*>(made + plan.metadata_offset);
  job.index_line_bytes = sparse.index_line_bytes;
  job.source_batch_stride = problem.a.batch_stride_bytes;
  job.rows = problem.m;
  job.groups = sparse.groups;
  job.groups_of_step = steps_of_word * mma::MetadataGroups(instruction);
  job.steps_of_bytes = job.has_two_indices ? job.groups / job.groups_of_step : 0;
  job.tiles = TilesDown(row, problem.m) * (row.tile.m / kMetadataRows);
  job.steps = CeilOf(problem.k, row.tile.k) * (StepsOfTile(row) / steps_of_word);
  job.batch = plan.metadata_batch_stride_bytes == 0 ? 1 : problem.batch;
  return job;
}

}  // namespace gemmd
