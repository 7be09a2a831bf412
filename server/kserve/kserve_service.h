// SPDX-License-Identifier: Apache-2.0
//
// The service inference.GRPCInferenceService: KServe's v2 protocol, for clients that were written
// for other servers. Its products are processed like all others.
#pragma once

#include <functional>
#include <memory>

#include "kserve/v2/inference.grpc.pb.h"
#include "server/wire/product_exchange.h"

namespace gemmd {

// `is_ready` returns whether the server takes products; threads: any.
std::unique_ptr<grpc::Service> MakeKserveService(const ServiceParts& parts,
                                                 std::function<bool()> is_ready);

}  // namespace gemmd
