// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Tensors over gRPC's callback API, and the session in whose name a call is
// made. Messages are read and written as bytes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "server/metrics/handler_times.h"
#include "server/product/product_runner.h"
#include "server/store/tensor_store.h"
#include "server/system/clock.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"

namespace gemmd {

// The key of the metadata that carry the token of the call's session.
inline constexpr char kSessionKey[] = "gemmd-session";

// Empty unless there is exactly one token.
std::string SessionTokenOf(const grpc::CallbackServerContext& context);

// Errors: Unauthenticated if there is not exactly one token, or if it is of no session of the
// caller.
absl::StatusOr<TensorStore::SessionUse> SessionOf(TensorStore& store, const Gate& gate,
                                                  grpc::CallbackServerContext& context);

std::unique_ptr<grpc::Service> MakeTensorService(const ServiceParts& parts);

}  // namespace gemmd
