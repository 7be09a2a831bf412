// SPDX-License-Identifier: Apache-2.0
//
// The address of the metrics, and the socket that peers connect to.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/system/file_descriptor.h"

namespace gemmd {

// What protects the connections to an address.
enum class HttpSecurity {
  kNone,
  kTls,        // The daemon shows a certificate.
  kMutualTls,  // The peer shows one too.
};

// That of an address, which may be wrong in all that follows its prefix, tls: or mtls:.
HttpSecurity HttpSecurityOf(std::string_view address);

// Errors: InvalidArgument for anything but an IP address and a port, after tls:, mtls: or nothing:
// "127.0.0.1:8471", "tls:[::1]:0".
absl::Status CheckHttpAddress(std::string_view address);

// A socket that peers may already connect to; the listener that gets it answers them.
struct HttpSocket {
  FileDescriptor socket;
  std::string address;  // The address in use, with its prefix and the port that was chosen.
};

// From where connections without TLS may come.
enum class PlainHttpReach { kLoopback, kAnywhere };

// Port 0 takes a free port.
// Errors: InvalidArgument as CheckHttpAddress; FailedPrecondition for an address without TLS that
// `reach` does not allow; Unavailable where the address cannot be listened on, with the system's
// reason.
absl::StatusOr<HttpSocket> ListenForHttp(std::string_view address,
                                         PlainHttpReach reach = PlainHttpReach::kLoopback);

}  // namespace gemmd
