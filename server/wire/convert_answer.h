// SPDX-License-Identifier: Apache-2.0
//
// The answer of a product as the wire has it.
#pragma once

#include "gemmd/v1/gemm.pb.h"
#include "server/scheduling/product.h"

namespace gemmd {

// Fills the answer of a product that is OK, except for its timing; the bytes of D are there.
void FillResponse(const Product& product, v1::MultiplyResponse& response);

v1::Timing ToWire(const ProductTiming& timing);
v1::VerifyMode ToWire(VerifyMode mode);
v1::Verification ToWire(const AnswerVerification& verification);

}  // namespace gemmd
