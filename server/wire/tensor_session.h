// SPDX-License-Identifier: Apache-2.0
//
// The session in whose name a call comes, and the call that keeps one open.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "server/metrics/handler_times.h"
#include "server/store/tensor_store.h"
#include "server/wire/gate.h"
#include "server/wire/send_watch.h"

namespace gemmd {

// The metadata of a call that have the token of its session.
inline constexpr char kSessionKey[] = "gemmd-session";

// Empty where there is not exactly one.
std::string SessionTokenOf(const grpc::CallbackServerContext& context);

// Errors: Unauthenticated where there is not exactly one token, or no such session of the caller.
absl::StatusOr<TensorStore::SessionUse> SessionOf(TensorStore& store, const Gate& gate,
                                                  grpc::CallbackServerContext& context);

// One Tensors.OpenSession call. The reactor owns itself. Borrows everything but the request.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartSessionCall(const HandlerTiming& timing,
                                                             TensorStore& store, const Gate& gate,
                                                             SendWatch& watch,
                                                             grpc::CallbackServerContext& context,
                                                             const grpc::ByteBuffer& request);

}  // namespace gemmd
