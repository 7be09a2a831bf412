// SPDX-License-Identifier: Apache-2.0
//
// The server's choice for a product, for people.
#pragma once

#include <string>

#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"

namespace gemmd {

// The device, the kernels that can run the product with their predicted times, and why the rest
// cannot. Unless `is_complete`, only the first candidates, and one line for each reason of refusal.
std::string ExplanationTable(const v1::MultiplyRequest& request,
                             const v1::ExplainResponse& explanation, bool is_complete);

}  // namespace gemmd
