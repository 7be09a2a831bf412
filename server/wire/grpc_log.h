// SPDX-License-Identifier: Apache-2.0
//
// gRPC's own log lines, as lines of ours: they hold text that peers sent, as it came.
#pragma once

namespace gemmd {

// From now on what gRPC logs goes to the default logger as `event=grpc`. Its errors become
// warnings, because a peer can bring most of them about. How much it logs is still told by its
// environment variable GRPC_VERBOSITY; by default errors only.
//
// Does nothing with gRPC 1.65 or newer, which logs by way of Abseil.
void RouteGrpcLog();

}  // namespace gemmd
