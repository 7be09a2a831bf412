// SPDX-License-Identifier: Apache-2.0
//
// One Tensors.Put call: a stream that begins an upload, or joins one, and brings bytes of it.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/metrics/handler_times.h"
#include "server/store/tensor_store.h"
#include "server/system/clock.h"
#include "server/wire/gate.h"
#include "server/wire/send_watch.h"
#include "server/wire/unread_answers.h"

namespace gemmd {

// Starts reading. The reactor owns itself until gRPC is done with it. Borrows everything.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPutCall(
    TensorStore& store, const Gate& gate, UnreadAnswers& unread, SendWatch& watch,
    HandlerTimes& times, grpc::CallbackServerContext& context, const Clock& clock);

}  // namespace gemmd
