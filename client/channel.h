// SPDX-License-Identifier: Apache-2.0
//
// How the client's gRPC channels are made: balancing, retries, keepalive, message limits, no
// compression.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemmd/client.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace gemmd {

// gRPC's service config: every method retries on UNAVAILABLE, and on nothing else; calls go round
// the servers that an address with a scheme stands for, but for those whose health is not SERVING.
std::string ServiceConfigJson(absl::string_view address, const ClientOptions& options);

// All channel arguments that the options stand for.
grpc::ChannelArguments ChannelArgumentsFor(absl::string_view address, const ClientOptions& options);

// One channel per options.channels, none of them connected yet.
// Errors: InvalidArgument for a bad address or option.
absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> MakeChannels(
    absl::string_view address, const ClientOptions& options);

}  // namespace gemmd
