// SPDX-License-Identifier: Apache-2.0
//
// Messages as JSON for programs.
#pragma once

#include <string>

#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// The message in protobuf's JSON mapping with the field names of the .proto file, but for types of
// elements, which read as in the flags ("f32"). 64-bit integers are numbers, not strings, and
// fields with default values are there too. The bytes of matrices are left out.
nlohmann::ordered_json MessageJson(const google::protobuf::Message& message);

// A number as protobuf's mapping has it: JSON itself has no NaN and no infinities.
nlohmann::ordered_json NumberJson(double value);

// One line of text per value, ended by a line feed.
std::string JsonLine(const nlohmann::ordered_json& json);

}  // namespace gemmd
