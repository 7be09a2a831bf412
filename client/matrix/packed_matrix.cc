// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/packed_matrix.h"

#include <algorithm>

#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

std::optional<int64_t> CountOf(const std::vector<int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

PackedMatrix PackedTensor(v1::ElementType type, const std::vector<int64_t>& shape, v1::Order order,
                          absl::string_view data) {
  const size_t dimensions = shape.size();
  if (dimensions < 1 || dimensions > 3) {
    return {.type = type, .rows = 1, .columns = CountOf(shape).value_or(0), .data = data};
  }
  return {.type = type,
          .batch = dimensions == 3 ? shape[0] : 1,
          .rows = dimensions >= 2 ? shape[dimensions - 2] : 1,
          .columns = shape.back(),
          .order = dimensions >= 2 ? order : v1::ORDER_ROW_MAJOR,
          .data = data};
}

PackedMatrix PackedArray(const NpyArray& array, absl::string_view data) {
  return PackedTensor(array.type, array.shape, array.order, data);
}

}  // namespace gemmd
