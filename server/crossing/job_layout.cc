// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/job_layout.h"

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

int64_t BytesBefore(ElementType type, int64_t elements) { return elements / 8 * BitsOf(type); }

// Shrinks the layout to a part, and moves the place to the part's beginning.
void Narrow(MatrixLayout& layout, JobPlace& place, const Panel::Extent& matrices,
            const Panel::Extent& rows, const Panel::Extent& columns) {
  const MatrixLayout whole = layout;
  layout.rows = rows.count;
  layout.columns = columns.count;
  // The strides of an empty matrix are unbounded.
  if (whole.empty()) return;
  place.offset += matrices.first * whole.batch_stride_bytes;
  // Values and indices of sparse rows are stored separately.
  if (whole.is_sparse()) {
    const bool is_divided = rows.count < whole.rows;
    const auto part = SparseLayoutOf("a", whole.type, rows.count, columns.count);
    if (is_divided && part.ok()) layout.batch_stride_bytes = part->bytes;
    return;
  }
  const bool is_row_major = whole.order == Order::kRowMajor;
  const Panel::Extent& across = is_row_major ? rows : columns;
  const Panel::Extent& along = is_row_major ? columns : rows;
  place.offset += across.first * whole.line_stride_bytes() + BytesBefore(whole.type, along.first);
  if (along.count == whole.line_length() || place.block != 0) return;
  layout.leading_dimension = along.count;
  layout.batch_stride_bytes = layout.lines() * layout.line_stride_bytes();
}

absl::StatusOr<int64_t> BytesOfDense(std::string_view field, const MatrixLayout& layout,
                                     int64_t matrices) {
  const bool is_dense = layout.order == Order::kRowMajor && !layout.is_sparse() &&
                        layout.rows >= 0 && layout.columns >= 0 &&
                        layout.leading_dimension >= layout.columns &&
                        layout.batch_stride_bytes >= 0;
  if (!is_dense) {
    return absl::InvalidArgumentError(GotWant(field, "another layout", "a dense one, row major"));
  }
  ASSIGN_OR_RETURN(const ByteCount bytes, BytesOf(field, layout, matrices));
  return bytes.least;
}

}  // namespace

int64_t AlignedRanges::Take(Checked bytes) {
  const int64_t begin = end_.value().value_or(0);
  const Checked padded = end_ + bytes + Checked(kJobAlignment - 1);
  end_ = padded.value() ? Checked(*padded.value() / kJobAlignment * kJobAlignment) : padded;
  return begin;
}

void BlockTurns::Enter(uint64_t user, const BlockUses& uses, uint64_t group) {
  for (const BlockUse& use : uses) {
    turns_[use.block].push_back({.user = user, .group = group, .is_write = use.is_write});
  }
}

bool BlockTurns::HasTurn(uint64_t user, const BlockUses& uses, uint64_t group) const {
  return std::all_of(uses.begin(), uses.end(), [&](const BlockUse& use) {
    const auto found = turns_.find(use.block);
    if (found == turns_.end()) return true;
    for (const Turn& turn : found->second) {
      if (turn.user == user) return true;
      const bool are_one = group != 0 && turn.group == group;
      if (!are_one && (turn.is_write || use.is_write)) return false;
    }
    return true;
  });
}

void BlockTurns::Leave(uint64_t user, const BlockUses& uses) {
  for (const BlockUse& use : uses) {
    const auto found = turns_.find(use.block);
    if (found == turns_.end()) continue;
    auto& turns = found->second;
    turns.erase(std::remove_if(turns.begin(), turns.end(),
                               [user](const Turn& turn) { return turn.user == user; }),
                turns.end());
    if (turns.empty()) turns_.erase(found);
  }
}

int64_t CountParts(const JobPlaces& places) {
  return places.a.parts + places.b.parts + places.c.parts + places.d.parts;
}

BlockUses UsesOf(const JobPlaces& places, absl::Span<const PlacedPart> parts) {
  BlockUses uses;
  absl::flat_hash_map<uint64_t, size_t> known;  // Positions in `uses`, if there may be many.
  const auto position_of = [&](uint64_t block) -> size_t {
    if (!parts.empty()) return known.emplace(block, uses.size()).first->second;
    const auto found = std::find_if(uses.begin(), uses.end(),
                                    [block](const BlockUse& use) { return use.block == block; });
    return static_cast<size_t>(found - uses.begin());
  };
  const auto add = [&](uint64_t block, bool is_write) {
    if (block == 0) return;
    const size_t position = position_of(block);
    if (position == uses.size()) uses.push_back({.block = block});
    if (is_write) uses[position].is_write = true;
  };
  add(places.d.block, /*is_write=*/true);
  for (const OperandRole role : kOperandRoles) add(places[role].block, /*is_write=*/false);
  for (const FormPlace& form : {places.a_form, places.b_form}) add(form.block, form.is_made == 0);
  const size_t read = parts.size() - static_cast<size_t>(places.d.parts);
  for (size_t i = 0; i < parts.size(); ++i) add(parts[i].block, /*is_write=*/i >= read);
  return uses;
}

