// SPDX-License-Identifier: Apache-2.0
//
// The plan of a model, as text and for programs.
#pragma once

#include <string>

#include "client/gemmctl/model_plan.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// A line for each layer: its best type, its predicted time and error there, and the other types.
std::string ModelText(const ModelPlan& plan);

// One layer.
nlohmann::ordered_json LayerJson(const ModelLayer& layer);

}  // namespace gemmd
