// SPDX-License-Identifier: Apache-2.0
//
// Changes messages field by field, and prefers numbers at the limits of sizes and enumerations.
#pragma once

#include <google/protobuf/message.h>

#include "tests/fuzz/target.h"

namespace gemmd::fuzz {

void MutateMessage(google::protobuf::Message& message, Choices& choices);

}  // namespace gemmd::fuzz
