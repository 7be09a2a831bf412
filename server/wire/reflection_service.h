// SPDX-License-Identifier: Apache-2.0
//
// The service that tells what there is to call. gRPC's own one blocks a thread for each stream that
// is open, and makes messages of whatever is sent to it.
#pragma once

#include <grpcpp/impl/server_builder_option.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "reflection/v1/reflection.pb.h"
#include "server/metrics/handler_times.h"
#include "server/product/product_runner.h"
#include "server/system/clock.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"

namespace gemmd {

using ReflectionQuestion = grpc::reflection::v1::ServerReflectionRequest;
using ReflectionReply = grpc::reflection::v1::ServerReflectionResponse;

// What one question has at most: its longest text is a name of kMaxNameBytes.
inline constexpr size_t kMaxReflectionBytes = size_t{64} << 10;

// Errors: InvalidArgument for a name that is too long. That something is not there is an answer.
absl::StatusOr<ReflectionReply> AnswerReflection(ReflectionQuestion question,
                                                 const std::vector<std::string>& services);

// Adds the service to a server, as v1 and v1alpha. It lists all services of that, itself included,
// and describes what this program has descriptors of.
std::unique_ptr<grpc::ServerBuilderOption> Reflection(const ServiceParts& parts);

}  // namespace gemmd
