// SPDX-License-Identifier: Apache-2.0
//
// Makes gRPC's own log lines lines of the daemon's log, because they hold text that peers sent.
#pragma once

namespace gemmd {

// From now on what gRPC logs goes to the default logger as `event=grpc`. Its errors become
// warnings, because a peer can cause most of them. gRPC's environment variable GRPC_VERBOSITY still
// says how much gRPC logs; by default only errors.
//
// Does nothing with gRPC 1.65 or newer, which logs through Abseil.
void RouteGrpcLog();

}  // namespace gemmd
