// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// The names of all element types, as options take them.
std::vector<std::string> TypeNames();

std::string TypeText(v1::ElementType type);

}  // namespace gemmd
