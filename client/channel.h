// SPDX-License-Identifier: Apache-2.0
//
// How the client reaches its servers: addresses, encryption, identity, and gRPC channels with load
// balancing, retries, keepalive, message limits and no compression. Also the only place that
// converts a gRPC status or a wire error to absl::Status.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/status.h"

namespace gemmd {

// An address is HOST:PORT, unix:PATH or another gRPC scheme, with the prefix tls: or mtls: if
// connections are encrypted. Returns the address without that prefix, as gRPC expects it.
absl::string_view WithoutTls(absl::string_view address);

// Whether an address (without tls:) is a unix socket, or (IsLoopback) this machine without asking a
// resolver.
bool IsUnix(absl::string_view address);
bool IsLoopback(absl::string_view address);

// Whether connections to the address are encrypted, due to its prefix or a field of `tls`.
bool HasTls(absl::string_view address, const TlsOptions& tls);

// What a TLS handshake reveals about a server, even one with an untrusted certificate: gRPC gives
// no details of connections that it refuses.
struct TlsPeer {
  std::string version;  // "TLSv1.3".
  absl::Time not_after = absl::InfinitePast();
  std::string fault;  // Why the certificate is not trusted; empty if it is.
};

// Connects, performs a TLS handshake and disconnects. `host_and_port`: an address without tls:.
// Errors: DeadlineExceeded; Unavailable if the handshake fails; InvalidArgument for unusable files.
absl::StatusOr<TlsPeer> LookAtTlsPeer(const std::string& host_and_port, const TlsOptions& tls,
                                      absl::Time deadline);

// gRPC's service config: every method retries on UNAVAILABLE, and with wait_for_ready on CANCELLED.
// If the address has a scheme that names several servers, calls go to them in turn, except to
// servers whose health is not SERVING.
std::string ServiceConfigJson(absl::string_view address, const ClientOptions& options);

// All channel arguments that the options imply.
grpc::ChannelArguments ChannelArgumentsFor(absl::string_view address, const ClientOptions& options);

// Creates `options.channels` channels, not connected yet. Errors: InvalidArgument for a bad address
// or option.
absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> MakeChannels(
    absl::string_view address, const ClientOptions& options);

// The status of a call that has ended, with the delay that the server asked for, if any (see
// RetryPushback). Codes unknown to Abseil become Unknown.
absl::Status ToAbslStatus(const grpc::Status& status, const grpc::ClientContext& context);

// The failure of one request of a stream. Code 0, which the contract forbids, becomes Unknown.
absl::Status ToAbslStatus(const v1::Error& error);

}  // namespace gemmd
