// SPDX-License-Identifier: Apache-2.0
//
// How the client reaches its servers: the addresses, the encryption and identity, and the channels
// of gRPC with balancing, retries, keepalive, message limits and no compression. Also the one place
// where a status of gRPC or of the wire becomes an absl::Status.
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

// An address is HOST:PORT, unix:PATH or another scheme of gRPC, with tls: or mtls: before it where
// connections are encrypted. Returns the address that gRPC knows, without tls: or mtls:.
absl::string_view WithoutTls(absl::string_view address);

// Whether an address without tls: leads to a unix socket, or to this machine whatever a resolver
// says.
bool IsUnix(absl::string_view address);
bool IsLoopback(absl::string_view address);

// Whether connections to the address are encrypted, as it says itself or a field of `tls` does.
bool HasTls(absl::string_view address, const TlsOptions& tls);

// What a handshake of TLS tells about a server, also about one whose certificate nobody should
// trust: gRPC tells of no connection that it refuses.
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

// gRPC's service config: every method retries on UNAVAILABLE, and on nothing else unless calls ride
// out restarts (ClientOptions::wait_for_ready); calls go round the servers that an address with a
// scheme stands for, but for those whose health is not SERVING.
std::string ServiceConfigJson(absl::string_view address, const ClientOptions& options);

// All channel arguments that the options stand for.
grpc::ChannelArguments ChannelArgumentsFor(absl::string_view address, const ClientOptions& options);

// One channel per options.channels, none of them connected yet.
// Errors: InvalidArgument for a bad address or option.
absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> MakeChannels(
    absl::string_view address, const ClientOptions& options);

// The status of a call that has ended, with the pause that the server asked for (see RetryPushback)
// where there is one. Codes that Abseil does not know become Unknown.
absl::Status ToAbslStatus(const grpc::Status& status, const grpc::ClientContext& context);

// The failure of one request of a stream. Code 0, which the contract forbids, becomes Unknown.
absl::Status ToAbslStatus(const v1::Error& error);

}  // namespace gemmd
