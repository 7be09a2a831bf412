// SPDX-License-Identifier: Apache-2.0
//
// What gRPC and the operating system are told about limits, timeouts and addresses.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/wire/certificates.h"
#include "server/wire/connection_acceptor.h"
#include "server/wire/incoming.h"

namespace gemmd {

// What gRPC is told. The defaults are those of the command line.
struct TransportOptions {
  // host:port, unix:/path, tls:host:port, mtls:host:port.
  std::vector<std::string> listen = {"127.0.0.1:8470"};
  bool insecure_allow_remote = false;  // Whether a plain host:port may be other than loopback.
  CertificateFiles certificates;       // Needed for tls: and mtls:.
  SocketAccess unix_sockets;           // The group is that of the operators, too.
  int64_t max_message_bytes = int64_t{512} << 20;
  int64_t memory_quota_bytes = 0;  // For gRPC's buffers; 0 takes a quarter of the memory limit.
  int max_concurrent_streams = 100;
  // How many connections there are at once, of all peers and of one; 0: see ConnectionLimitsOf.
  int64_t max_connections = 0;
  int64_t max_connections_per_peer = 0;
  absl::Duration handshake_timeout = absl::Seconds(5);
  absl::Duration max_connection_idle = absl::Minutes(10);
  absl::Duration max_connection_age = absl::Minutes(30);
  absl::Duration max_connection_age_grace = absl::Seconds(30);
  absl::Duration keepalive_time = absl::Seconds(20);
  absl::Duration keepalive_timeout = absl::Seconds(10);
  absl::Duration min_ping_interval = absl::Seconds(10);
};

// Errors: InvalidArgument for a value that gRPC cannot take; the message names the option.
// The quota stands for `memory_quota_bytes`.
absl::Status ConfigureTransport(const TransportOptions& options, const ReceiveQuota& quota,
                                grpc::ServerBuilder& builder);

// Whether the files of certificates are those that the addresses ask for, that of the metrics
// (empty for none) included, and make sense. Errors: InvalidArgument, naming the option that is
// missing or has no use, or what its file lacks.
absl::Status CheckTls(const TransportOptions& options, const std::string& metrics_listen);

// Refuses the path of a unix socket on which another process listens: gRPC would silently take it
// from that process. Errors: InvalidArgument for an empty path, Unavailable where it is in use.
absl::Status CheckAddress(const std::string& address);

// The address with the port that was bound ("127.0.0.1:0" and 4711 give "127.0.0.1:4711").
std::string WithPort(const std::string& address, int port);

// Lets open calls go on for so long, cuts those that are left, and waits until all have ended.
void EndCalls(grpc::Server& server, absl::Duration farewell);

// The memory that this process may use: the limit of its control groups, or the machine's memory.
int64_t MemoryLimitBytes();

// What the daemon keeps at most of a call whose peer says nothing: gRPC's part and our own. Before
// its message has arrived gRPC tells nobody of a call, so there is no other bound on how many there
// are than that on connections.
inline constexpr int64_t kIdleCallBytes = int64_t{24} << 10;

// The limits of connections. Without a number of their own there may be half as many as files may
// be open, at most 32768, and no more than whose idle calls take an eighth of the memory limit; and
// of one peer half as many as of all.
// Errors: InvalidArgument where the daemon would have too few files left for itself.
absl::StatusOr<ConnectionLimits> ConnectionLimitsOf(const TransportOptions& options,
                                                    int64_t open_files, int64_t memory_limit_bytes);

// How many files this process may have open.
absl::StatusOr<int64_t> OpenFileLimit();

// Raises the soft limit of open files to the hard limit; returns the new one.
absl::StatusOr<int64_t> RaiseOpenFileLimit();

// From now on what gRPC logs goes to the default logger as `event=grpc`, because it holds text that
// peers sent. Its errors become
// warnings, because a peer can cause most of them. gRPC's environment variable GRPC_VERBOSITY still
// says how much gRPC logs; by default only errors.
//
// Does nothing with gRPC 1.65 or newer, which logs through Abseil.
void RouteGrpcLog();

// The same for protobuf, as `event=protobuf`: a peer can cause its errors by a string that is no
// UTF-8, say.
//
// Does nothing with protobuf 22 or newer, which logs through Abseil.
void RouteProtobufLog();

}  // namespace gemmd
