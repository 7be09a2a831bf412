// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/resident_tensors.h"

#include <utility>
#include <vector>

namespace gemmd::fuzz {

ResidentTensors& ResidentTensors::Get() {
  static ResidentTensors* const tensors = new ResidentTensors();
  return *tensors;
}

// Little memory, so that inputs may ask for a new tensor of any size: large ones are refused.
ResidentTensors::ResidentTensors()
    : store({.max_bytes = 1 << 20, .max_session_bytes = 1 << 20}, clock),
      session(store.OpenSession("", "a").value()) {
  for (const ResidentTensor& tensor : kResidentTensors) {
    const MatrixLayout layout =
        tensor.is_sparse
            ? TightSparseLayout("x", tensor.type, tensor.rows, tensor.columns).value()
            : TightLayout("x", tensor.type, tensor.order, tensor.rows, tensor.columns).value();
    TensorSpec spec =
        MakeTensorSpec(layout, tensor.matrices, std::vector<float>(tensor.factors, 0.5f)).value();
    TensorDraft draft =
        store.MakeDraft(session, std::move(spec), {.name = tensor.name, .pinned = true}).value();
    (void)store.Publish(session, std::move(draft)).value();
  }
}

}  // namespace gemmd::fuzz
