// SPDX-License-Identifier: Apache-2.0
#include "kernels/epilogue.h"

#include <algorithm>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/matrix/abortable_loop.h"

namespace gemmd {
namespace {

// D is finished in tiles of its lines. Both extents of a tile are multiples of 8, so that elements
// narrower than a byte start on a byte in every tile of D, and of a C of the other order.
constexpr int64_t kTileLines = 16;
constexpr int64_t kTileLength = 256;
constexpr int64_t kParallelTiles = 16;  // With fewer, starting threads costs more than it saves.

// Scales along one axis of D: none, one for all, or one per index.
struct ScaleVector {
  const float* values = nullptr;
  bool varies = false;
};

const std::byte* ElementOf(const std::byte* line, ElementType type, int64_t index) {
  return line + index / 8 * BitsOf(type) + index % 8 * BitsOf(type) / 8;
}

// Finishes one matrix of the batch. T is the epilogue's type.
template <typename T>
class Finisher {
 public:
  Finisher(const GemmArgs& args, int64_t index, const Accumulators& accumulators)
      : args_(args),
        problem_(args.problem),
        accumulators_(accumulators),
        d_(args.d + index * args.problem.d.batch_stride_bytes),
        c_(problem_.has_c() ? args.c + index * problem_.c.batch_stride_bytes : nullptr),
        alpha_(static_cast<T>(problem_.alpha)),
        beta_(static_cast<T>(problem_.beta)) {
    const bool is_row_major = problem_.d.order == Order::kRowMajor;
    const absl::Span<const float> by_line = is_row_major ? args.a_scale : args.b_scale;
    const absl::Span<const float> along_line = is_row_major ? args.b_scale : args.a_scale;
    scale_by_line_ = {by_line.data(), by_line.size() > 1};
    scale_along_line_ = {along_line.data(), along_line.size() > 1};
    bias_is_along_line_ =
        problem_.bias_axis == (is_row_major ? BiasAxis::kColumns : BiasAxis::kRows);
  }

  void Run() const {
    const int64_t lines = problem_.d.lines();
    const int64_t length = problem_.d.line_length();
    const int64_t tiles_down = (lines + kTileLines - 1) / kTileLines;
    const int64_t tiles_along = (length + kTileLength - 1) / kTileLength;
    const int64_t tiles = tiles_down * tiles_along;
    ForEachUnlessAborted(args_.abort, tiles >= kParallelTiles, tiles, [&](int64_t tile) {
      const int64_t line = tile / tiles_along * kTileLines;
      const int64_t first = tile % tiles_along * kTileLength;
      FinishTile(line, std::min(kTileLines, lines - line), first,
                 std::min(kTileLength, length - first));
    });
  }

 private:
  void FinishTile(int64_t line, int64_t lines, int64_t first, int64_t count) const {
    T c[kTileLines * kTileLength];
    if (problem_.has_c()) LoadC(line, lines, first, count, c);
    for (int64_t i = 0; i < lines; ++i) {
      T x[kTileLength];
      LoadAccumulators(line + i, first, count, x);
      if (problem_.has_product()) Scale(line + i, first, count, x);
      if (problem_.has_c()) {
        for (int64_t j = 0; j < count; ++j) {
          const T term = beta_ * c[i * kTileLength + j];
          x[j] = x[j] + term;
        }
      }
      if (problem_.bias_axis != BiasAxis::kNone) AddBias(line + i, first, count, x);
      if (problem_.activation != Activation::kNone) {
        for (int64_t j = 0; j < count; ++j) {
          x[j] = Activate(problem_.activation, x[j]);
        }
      }
      StoreLine(x, count, Output(line + i, first));
    }
  }

  void StoreLine(const T* x, int64_t count, std::byte* output) const {
    const bool keeps_bits = problem_.is_plain() && accumulators_.type == ElementType::kF64 &&
                            problem_.d.type == ElementType::kF64;
    if (keeps_bits) {
      std::memcpy(output, x, static_cast<size_t>(count) * sizeof(T));
    } else {
      EncodeLine(problem_.d.type, x, count, output);
    }
  }

