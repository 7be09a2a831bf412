// SPDX-License-Identifier: Apache-2.0
//
// Requests in the words of KServe with which the fuzzer begins, and what makes most of the changed
// ones requests that are taken.
#pragma once

#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace gemmd::fuzz {

void RepairInfer(google::protobuf::Message& message, Choices& choices);
std::vector<std::string> InferSeeds();

}  // namespace gemmd::fuzz
