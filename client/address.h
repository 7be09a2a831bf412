// SPDX-License-Identifier: Apache-2.0
//
// The address of a server, or of several: HOST:PORT, unix:PATH and gRPC's other schemes, with tls:
// or mtls: before it where connections are encrypted.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gemmd {

// The address that gRPC knows: without tls: or mtls:.
absl::string_view WithoutTls(absl::string_view address);

// Whether an address without tls: leads to a unix socket, or to this machine whatever a resolver
// says.
bool IsUnix(absl::string_view address);
bool IsLoopback(absl::string_view address);

// Whether an address without tls: may stand for several servers: a name of DNS does that only where
// it is asked for as one, so that a plain host:port keeps to one server even while that drains.
bool MayNameSeveral(absl::string_view address);

// Catches what gRPC would only report with the first call, minutes later and in words of its own.
// Errors: InvalidArgument, which says what would be right where that can be known.
absl::Status CheckAddress(absl::string_view address);

}  // namespace gemmd
