// SPDX-License-Identifier: Apache-2.0
#include "kernels/compress_view.h"

#include <algorithm>
#include <string>

#include "kernels/text.h"

namespace gemmd {

BadGroup CompressLines(const CompressView& view) {
  return WithGroupForm(view.layout, [&]<typename Form>(Form) {
    BadGroup bad = kNoBadGroup;
    for (int64_t line = view.first_line; line < view.end_line; ++line) {
      for (int64_t span = 0; span < view.layout.index_line_bytes; ++span) {
        bad = std::min(bad, CompressSpanOfView<Form>(view, line, span));
      }
    }
    return bad;
  });
}

absl::Status RefuseMask(const SparseLayout& layout, int64_t matrices, BadGroup bad) {
  const auto position = static_cast<int64_t>(bad >> 8);
  const int64_t line = position / layout.groups;
  const std::string matrix =
      matrices > 1 ? Concat("matrix ", line / layout.rows, ", ") : std::string();
  return absl::InvalidArgumentError(GotWant(
      Concat("mask: ", matrix, "row ", line % layout.rows, ", group ", position % layout.groups),
      Concat(bad & 0xff, layout.form.unit == 2 ? " pairs" : " elements", " to be kept"),
      Concat("at most ", layout.form.kept_units())));
}

}  // namespace gemmd