  std::byte* Output(int64_t line, int64_t first) const {
    const MatrixLayout& d = problem_.d;
    return const_cast<std::byte*>(ElementOf(d_ + line * d.line_stride_bytes(), d.type, first));
  }

  const std::byte* Input(int64_t line, int64_t first) const {
    const int64_t bytes = BitsOf(accumulators_.stored) / 8;
    return accumulators_.data + (line * accumulators_.leading_dimension + first) * bytes;
  }

  // An s32 accumulator as an integer; f64 holds it too, so that an s32 D gets it unchanged.
  int32_t Integer(const std::byte* input, int64_t j) const {
    int64_t value = 0;
    if (accumulators_.stored == ElementType::kS32) {
      int32_t word;
      std::memcpy(&word, input + j * 4, sizeof(word));
      value = word;
    } else {
      double word;
      std::memcpy(&word, input + j * 8, sizeof(word));
      value = static_cast<int64_t>(word);
    }
    if (accumulators_.are_sums_of_signs) value = (problem_.k - value) / 2;
    return static_cast<int32_t>(value);
  }

  void LoadAccumulators(int64_t line, int64_t first, int64_t count, T* x) const {
    if (accumulators_.data == nullptr) {
      std::fill_n(x, count, T{0});
    } else if (accumulators_.type == ElementType::kS32) {
      for (int64_t j = 0; j < count; ++j) x[j] = static_cast<T>(Integer(Input(line, first), j));
    } else {
      DecodeLine(accumulators_.stored, Input(line, first), count, x);
    }
  }

  void Scale(int64_t line, int64_t first, int64_t count, T* x) const {
    if (problem_.has_scales()) {
      const T by_line = At(scale_by_line_, line);
      for (int64_t j = 0; j < count; ++j) {
        const T scale = by_line * At(scale_along_line_, first + j);
        x[j] = x[j] * scale;
      }
    }
    if (problem_.alpha != 1) {
      for (int64_t j = 0; j < count; ++j) x[j] = x[j] * alpha_;
    }
  }

  static T At(const ScaleVector& vector, int64_t index) {
    if (vector.values == nullptr) return 1;
    return vector.values[vector.varies ? index : 0];
  }

  void LoadC(int64_t line, int64_t lines, int64_t first, int64_t count, T* tile) const {
    const MatrixLayout& layout = problem_.c;
    const int64_t stride = layout.line_stride_bytes();
    if (layout.order == problem_.d.order) {
      for (int64_t i = 0; i < lines; ++i) {
        DecodeLine(layout.type, ElementOf(c_ + (line + i) * stride, layout.type, first), count,
                   tile + i * kTileLength);
      }
      return;
    }
    for (int64_t j = 0; j < count; ++j) {
      T across[kTileLines];
      DecodeLine(layout.type, ElementOf(c_ + (first + j) * stride, layout.type, line), lines,
                 across);
      for (int64_t i = 0; i < lines; ++i) tile[i * kTileLength + j] = across[i];
    }
  }

  void AddBias(int64_t line, int64_t first, int64_t count, T* x) const {
    if (bias_is_along_line_) {
      T bias[kTileLength];
      DecodeLine(problem_.bias_type, ElementOf(args_.bias, problem_.bias_type, first), count, bias);
      for (int64_t j = 0; j < count; ++j) x[j] = x[j] + bias[j];
    } else {
      const T bias = static_cast<T>(
          Decode(problem_.bias_type, LoadBits(problem_.bias_type, args_.bias, line)));
      for (int64_t j = 0; j < count; ++j) x[j] = x[j] + bias;
    }
  }

  const GemmArgs& args_;
  const Problem& problem_;
  const Accumulators& accumulators_;
  std::byte* d_;
  const std::byte* c_;
  T alpha_;
  T beta_;
  ScaleVector scale_by_line_;
  ScaleVector scale_along_line_;
  bool bias_is_along_line_ = false;
};

}  // namespace

void ApplyEpilogue(const GemmArgs& args, int64_t index, const Accumulators& accumulators) {
  if (accumulators.type == ElementType::kF32) {
    Finisher<float>(args, index, accumulators).Run();
  } else {
    Finisher<double>(args, index, accumulators).Run();
  }
}

}  // namespace gemmd
