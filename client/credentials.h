// SPDX-License-Identifier: Apache-2.0
//
// What the client's channels are encrypted with, and whether a token may pass them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemmd/client.h"
#include "grpcpp/security/credentials.h"

namespace gemmd {

// Whether connections to the address are encrypted, as it says itself or a field of `tls` does.
bool HasTls(absl::string_view address, const TlsOptions& tls);

// The certificates of a file, in PEM. A broken one is left out, which stderr says once: gRPC would
// silently read up to it. Errors: InvalidArgument if none is whole.
absl::StatusOr<std::string> ReadAuthorities(const std::string& path);

// Reads the files. Errors: InvalidArgument for options that do not fit each other or the address,
// and for files that cannot be read or do not hold what they should; it names the option, and shows
// neither key nor token.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    absl::string_view address, const ClientOptions& options);

}  // namespace gemmd
