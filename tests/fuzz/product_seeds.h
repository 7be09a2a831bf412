// SPDX-License-Identifier: Apache-2.0
//
// Requests of products with which the fuzzer begins, and what makes most of the changed ones
// requests that are taken.
#pragma once

#include <vector>

#include "client/operand_size.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {

// What the client reckons the bytes of an operand from; `rows` and `columns` are those of op(X).
OperandShape ShapeOf(const v1::Operand& operand, v1::ElementType type, int64_t rows,
                     int64_t columns, int64_t batch);

void RepairRequest(google::protobuf::Message& message, Choices& choices);

// A product of 4x4 matrices, without a fault.
v1::MultiplyRequest PlainRequest(v1::ElementType type = v1::ELEMENT_TYPE_F16);

// One product of each pair of types, with C, bias and scales by turns, and then what is rare.
std::vector<v1::MultiplyRequest> SeedRequests();

}  // namespace gemmd::fuzz
