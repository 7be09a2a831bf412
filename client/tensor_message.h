// SPDX-License-Identifier: Apache-2.0
//
// A tensor's name as it travels.
#pragma once

#include "gemmd/tensor.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

v1::TensorRef MessageOf(const TensorRef& ref);

}  // namespace gemmd
