// SPDX-License-Identifier: Apache-2.0
#include "kernels/matrix/element_gather.h"

#include <cstring>

namespace gemmd {

void GatherElements(const ElementGather& gather) {
  const bool has_whole_lines = !gather.is_across && gather.elements == nullptr;
  const bool ends_at_byte = gather.element_count * gather.bits % 8 == 0;
  if (!has_whole_lines || !ends_at_byte) {
    for (int64_t unit = 0; unit < gather.units(); ++unit) GatherUnit(gather, unit);
    return;
  }
  const auto bytes = static_cast<size_t>(gather.to_line_bytes());
  for (int64_t matrix = 0; matrix < gather.matrices; ++matrix) {
    const std::byte* const from = gather.from + matrix * gather.from_matrix_bytes;
    std::byte* to = gather.to + matrix * gather.to_matrix_bytes;
    for (int64_t i = 0; i < gather.line_count; ++i, to += bytes) {
      const int64_t line = (gather.lines == nullptr ? i : gather.lines[i]) / gather.line_divisor;
      std::memcpy(to, from + line * gather.from_line_bytes, bytes);
    }
  }
}

}  // namespace gemmd
