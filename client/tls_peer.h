// SPDX-License-Identifier: Apache-2.0
//
// What a handshake of TLS tells about a server, also about one whose certificate nobody should
// trust: gRPC tells of no connection that it refuses.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gemmd/client.h"

namespace gemmd {

struct TlsPeer {
  std::string version;  // "TLSv1.3".
  absl::Time not_after = absl::InfinitePast();
  std::string fault;  // Why the certificate is not to be trusted; empty where it is.
};

// Connects, shakes hands and leaves. `host_and_port`: an address without tls: before it.
// Errors: DeadlineExceeded, Unavailable where there is no such handshake, InvalidArgument for files
// that cannot be used.
absl::StatusOr<TlsPeer> LookAtTlsPeer(const std::string& host_and_port, const TlsOptions& tls,
                                      absl::Time deadline);

}  // namespace gemmd
