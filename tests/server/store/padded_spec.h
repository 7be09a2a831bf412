// SPDX-License-Identifier: Apache-2.0
//
// Row-major tensors for tests, with a given number of elements between their lines.
#pragma once

#include <cstdint>

#include "server/store/tensor.h"

namespace gemmd {

inline TensorSpec PaddedSpec(ElementType type, int64_t rows, int64_t columns, int64_t padding = 0,
                             int64_t matrices = 1) {
  MatrixLayout layout =
      TightLayout("spec", type, Order::kRowMajor, rows, columns + padding).value();
  layout.columns = columns;
  return MakeTensorSpec(layout, matrices, {}).value();
}

}  // namespace gemmd
