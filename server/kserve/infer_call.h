// SPDX-License-Identifier: Apache-2.0
//
// The calls of KServe's protocol that compute: one product, or a stream of them.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/kserve/infer_exchange.h"
#include "server/wire/wire_bytes.h"

namespace gemmd {

// Unanswered requests on one stream before the server stops reading, and answers that wait to be
// read.
inline constexpr size_t kMostStreamedInfers = 1024;
inline constexpr size_t kMostWaitingInferAnswers = 256;

// The reactors own themselves. Borrow the setting.
grpc::ServerUnaryReactor* StartInfer(const InferSetting& setting,
                                     grpc::CallbackServerContext& context, const WireBytes& request,
                                     WireBytes& response);
grpc::ServerBidiReactor<WireBytes, WireBytes>* StartInferStream(
    const InferSetting& setting, grpc::CallbackServerContext& context);

}  // namespace gemmd