bool HasGaps(const Problem& problem) {
  const MatrixLayout& d = problem.d;
  const int64_t line_bits = d.line_length() * BitsOf(d.type);
  if (line_bits != 8 * d.line_stride_bytes()) return true;
  return problem.batch > 1 && d.batch_stride_bytes != d.lines() * d.line_stride_bytes();
}

absl::StatusOr<JobLayout> LayOutJob(const Problem& problem, const JobPlaces& places) {
  AlignedRanges ranges;
  const auto take = [&ranges](Checked bytes, const JobPlace& place) -> ByteRange {
    return {place.is_staged() ? ranges.Take(bytes) : place.offset, bytes.value().value_or(0)};
  };
  JobLayout layout;
  for (const OperandRole role : kOperandRoles) {
    ASSIGN_OR_RETURN(const int64_t bytes, OperandBytes(problem, role));
    layout[role] = take(bytes, places[role]);
  }
  int64_t d_bytes = BytesWritten(problem);
  if (places.d.block != 0) {
    ASSIGN_OR_RETURN(const ByteCount d, BytesOf("d", problem.d, problem.batch));
    d_bytes = d.least;
  }
  const Checked part_bytes(int64_t{sizeof(PlacedPart)});
  layout.parts = take(Checked(CountParts(places)) * part_bytes, {});
  layout.input_bytes = ranges.end().value_or(0);
  layout.d = take(d_bytes, places.d);
  if (!ranges.end()) return absl::ResourceExhaustedError("the matrices take more than 2^63 bytes");
  layout.end = *ranges.end();
  const int64_t staged_d_bytes = layout.end - layout.input_bytes;
  layout.is_d_in_place = layout.is_d_staged() && staged_d_bytes <= kMaxWrittenInPlace &&
                         layout.d.bytes >= kMarkBytes && !HasGaps(problem);
  return layout;
}

JobMark MarkOf(const Problem& problem, const JobLayout& layout, const JobPlaces& places,
               absl::Span<const PlacedPart> parts) {
  JobMark mark;
  if (places.d.parts > 0) {
    for (const PlacedPart& part : parts.last(static_cast<size_t>(places.d.parts))) {
      mark.bytes = part.block == 0 ? 0 : part.bytes;
      if (part.block != 0) break;
      mark.offset += part.bytes;
    }
  } else if (layout.d.bytes > 0) {
    const MatrixLayout& d = problem.d;
    const int64_t line_bits = d.line_length() * BitsOf(d.type);
    const bool has_gaps = line_bits != d.line_stride_bytes() * 8;
    mark.bytes = has_gaps ? line_bits / 8 : d.line_stride_bytes() * std::min(d.lines(), kMarkBytes);
  }
  mark.bytes = std::min(mark.bytes, kMarkBytes);
  if (mark.bytes < kMinMarkBytes) mark.bytes = 0;
  return mark;
}

std::array<PlacedRange, kOperandRoles.size() + 1> RangesOf(const JobLayout& layout,
                                                           const JobPlaces& places) {
  std::array<PlacedRange, kOperandRoles.size() + 1> ranges;
  for (size_t i = 0; const OperandRole role : kOperandRoles) {
    ranges[i++] = {layout[role], places[role]};
  }
  ranges.back() = {layout.d, places.d};
  return ranges;
}

PanelProblem ProblemOfPanel(const Problem& whole, const JobPlaces& places, const Panel& panel) {
  PanelProblem part = {whole, places};
  Problem& problem = part.problem;
  problem.batch = panel.matrices.count;
  problem.m = panel.rows.count;
  problem.n = panel.columns.count;
  const Panel::Extent depth = {0, whole.k};
  Narrow(problem.a, part.places.a, panel.matrices, panel.rows, depth);
  Narrow(problem.b, part.places.b, panel.matrices, depth, panel.columns);
  if (whole.has_c()) {
    Narrow(problem.c, part.places.c, panel.matrices, panel.rows, panel.columns);
  }
  Narrow(problem.d, part.places.d, panel.matrices, panel.rows, panel.columns);
  const Panel::Extent& biased = whole.bias_axis == BiasAxis::kRows ? panel.rows : panel.columns;
  part.places.bias.offset += BytesBefore(whole.bias_type, biased.first);
  const auto scale_before = [&](ScaleKind kind, const BlockScale& blocks,
                                const Panel::Extent& lines, int64_t extent) -> int64_t {
    if (kind == ScaleKind::kVector) return lines.first * static_cast<int64_t>(sizeof(float));
    if (kind != ScaleKind::kBlocks) return 0;
    return blocks.part_offset(panel.matrices.first, lines.first, extent, whole.k);
  };
  part.places.a_scale.offset += scale_before(whole.a_scale, whole.a_blocks, panel.rows, whole.m);
  part.places.b_scale.offset += scale_before(whole.b_scale, whole.b_blocks, panel.columns, whole.n);
  return part;
}

