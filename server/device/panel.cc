// SPDX-License-Identifier: Apache-2.0
#include "server/device/panel.h"

#include <algorithm>

#include "kernels/checked.h"
#include "kernels/sparse24.h"

namespace gemmd {
namespace {

using Extent = Panel::Extent;

int64_t BytesBefore(ElementType type, int64_t elements) { return elements / 8 * BitsOf(type); }

// Shrinks the layout to a part, and moves the place to where it begins.
void Narrow(MatrixLayout& layout, JobPlace& place, const Extent& matrices, const Extent& rows,
            const Extent& columns) {
  const MatrixLayout whole = layout;
  layout.rows = rows.count;
  layout.columns = columns.count;
  // Nothing bounds the strides of what has no elements.
  if (whole.empty()) return;
  place.offset += matrices.first * whole.batch_stride_bytes;
  // The values and the indices of sparse rows lie apart.
  if (whole.is_sparse()) {
    const bool is_divided = rows.count < whole.rows;
    const auto part = SparseLayoutOf("a", whole.type, rows.count, columns.count);
    if (is_divided && part.ok()) layout.batch_stride_bytes = part->bytes;
    return;
  }
  const bool is_row_major = whole.order == Order::kRowMajor;
  const Extent& across = is_row_major ? rows : columns;
  const Extent& along = is_row_major ? columns : rows;
  place.offset += across.first * whole.line_stride_bytes() + BytesBefore(whole.type, along.first);
  if (along.count == whole.line_length() || place.block != 0) return;
  layout.leading_dimension = along.count;
  layout.batch_stride_bytes = layout.lines() * layout.line_stride_bytes();
}

// Bytes of the pieces of a source. Ranges are taken in ascending order.
class PieceReader {
 public:
  PieceReader(absl::Span<const Piece> pieces, std::vector<Piece>& to) : pieces_(pieces), to_(to) {}

  void Take(int64_t offset, int64_t bytes) {
    while (bytes > 0 && !pieces_.empty()) {
      const Piece& piece = pieces_.front();
      const int64_t end = begin_ + static_cast<int64_t>(piece.size());
      if (offset < end) {
        const int64_t taken = std::min(bytes, end - offset);
        to_.push_back(
            piece.subspan(static_cast<size_t>(offset - begin_), static_cast<size_t>(taken)));
        offset += taken;
        bytes -= taken;
      }
      if (bytes == 0) return;
      begin_ = end;
      pieces_.remove_prefix(1);
    }
  }

 private:
  absl::Span<const Piece> pieces_;
  std::vector<Piece>& to_;
  int64_t begin_ = 0;  // Bytes before the first piece that is left.
};

void TakeSparseRows(const MatrixLayout& whole, int64_t offset, const Extent& rows,
                    PieceReader& reader) {
  const auto layout = SparseLayoutOf("a", whole.type, whole.rows, whole.columns);
  if (!layout.ok()) return;  // A valid problem has one.
  reader.Take(offset + layout->values_offset(rows.first), rows.count * layout->value_line_bytes);
  reader.Take(offset + layout->indices_offset(rows.first), rows.count * layout->index_line_bytes);
}

// The part of a matrix that is in memory of the host.
void TakeMatrix(const MatrixLayout& whole, const MatrixLayout& part, int64_t offset, int64_t bytes,
                const Extent& rows, PieceReader& reader) {
  if (part.is_sparse() && part.rows < whole.rows) {
    return TakeSparseRows(whole, offset, rows, reader);
  }
  if (part.leading_dimension == whole.leading_dimension) return reader.Take(offset, bytes);
  for (int64_t line = 0; line < part.lines(); ++line) {
    reader.Take(offset + line * whole.line_stride_bytes(), part.line_stride_bytes());
  }
}

}  // namespace

PanelProblem ProblemOfPanel(const Problem& whole, const JobPlaces& places, const Panel& panel) {
  PanelProblem part = {whole, places};
  Problem& problem = part.problem;
  problem.batch = panel.matrices.count;
  problem.m = panel.rows.count;
  problem.n = panel.columns.count;
  const Extent depth = {0, whole.k};
  Narrow(problem.a, part.places.a, panel.matrices, panel.rows, depth);
  Narrow(problem.b, part.places.b, panel.matrices, depth, panel.columns);
  if (whole.has_c()) {
    Narrow(problem.c, part.places.c, panel.matrices, panel.rows, panel.columns);
  }
  Narrow(problem.d, part.places.d, panel.matrices, panel.rows, panel.columns);
  const Extent& biased = whole.bias_axis == BiasAxis::kRows ? panel.rows : panel.columns;
  part.places.bias.offset += BytesBefore(whole.bias_type, biased.first);
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  if (whole.a_scale == ScaleKind::kVector) {
    part.places.a_scale.offset += panel.rows.first * kFloatBytes;
  }
  if (whole.b_scale == ScaleKind::kVector) {
    part.places.b_scale.offset += panel.columns.first * kFloatBytes;
  }
  return part;
}

Job JobOfPanel(const Job& whole, const JobPlaces& places, const Panel& panel, PanelPieces& pieces) {
  const PanelProblem part = ProblemOfPanel(whole.problem, places, panel);
  Job job = whole;
  job.problem = part.problem;
  job.workspace_bytes = whole.kernel->workspace_bytes(part.problem).value_or(0);
  job.d_bytes = BytesWritten(part.problem);
  const absl::StatusOr<JobLayout> layout = LayOutJob(part.problem, part.places);
  if (!layout.ok()) return job;  // It is no larger than that of the whole.
  const std::array<PlacedRange, 7> ranges = RangesOf(*layout, part.places);
  const std::array<Source*, SourcePieces::kMost> sources = {&job.a,    &job.b,       &job.c,
                                                            &job.bias, &job.a_scale, &job.b_scale};
  const std::array<const MatrixLayout*, 3> wholes = {&whole.problem.a, &whole.problem.b,
                                                     &whole.problem.c};
  const std::array<const MatrixLayout*, 3> parts = {&job.problem.a, &job.problem.b, &job.problem.c};
  for (size_t i = 0; i < sources.size(); ++i) {
    Source& source = *sources[i];
    const int64_t bytes = ranges[i].range.bytes;
    const int64_t offset = ranges[i].place.offset;
    if (source.block != 0) {
      source.offset = offset;
      source.bytes = bytes;
      continue;
    }
    pieces[i].clear();
    PieceReader reader(source.pieces, pieces[i]);
    if (i >= wholes.size()) {
      reader.Take(offset, bytes);
    } else if (bytes > 0) {
      TakeMatrix(*wholes[i], *parts[i], offset, bytes, panel.rows, reader);
    }
    source = {.pieces = pieces[i], .bytes = bytes};
  }
  job.d.offset = job.d.block != 0 ? part.places.d.offset : 0;
  if (job.d.memory != nullptr) {
    job.d.memory += part.places.d.offset;
    job.d.line_stride_bytes = whole.problem.d.line_stride_bytes();
  }
  return job;
}

}  // namespace gemmd
