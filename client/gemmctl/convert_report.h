// SPDX-License-Identifier: Apache-2.0
//
// What gemmctl convert did, as text and for programs.
#pragma once

#include <string>
#include <vector>

#include "client/gemmctl/convert_tensor.h"
#include "gemmd/v1/tensors.pb.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// One tensor, without its elements.
struct ConversionReport {
  std::string name;  // Empty: files of it have no names.
  v1::ElementType input_type = v1::ELEMENT_TYPE_UNSPECIFIED;
  v1::Order input_order = v1::ORDER_ROW_MAJOR;
  ConvertedTensor made = {};
  size_t packed_bytes = 0;  // What the 2:4 form takes.
};

// Leaves the elements behind.
ConversionReport ReportOf(const SourceTensor& input, const ConvertedTensor& made);

std::string ConversionText(const ConversionReport& report);
nlohmann::ordered_json ConversionJson(const ConversionReport& report);

// All tensors of a file, one a line. `copied` are those that stayed as they are.
std::string ConversionsText(const std::vector<ConversionReport>& reports, int64_t copied);

}  // namespace gemmd
