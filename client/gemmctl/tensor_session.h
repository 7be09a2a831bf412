// SPDX-License-Identifier: Apache-2.0
//
// The session that commands about tensors share, and its tensors as text and as JSON. Each command
// is a process of its own, so the token is kept: a file for each address, which nobody else can
// read.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/gemmctl/command.h"
#include "client/terminal/console.h"
#include "gemmd/client.h"
#include "gemmd/v1/resident.pb.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// Ends the help of each of these commands.
inline constexpr char kSessionHelp[] =
    "Tensors belong to a session, whose token gemmctl keeps for each address in\n"
    "$XDG_RUNTIME_DIR/gemmd, or else in /tmp/gemmd-UID; --session or $GEMMD_SESSION name another\n"
    "one. A session ends 30 s (--session-linger of the daemon) after its last command, and "
    "tensors\n"
    "that are not pinned with it.";

// A client that has joined the session; where there is none, `may_open` one and keeps its token.
// Errors: InvalidArgument as Connect; FailedPrecondition where there is none; Unauthenticated where
// the one that was named is no more; those of the server.
absl::StatusOr<Client> ConnectSession(const GlobalFlags& flags, bool may_open,
                                      const Console& console);

// Prints why there is no session, and says what kind of failure that is.
ExitCode FailSession(const Console& console, const absl::Status& status);

// "@weights", "weights", or a handle in 32 hexadecimal digits.
TensorRef TensorNamed(const std::string& text);

// "256 x 512 bf16", "4 of 256 x 512 e4m3 2:4, columns".
std::string ShapeText(const v1::TensorSpec& spec);

std::string TensorTable(const v1::ListTensorsResponse& tensors);

// One tensor in a few lines.
std::string TensorText(const v1::TensorInfo& tensor);

nlohmann::ordered_json TensorJson(const v1::TensorInfo& tensor);

}  // namespace gemmd
