// SPDX-License-Identifier: Apache-2.0
//
// The session that tensor commands share, and its tensors as text and as JSON. Each command is a
// separate process, so the token is stored in one file per address, readable only by this user.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/gemmctl/command.h"
#include "client/terminal/console.h"
#include "gemmd/client.h"
#include "gemmd/v1/resident.pb.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// The end of the help of each of these commands.
inline constexpr char kSessionHelp[] =
    "Tensors belong to a session, whose token gemmctl stores for each address in\n"
    "$XDG_RUNTIME_DIR/gemmd, or else in /tmp/gemmd-UID; --session or $GEMMD_SESSION select "
    "another\n"
    "session. A session ends 30 s (--session-linger of the daemon) after its last command, and "
    "its\n"
    "unpinned tensors with it.";

// A client that has joined the session. If there is none and `may_open`, opens one and stores its
// token. Errors: those of Connect and of the server; FailedPrecondition if there is no session;
// Unauthenticated if the named session no longer exists.
absl::StatusOr<Client> ConnectSession(const GlobalFlags& flags, bool may_open,
                                      const Console& console);

// Prints why there is no session, and returns the exit code.
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
