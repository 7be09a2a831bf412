// SPDX-License-Identifier: Apache-2.0
//
// One Tensors.Get call: the bytes of a tensor leave as slices of its memory.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/metrics/handler_times.h"
#include "server/store/tensor_store.h"
#include "server/wire/gate.h"
#include "server/wire/send_watch.h"
#include "server/wire/unread_answers.h"

namespace gemmd {

// The reactor owns itself until gRPC is done with it. Borrows everything but the request, which it
// takes.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGetCall(const HandlerTiming& timing,
                                                         TensorStore& store, const Gate& gate,
                                                         UnreadAnswers& unread, SendWatch& watch,
                                                         grpc::CallbackServerContext& context,
                                                         const grpc::ByteBuffer& request);

}  // namespace gemmd
