// SPDX-License-Identifier: Apache-2.0
//
// Pruning by a mask instead of by magnitude (prune24.h): whoever trained a matrix knows which of
// its elements are to be kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/sparse24.h"

namespace gemmd {

// A group of which a mask marks more units than may be kept. A unit of two elements is marked if
// one of them is.
struct OverfullGroup {
  int64_t row = 0;
  int64_t group = 0;
  int units = 0;  // That are marked.
};

// Sets all elements that the mask does not mark to +0; the others keep their bits. `mask` is a b1
// matrix of the same rows and columns, row major without gaps, with a 1 for each element to be
// kept.
//
// Returns the first group that the mask leaves too full; those behind it are as they were.
std::optional<OverfullGroup> KeepMarked(const SparseLayout& layout, const std::byte* mask,
                                        std::byte* dense);

}  // namespace gemmd
