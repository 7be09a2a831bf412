// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Gemm: unary calls and streams of products.
#pragma once

#include <grpcpp/grpcpp.h>

#include "gemmd/v1/gemm.grpc.pb.h"
#include "server/wire/product_exchange.h"

namespace gemmd {

// The service gemmd.v1.Gemm over gRPC's callback API. Reactions parse, validate and enqueue; other
// threads send the answers. Messages are read and written as bytes, so that the service knows their
// size before it parses them, and so that no matrix is copied into an answer.
class GemmService final : public v1::Gemm::Service {
 public:
  explicit GemmService(const ServiceParts& parts);

 private:
  // Has another name than the base's typed method, which is never called.
  grpc::ServerUnaryReactor* StartMultiply(grpc::CallbackServerContext& context,
                                          const WireBytes& request, WireBytes& response);

  const ServiceParts parts_;
};

}  // namespace gemmd
