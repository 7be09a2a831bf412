// SPDX-License-Identifier: Apache-2.0
//
// One Tensors.Compress call: begun by the call's thread, answered by the compressor's.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/metrics/handler_times.h"
#include "server/store/compression.h"
#include "server/wire/gate.h"
#include "server/wire/send_watch.h"
#include "server/wire/unread_answers.h"

namespace gemmd {

// The reactor owns itself until gRPC is done with it; where its call ends early, by the client or
// by its deadline, so does the work. Borrows everything but the request.
grpc::ServerUnaryReactor* StartCompressCall(const HandlerTiming& timing, TensorStore& store,
                                            const Gate& gate, Compressor& compressor,
                                            UnreadAnswers& unread, SendWatch& watch,
                                            grpc::CallbackServerContext& context,
                                            const grpc::ByteBuffer& request,
                                            grpc::ByteBuffer& response);

}  // namespace gemmd
