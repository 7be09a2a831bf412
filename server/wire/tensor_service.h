// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Tensors over gRPC's callback API, and the session in whose name a call
// comes. Messages come and go as bytes.
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

// The metadata of a call that have the token of its session.
inline constexpr char kSessionKey[] = "gemmd-session";

// Empty where there is not exactly one.
std::string SessionTokenOf(const grpc::CallbackServerContext& context);

// Errors: Unauthenticated where there is not exactly one token, or no such session of the caller.
absl::StatusOr<TensorStore::SessionUse> SessionOf(TensorStore& store, const Gate& gate,
                                                  grpc::CallbackServerContext& context);

std::unique_ptr<grpc::Service> MakeTensorService(const ServiceParts& parts);

}  // namespace gemmd
