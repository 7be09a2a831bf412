// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/comparison.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/gpu/product.h"

namespace gemmd {
namespace {

class Comparer {
 public:
  Comparer(const Problem& problem, absl::Span<const std::byte> got,
           absl::Span<const std::byte> want)
      : problem_(problem), layout_(problem.d), got_(got.begin(), got.end()), want_(want) {}

  Comparison Run() {
    const int64_t lines = layout_.line_length() > 0 ? layout_.lines() : 0;
    for (int64_t matrix = 0; matrix < problem_.batch; ++matrix) {
      for (int64_t line = 0; line < lines; ++line) CompareLine(matrix, line);
    }
    CompareRest();
    return result_;
  }

 private:
  void CompareLine(int64_t matrix, int64_t line) {
    const int64_t start =
        kGuardBytes + matrix * layout_.batch_stride_bytes + line * layout_.line_stride_bytes();
    std::byte* got = got_.data() + start;
    const std::byte* want = want_.data() + start;
    for (int64_t i = 0; i < layout_.line_length(); ++i) {
      const uint64_t got_bits = LoadBits(layout_.type, got, i);
      const uint64_t want_bits = LoadBits(layout_.type, want, i);
      if (got_bits == want_bits) continue;
      StoreBits(layout_.type, got, i, want_bits);  // So that CompareRest does not report it again.
      const bool is_row_major = layout_.order == Order::kRowMajor;
      if (result_.mismatches++ == 0) {
        result_.first = Mismatch{
            matrix,      is_row_major ? line : i, is_row_major ? i : line, got_bits, want_bits,
            std::nullopt};
      }
    }
  }

  void CompareRest() {
    for (size_t i = 0; i < got_.size(); ++i) {
      if (got_[i] == want_[i] || result_.mismatches++ > 0) continue;
      Mismatch mismatch;
      mismatch.byte = static_cast<int64_t>(i) - kGuardBytes;
      mismatch.got = std::to_integer<uint64_t>(got_[i]);
      mismatch.want = std::to_integer<uint64_t>(want_[i]);
      result_.first = mismatch;
    }
  }

  const Problem& problem_;
  const MatrixLayout& layout_;
  std::vector<std::byte> got_;
  absl::Span<const std::byte> want_;
  Comparison result_;
};

}  // namespace

Comparison Compare(const Problem& problem, absl::Span<const std::byte> got,
                   absl::Span<const std::byte> want) {
  Comparison result;
  if (got.size() != want.size() || std::memcmp(got.data(), want.data(), got.size()) != 0) {
    result = Comparer(problem, got, want).Run();
  }
  result.elements = problem.m * problem.n * problem.batch;
  return result;
}

std::string Describe(const Mismatch& mismatch, ElementType type) {
  if (mismatch.byte) {
    return absl::StrFormat("byte %d of D, which is no element's: got 0x%02x, want 0x%02x",
                           *mismatch.byte, mismatch.got, mismatch.want);
  }
  return absl::StrFormat("matrix %d, row %d, column %d: got 0x%x (%.9g), want 0x%x (%.9g)",
                         mismatch.matrix, mismatch.row, mismatch.column, mismatch.got,
                         Decode(type, mismatch.got), mismatch.want, Decode(type, mismatch.want));
}

}  // namespace gemmd
