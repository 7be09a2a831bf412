// SPDX-License-Identifier: Apache-2.0
//
// Flags of encryption and identity, which all tools share. The token itself is no flag, because
// everybody sees the command lines of a machine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/output_file.h"
#include "gemmd/client.h"

namespace CLI {
class App;
}

namespace gemmd {

struct SecurityFlags {
  TlsOptions tls = {};
  std::string token_file = {};
  bool use_proxy = false;
};

// What the variables GEMMD_TLS_CA, GEMMD_TLS_CERT, GEMMD_TLS_KEY, GEMMD_TLS_SERVER_NAME and
// GEMMD_TOKEN_FILE say: `value_of` gives that of a variable, empty where it is not set.
SecurityFlags SecurityFlagsOfEnvironment(const std::function<std::string(const char*)>& value_of);

// Their values of now are the defaults. `flags` outlives the app.
void AddSecurityFlags(CLI::App& app, SecurityFlags& flags);

// The files that are read.
std::vector<NamedFile> FilesOf(const SecurityFlags& flags);

// Reads the token. Errors: InvalidArgument where its file cannot be read or holds none.
absl::Status ApplySecurityFlags(const SecurityFlags& flags, ClientOptions& options);

}  // namespace gemmd
