// SPDX-License-Identifier: Apache-2.0
//
// The reflection service, which lists and describes what can be called. gRPC's own blocks a thread
// for each open stream, and parses whatever is sent to it.
#pragma once

#include <grpcpp/impl/server_builder_option.h>

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

// Errors: InvalidArgument for a name that is too long. If something does not exist, the answer says
// so.
absl::StatusOr<ReflectionReply> AnswerReflection(ReflectionQuestion question,
                                                 const std::vector<std::string>& services);

// Adds the service to a server, as v1 and v1alpha. It lists all services of that server, itself
// included, and describes everything whose descriptors are in this program.
std::unique_ptr<grpc::ServerBuilderOption> Reflection(const ServiceParts& parts);

}  // namespace gemmd
