// SPDX-License-Identifier: Apache-2.0
//
// Resident tensors as text and as JSON.
#pragma once

#include <string>

#include "gemmd/v1/resident.pb.h"
#include "nlohmann/json.hpp"

namespace gemmd {

std::string HandleText(const v1::TensorInfo& tensor);  // 32 hexadecimal digits.

// "256 x 512 bf16", "4 of 256 x 512 e4m3 2:4, columns".
std::string ShapeText(const v1::TensorSpec& spec);

std::string TensorTable(const v1::ListTensorsResponse& tensors);

// One tensor in a few lines.
std::string TensorText(const v1::TensorInfo& tensor);

nlohmann::ordered_json TensorJson(const v1::TensorInfo& tensor);

}  // namespace gemmd