size_t AlignmentOf(const Problem& problem, OperandRole role) {
  const bool is_floats = (role == OperandRole::kAScale && problem.a_scale != ScaleKind::kBlocks) ||
                         (role == OperandRole::kBScale && problem.b_scale != ScaleKind::kBlocks);
  return is_floats ? alignof(float) : 1;
}

GemmArgs ArgsAt(const Problem& problem, const Target& target,
                const PerOperand<absl::Span<const std::byte>>& operands, std::byte* d,
                absl::Span<std::byte> workspace) {
  const auto floats = [](ScaleKind kind, absl::Span<const std::byte> factors) {
    if (kind == ScaleKind::kBlocks) return absl::Span<const float>();
    return absl::MakeConstSpan(reinterpret_cast<const float*>(factors.data()),
                               factors.size() / sizeof(float));
  };
  const auto of_blocks = [](ScaleKind kind, absl::Span<const std::byte> factors) {
    return kind == ScaleKind::kBlocks ? factors.data() : nullptr;
  };
  return {.problem = problem,
          .target = target,
          .a = operands.a.data(),
          .b = operands.b.data(),
          .c = operands.c.data(),
          .bias = operands.bias.data(),
          .a_scale = floats(problem.a_scale, operands.a_scale),
          .b_scale = floats(problem.b_scale, operands.b_scale),
          .d = d,
          .workspace = workspace,
          .a_factors = of_blocks(problem.a_scale, operands.a_scale),
          .b_factors = of_blocks(problem.b_scale, operands.b_scale)};
}

GemmArgs ArgsAt(const Problem& problem, const Target& target, const JobLayout& layout,
                std::byte* block, absl::Span<std::byte> workspace) {
  const auto at = [block](const ByteRange& range) -> absl::Span<std::byte> {
    if (range.bytes == 0) return {};
    return {block + range.offset, static_cast<size_t>(range.bytes)};
  };
  PerOperand<absl::Span<const std::byte>> operands;
  for (const OperandRole role : kOperandRoles) operands[role] = at(layout[role]);
  return ArgsAt(problem, target, operands, at(layout.d).data(), workspace);
}

absl::StatusOr<CompressBytes> BytesOf(const CompressTask& task) {
  if (task.matrices < 0) {
    return absl::InvalidArgumentError(GotWant("matrices", Concat(task.matrices), "0 or more"));
  }
  CompressBytes bytes;
  ASSIGN_OR_RETURN(bytes.dense, BytesOfDense("tensor", task.dense, task.matrices));
  ASSIGN_OR_RETURN(const SparseLayout sparse,
                   SparseLayoutOf("tensor", task.dense.type, task.dense.rows, task.dense.columns));
  if (task.mask_block != 0) {
    ASSIGN_OR_RETURN(bytes.mask, BytesOfDense("mask", task.mask, task.matrices));
    const bool fits = task.mask.type == ElementType::kB1 && task.mask.rows == task.dense.rows &&
                      task.mask.columns == task.dense.columns;
    if (!fits) return absl::InvalidArgumentError(GotWant("mask", "another one", "the tensor's"));
  }
  const Checked result = Checked(task.matrices) * Checked(sparse.bytes);
  const Checked lines = Checked(task.matrices) * Checked(sparse.rows);
  const bool are_lines = lines.value() && task.first_line >= 0 &&
                         task.first_line <= task.end_line && task.end_line <= *lines.value();
  if (!result.value() || !are_lines) {
    return absl::InvalidArgumentError(
        GotWant("lines", Concat(task.first_line, " to ", task.end_line), "some of the tensor's"));
  }
  bytes.result = *result.value();
  return bytes;
}

CompressView ViewOf(const CompressTask& task, const std::byte* dense, const std::byte* mask,
                    std::byte* result) {
  CompressView view;
  const auto layout =
      SparseLayoutOf("tensor", task.dense.type, task.dense.rows, task.dense.columns);
  if (!layout.ok()) return view;  // Without lines.
  view.layout = *layout;
  view.dense = dense;
  view.dense_line_stride_bytes = task.dense.line_stride_bytes();
  view.dense_matrix_stride_bytes = task.dense.batch_stride_bytes;
  if (task.mask_block != 0) {
    view.mask = mask;
    view.mask_line_stride_bytes = task.mask.line_stride_bytes();
    view.mask_matrix_stride_bytes = task.mask.batch_stride_bytes;
  }
  view.compressed = result;
  view.first_line = task.first_line;
  view.end_line = task.end_line;
  return view;
}

}  // namespace gemmd
