// SPDX-License-Identifier: Apache-2.0
//
// The Admin service, for operators of a running server. Callers need a local socket, or the role
// that the rules require for it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gemmd/v1/admin.pb.h"
#include "gemmd/v1/incidents.pb.h"
#include "server/device/device.h"
#include "server/metrics/handler_times.h"
#include "server/product/product_runner.h"
#include "server/product/verification.h"
#include "server/store/tensor_store.h"
#include "server/system/clock.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"

namespace gemmd {

v1::Incident ToWire(const IncidentLog::Entry& entry);

// The product that gave the wrong answer, with its operands unless `without_operands`. Errors:
// FailedPrecondition if the operands, or the scale factors, were not kept.
absl::StatusOr<v1::MultiplyRequest> ProductOf(const IncidentLog::Entry& entry,
                                              bool without_operands);

// Finds the product of the incident that the request names. Errors: NotFound; ResourceExhausted if
// the answer takes more than `max_bytes`; those of ProductOf.
absl::StatusOr<v1::GetIncidentProductResponse> FindProduct(
    const std::vector<IncidentLog::Entry>& entries, const v1::GetIncidentProductRequest& request,
    int64_t max_bytes);

// Errors: InvalidArgument if the limit is out of range.
absl::StatusOr<v1::ListSessionsResponse> ListSessions(const TensorStore& store,
                                                      const v1::ListSessionsRequest& request);

// Errors: InvalidArgument if the id is too long; NotFound if no session has the id.
absl::StatusOr<TensorStore::Dropped> DropSession(TensorStore& store,
                                                 const v1::DropSessionRequest& request);

// Borrows all arguments. A message holds at most `max_message_bytes`.
std::unique_ptr<grpc::Service> MakeAdminService(const std::vector<ServedDevice>& devices,
                                                const ServiceParts& parts,
                                                const IncidentLog& incidents,
                                                int64_t max_message_bytes);

}  // namespace gemmd
