// SPDX-License-Identifier: Apache-2.0
//
// The session that tensor commands share, and its tensors as text and as JSON. Each command is a
// separate process, so the token is stored in one file per address, readable only by this user, and
// beside it which files were put.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/gemmctl/command.h"
#include "client/matrix/npy.h"
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
    "unpinned tensors with it. If the daemon is restarted, the next command puts pinned tensors\n"
    "with names again, from the files that they were put from.";

// A client that has joined the session. If there is none and `may_open`, opens one and stores its
// token. If the server has lost the session, opens another and puts the remembered files again,
// except the one of `replaced`, which the command replaces. Errors: those of Connect and
// of the server; FailedPrecondition if there is no session, or a remembered file has changed or is
// missing; Unauthenticated if the named session no longer exists.
absl::StatusOr<Client> ConnectSession(const GlobalFlags& flags, bool may_open,
                                      const Console& console, const std::string& replaced = "");

// A file that a tensor was put from.
struct PutFile {
  std::string path;         // Absolute.
  std::string type;         // As in --type; empty: the file's own.
  int64_t bytes = 0;        // Of the file.
  int64_t modified_ns = 0;  // When it was modified, since the epoch.
};

// The facts of a file, before it is read; nullopt if it is not a regular one.
std::optional<PutFile> FactsOf(const std::string& path, const std::string& type);

// The view of a .npy file of 2 or 3 dimensions; sets the number of matrices.
absl::StatusOr<MatrixView> ViewFile(const MappedNpy& npy, PutOptions& options);

// Remembers a pinned tensor with a name beside the session's token, so that commands put it again
// once the server has lost the session. Does nothing for a session given by its token. The hash is
// in `options`. Prints a warning if it fails.
void RememberPut(const GlobalFlags& flags, Client& client, const PutFile& file,
                 const v1::TensorInfo& tensor, const PutOptions& options, const Console& console);

// Forgets the file of the tensor with this name or handle. Returns whether it was remembered.
// Prints a warning if it fails.
bool ForgetPut(const GlobalFlags& flags, const std::string& tensor, const Console& console);

// Prints why there is no session, and returns the exit code.
ExitCode FailSession(const Console& console, const absl::Status& status);

// "@weights", "weights", or a handle in 32 hexadecimal digits.
TensorRef TensorNamed(const std::string& text);

std::string TensorTable(const v1::ListTensorsResponse& tensors);

// One tensor in a few lines.
std::string TensorText(const v1::TensorInfo& tensor);

nlohmann::ordered_json TensorJson(const v1::TensorInfo& tensor);

}  // namespace gemmd
