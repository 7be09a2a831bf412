// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Gemm: unary calls and streams of products.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "gemmd/v1/gemm.grpc.pb.h"
#include "server/wire/calls.h"

namespace gemmd {

// The service gemmd.v1.Gemm over gRPC's callback API. Reactions parse, validate and enqueue; other
// threads send the answers. Messages are read and written as bytes, so that the service knows their
// size before it parses them, and so that no matrix is copied into an answer.
std::unique_ptr<grpc::Service> MakeGemmService(const ServiceParts& parts);

}  // namespace gemmd
