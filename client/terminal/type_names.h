// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gemmd {

// The names of all element types, as options take them.
std::vector<std::string> TypeNames();

}  // namespace gemmd
