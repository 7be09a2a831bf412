// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/job_layout.h"

#include "absl/container/flat_hash_map.h"
#include "kernels/checked.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// Puts one range after the other.
class Ranges {
 public:
  JobRange Take(Checked bytes, const JobPlace& place) {
    if (!place.is_staged()) return {place.offset, bytes.value().value_or(0)};
    const JobRange range = {end_.value().value_or(0), bytes.value().value_or(0)};
    const Checked padded = end_ + bytes + Checked(kJobAlignment - 1);
    end_ = padded.value() ? Checked(*padded.value() / kJobAlignment * kJobAlignment) : padded;
    return range;
  }
  std::optional<int64_t> end() const { return end_.value(); }

 private:
  Checked end_ = Checked(0);
};

int64_t Factors(ScaleKind kind, int64_t extent) {
  switch (kind) {
    case ScaleKind::kNone: return 0;
    case ScaleKind::kTensor: return 1;
    case ScaleKind::kVector: return extent;
    case ScaleKind::kBlocks: return 0;  // No kernel of a GPU takes them.
  }
  return 0;
}

Checked FactorBytes(ScaleKind kind, int64_t extent) {
  return Checked(Factors(kind, extent)) * Checked(int64_t{sizeof(float)});
}

Checked BiasBytes(const Problem& problem) {
  switch (problem.bias_axis) {
    case BiasAxis::kNone: return 0;
    case BiasAxis::kRows: return PackedBytes(problem.bias_type, problem.m);
    case BiasAxis::kColumns: return PackedBytes(problem.bias_type, problem.n);
  }
  return 0;
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

int64_t CountParts(const JobPlaces& places) {
  return places.a.parts + places.b.parts + places.c.parts + places.d.parts;
}

std::vector<BlockUse> UsesOf(const JobPlaces& places, absl::Span<const PlacedPart> parts) {
  std::vector<BlockUse> uses;
  absl::flat_hash_map<uint64_t, size_t> known;  // Positions in `uses`.
  const auto add = [&](uint64_t block, bool is_write) {
    if (block == 0) return;
    const auto [place, is_new] = known.emplace(block, uses.size());
    if (is_new) uses.push_back({.block = block});
    if (is_write) uses[place->second].is_write = true;
  };
  add(places.d.block, /*is_write=*/true);
  for (const JobPlace& place :
       {places.a, places.b, places.c, places.bias, places.a_scale, places.b_scale}) {
    add(place.block, /*is_write=*/false);
  }
  for (const FormPlace& form : {places.a_form, places.b_form}) add(form.block, form.is_made == 0);
  const size_t read = parts.size() - static_cast<size_t>(places.d.parts);
  for (size_t i = 0; i < parts.size(); ++i) add(parts[i].block, /*is_write=*/i >= read);
  return uses;
}

absl::StatusOr<JobLayout> LayOutJob(const Problem& problem, const JobPlaces& places) {
  ByteCount a;
  ByteCount b;
  ByteCount c;
  if (problem.has_product()) {
    ASSIGN_OR_RETURN(a, BytesOf("a", problem.a, problem.batch));
    ASSIGN_OR_RETURN(b, BytesOf("b", problem.b, problem.batch));
  }
  if (problem.has_c()) {
    ASSIGN_OR_RETURN(c, BytesOf("c", problem.c, problem.batch));
  }
  int64_t d_bytes = BytesWritten(problem);
  if (places.d.block != 0) {
    ASSIGN_OR_RETURN(const ByteCount d, BytesOf("d", problem.d, problem.batch));
    d_bytes = d.least;
  }
  Ranges ranges;
  JobLayout layout;
  layout.a = ranges.Take(a.least, places.a);
  layout.b = ranges.Take(b.least, places.b);
  layout.c = ranges.Take(c.least, places.c);
  layout.bias = ranges.Take(BiasBytes(problem), places.bias);
  layout.a_scale = ranges.Take(FactorBytes(problem.a_scale, problem.m), places.a_scale);
  layout.b_scale = ranges.Take(FactorBytes(problem.b_scale, problem.n), places.b_scale);
  const Checked part_bytes(int64_t{sizeof(PlacedPart)});
  layout.parts = ranges.Take(Checked(CountParts(places)) * part_bytes, {});
  layout.input_bytes = ranges.end().value_or(0);
  layout.d = ranges.Take(d_bytes, places.d);
  if (!ranges.end()) return absl::ResourceExhaustedError("the matrices take more than 2^63 bytes");
  layout.end = *ranges.end();
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
  if (mark.bytes < kLeastMarkBytes) mark.bytes = 0;
  return mark;
}

std::array<PlacedRange, 7> RangesOf(const JobLayout& layout, const JobPlaces& places) {
  return {{{layout.a, places.a},
           {layout.b, places.b},
           {layout.c, places.c},
           {layout.bias, places.bias},
           {layout.a_scale, places.a_scale},
           {layout.b_scale, places.b_scale},
           {layout.d, places.d}}};
}

GemmArgs ArgsAt(const Problem& problem, const Target& target, const JobLayout& layout,
                const JobPointers& pointers, absl::Span<std::byte> workspace) {
  const auto factors = [](const std::byte* at, const JobRange& range) {
    return absl::MakeConstSpan(reinterpret_cast<const float*>(at),
                               static_cast<size_t>(range.bytes) / sizeof(float));
  };
  return {.problem = problem,
          .target = target,
          .a = pointers.a,
          .b = pointers.b,
          .c = pointers.c,
          .bias = pointers.bias,
          .a_scale = factors(pointers.a_scale, layout.a_scale),
          .b_scale = factors(pointers.b_scale, layout.b_scale),
          .d = pointers.d,
          .workspace = workspace};
}

GemmArgs ArgsAt(const Problem& problem, const Target& target, const JobLayout& layout,
                std::byte* block, absl::Span<std::byte> workspace) {
  const auto at = [block](const JobRange& range) {
    return range.bytes == 0 ? nullptr : block + range.offset;
  };
  return ArgsAt(problem, target, layout,
                JobPointers{.a = at(layout.a),
                            .b = at(layout.b),
                            .c = at(layout.c),
                            .bias = at(layout.bias),
                            .a_scale = at(layout.a_scale),
                            .b_scale = at(layout.b_scale),
                            .d = at(layout.d)},
                workspace);
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
