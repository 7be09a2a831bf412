// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Gemm: unary calls and streams of products.
#pragma once

#include <grpcpp/grpcpp.h>

#include "gemmd/v1/gemm.grpc.pb.h"
#include "server/wire/product_exchange.h"

namespace gemmd {

// The service gemmd.v1.Gemm over gRPC's callback API: reactions parse, validate and enqueue;
// answers are made on other threads. Messages come and go as bytes, so that the service knows
// what they take before they are parsed, and so that no matrix is copied into an answer.
class GemmService final : public v1::Gemm::Service {
 public:
  explicit GemmService(const ServiceParts& parts);

 private:
  // By another name than the typed method of the base, which is never called.
  grpc::ServerUnaryReactor* StartMultiply(grpc::CallbackServerContext& context,
                                          const WireBytes& request, WireBytes& response);

  const ServiceParts parts_;
};

}  // namespace gemmd
