// SPDX-License-Identifier: Apache-2.0
//
// A gather of random lines and elements, and what its copy should be.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/matrix/element.h"
#include "kernels/matrix/element_gather.h"
#include "tests/testing/random_source.h"

namespace gemmd {

class GatherCase {
 public:
  GatherCase(ElementType type, RandomSource& random) : type_(type) {
    const auto any = [&random](int64_t min, int64_t max) { return random.Between(min, max); };
    const int64_t lines = any(1, 12);
    const int64_t elements = any(1, 40);
    const int64_t gap = any(0, 3);
    gather.bits = BitsOf(type);
    gather.is_across = random.Flip();
    gather.matrices = any(1, 3);
    gather.line_divisor = random.Flip() ? 1 : any(1, 4);
    gather.line_count = any(1, 9);
    gather.element_count = any(1, 20);
    gather.from_line_bytes = (elements * gather.bits + 7) / 8 + gap;
    gather.from_matrix_bytes = random.Flip() ? 0 : lines * gather.from_line_bytes + gap;
    gather.to_matrix_bytes = gather.line_count * gather.to_line_bytes() + gap;
    const int64_t extent = gather.is_across ? elements : lines;
    const int64_t width = gather.is_across ? lines : elements;
    for (int64_t i = 0; i < gather.line_count; ++i) {
      lines_.push_back(any(0, extent * gather.line_divisor - 1));
    }
    for (int64_t i = 0; i < gather.element_count; ++i) elements_.push_back(any(0, width - 1));
    // All lines, or whole lines, without numbers.
    if (random.Flip() && gather.line_count <= extent) lines_.clear();
    if (random.Flip() && gather.element_count <= width) elements_.clear();
    from.resize(static_cast<size_t>(gather.matrices * (lines * gather.from_line_bytes + gap)));
    for (std::byte& byte : from) byte = static_cast<std::byte>(random.Bits());
    PoisonCopy();
    gather.from = from.data();
    gather.to = to.data();
    gather.lines = lines_.empty() ? nullptr : lines_.data();
    gather.elements = elements_.empty() ? nullptr : elements_.data();
  }
  GatherCase(const GatherCase&) = delete;
  GatherCase& operator=(const GatherCase&) = delete;

  void PoisonCopy() {
    to.assign(static_cast<size_t>(gather.matrices * gather.to_matrix_bytes), std::byte{0xa5});
  }

  // Compares the copy, which may be another vector's bytes, bit by bit; gaps must be unchanged.
  void ExpectCopied() const {
    std::vector<std::byte> want(to.size(), std::byte{0xa5});
    for (int64_t m = 0; m < gather.matrices; ++m) {
      const std::byte* const matrix = from.data() + m * gather.from_matrix_bytes;
      for (int64_t i = 0; i < gather.line_count; ++i) {
        std::byte* const line =
            want.data() + m * gather.to_matrix_bytes + i * gather.to_line_bytes();
        for (int64_t byte = 0; byte < gather.to_line_bytes(); ++byte) line[byte] = std::byte{0};
        const int64_t from_line =
            (lines_.empty() ? i : lines_[static_cast<size_t>(i)]) / gather.line_divisor;
        for (int64_t j = 0; j < gather.element_count; ++j) {
          const int64_t element = elements_.empty() ? j : elements_[static_cast<size_t>(j)];
          const int64_t at = gather.is_across ? element : from_line;
          StoreBits(type_, line, j,
                    LoadBits(type_, matrix + at * gather.from_line_bytes,
                             gather.is_across ? from_line : element));
        }
      }
    }
    EXPECT_EQ(to, want) << NameOf(type_);
  }

  const std::vector<int64_t>& lines() const { return lines_; }
  const std::vector<int64_t>& elements() const { return elements_; }

  ElementGather gather;  // Points to the members below.
  std::vector<std::byte> from;
  std::vector<std::byte> to;

 private:
  const ElementType type_;
  std::vector<int64_t> lines_;
  std::vector<int64_t> elements_;
};

}  // namespace gemmd
