// SPDX-License-Identifier: Apache-2.0
#include "tests/client/matrix/npy_fuzz.h"

#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "client/matrix/npy.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/client/matrix/npy_text.h"

namespace gemmd {

void FuzzNpy(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const auto hint = static_cast<v1::ElementType>(data[0] % v1::ElementType_ARRAYSIZE);
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto array = ReadNpyText(text, hint);
  if (!array.ok()) return;
  const auto again = ReadNpyText(WriteNpyText(*array), array->type);
  const bool is_same = again.ok() && again->shape == array->shape && again->order == array->order &&
                       again->data == array->data;
  if (!is_same) std::abort();
}

}  // namespace gemmd
