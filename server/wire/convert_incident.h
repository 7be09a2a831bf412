// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "gemmd/v1/incidents.pb.h"
#include "server/scheduling/incidents.h"

namespace gemmd {

v1::Incident ToWire(const IncidentLog::Entry& entry);

// The product that gave the wrong answer, with its operands unless they are not wanted.
// Errors: FailedPrecondition where what is wanted was not kept.
absl::StatusOr<v1::MultiplyRequest> ProductOf(const IncidentLog::Entry& entry,
                                              bool without_operands);

// Finds the product that the request is for. Errors: NotFound; ResourceExhausted where the answer
// takes more than `most_bytes`; those of ProductOf.
absl::StatusOr<v1::GetIncidentProductResponse> FindProduct(
    const std::vector<IncidentLog::Entry>& entries, const v1::GetIncidentProductRequest& request,
    int64_t most_bytes);

}  // namespace gemmd
