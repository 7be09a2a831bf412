// SPDX-License-Identifier: Apache-2.0
//
// Requests for products that the fuzzer starts with, and repairs that make most of the changed ones
// valid.
#pragma once

#include <vector>

#include "client/operand_size.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {

// The numbers from which the client computes the bytes of an operand; `rows` and `columns` are
// those of op(X).
OperandShape ShapeOf(const v1::Operand& operand, v1::ElementType type, int64_t rows,
                     int64_t columns, int64_t batch);

void RepairRequest(google::protobuf::Message& message, Choices& choices);

// A product of 4x4 matrices, without a fault.
v1::MultiplyRequest PlainRequest(v1::ElementType type = v1::ELEMENT_TYPE_F16);

// One product of each pair of types, with C, bias and scales in turn, and then the unusual ones.
std::vector<v1::MultiplyRequest> SeedRequests();

}  // namespace gemmd::fuzz
