// SPDX-License-Identifier: Apache-2.0
//
// Sizes of products, and lists of them as options give them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gemmd::bench {

struct Shape {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t batch = 1;  // So many matrices.

  // 2*m*n*k of each matrix: multiplications and additions.
  double operations() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
           static_cast<double>(batch);
  }

  friend bool operator==(const Shape&, const Shape&) = default;
};

// "512x512x4096", "64*512x512x512".
std::string NameOf(const Shape& shape);

// "2048,512x512x4096,64*512,suite": cubes, m x n x k, batches of either, and the shapes of Suite();
// each once.
// Errors: InvalidArgument for the first part that is none of these.
absl::StatusOr<std::vector<Shape>> ParseShapes(std::string_view text);

// Cubes of 512 to 8192, few rows, little k, much k, and odd extents that no line is aligned for.
std::vector<Shape> Suite();

}  // namespace gemmd::bench
