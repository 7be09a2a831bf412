// SPDX-License-Identifier: Apache-2.0
//
// Requests in KServe's form that the fuzzer starts with, and repairs that make most of the changed
// ones valid.
#pragma once

#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace gemmd::fuzz {

void RepairInfer(google::protobuf::Message& message, Choices& choices);
std::vector<std::string> InferSeeds();

}  // namespace gemmd::fuzz
