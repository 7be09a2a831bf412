// SPDX-License-Identifier: Apache-2.0
//
// Decides who may call what. Each call passes the gate before gRPC looks up its method, before its
// message is read and before any handler sees it. So no service can forget the check, and a caller
// cannot find out which methods exist that it may not use.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/system/mutex.h"
#include "server/trust/trust.h"

struct grpc_auth_context;

namespace gemmd {

// What the messages of a method are, as far as bounds of what arrives go.
enum class MessageKind : uint8_t {
  kOperands,
  kQuestion,      // Of a method without operands.
  kOpenQuestion,  // Of a method that needs no token, such as health's.
};
inline constexpr size_t kMessageKinds = 3;

// Who may call a method, and how long the messages sent to it may be: as long as any honest one.
struct MethodRule {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  std::string_view prefix;  // Of the method's path, for example "/gemmd.v1.Gemm/Multiply".
  // The role that a caller needs. Nobody has the role of a method that has none, unless the method
  // is open.
  std::optional<Role> role;
  MessageKind kind = MessageKind::kQuestion;
  // A longer message is refused once it has arrived. By default it has at most a few names,
  // patterns and handles, of 128 bytes each, and 1 KiB of unknown fields. For methods with operands
  // only --max-message-bytes applies.
  int64_t max_bytes = int64_t{4} << 10;
  // The connection of a message that declares more is closed at once: gRPC gathers all of a message
  // before the daemon can refuse it.
  int64_t max_declared_bytes = kUnlimited;

  bool is_open() const { return kind == MessageKind::kOpenQuestion; }
};

// The rule of a path, which need not be that of any method.
const MethodRule& RuleOf(std::string_view path);

class Gate {
 public:
  using Caller = std::shared_ptr<const Identity>;

  // Borrows `trust`. It is null if there are no rules; the gate is open then.
  explicit Gate(Trust* trust) : trust_(trust) {}

  bool is_open() const { return trust_ == nullptr; }

  // Whether the call may proceed. Errors: Unauthenticated and ResourceExhausted (Trust::Identify);
  // PermissionDenied, with the same text for every method that the caller may not call, whether or
  // not it exists. Threads: any.
  absl::Status Admit(std::string_view path, const Evidence& evidence) const;

  // The caller of an admitted call, asked again for each further message on it; null if the gate is
  // open. Errors: as Admit, if the rules have changed since or a token has expired. Threads: any.
  absl::StatusOr<Caller> CallerOf(grpc::CallbackServerContext& context, Role role) const;

  // The name of the caller of an admitted call; empty if the gate is open or the caller is no
  // longer known. Threads: any.
  std::string NameOfCaller(grpc::ServerContextBase& context) const;

  // The name by which the caller of an admitted call shares the server with others (FlowId): its
  // identity, or the user or host of its connection. Threads: any.
  std::string FlowNameOf(grpc::ServerContextBase& context) const;

  // The peer as gRPC names it, "ipv4:192.0.2.1:50123". Over a unix socket, gRPC's name is the path
  // that the peer itself chose, or none, so the user takes its place: "unix:uid:1000", or "unix:"
  // if the user is not known. Threads: any.
  std::string PeerOf(grpc::ServerContextBase& context) const;

  // Records in gRPC's properties of the connection which user is at the other end of a unix socket
  // and whether that user is an operator.
  void NoteUser(grpc_auth_context& connection, const std::string& user, bool is_operator) const
      ABSL_LOCKS_EXCLUDED(users_mutex_);

  // What a connection owes for bad tokens (Evidence), in bytes that gRPC keeps with the connection.
  // The connection's first call adds them, so call this before anything reads gRPC's properties of
  // the connection. Threads: any.
  TokenBucket* BadTokensOf(grpc_auth_context& connection) const ABSL_LOCKS_EXCLUDED(users_mutex_);
  TokenBucket* BadTokensOf(grpc::AuthContext& connection) const ABSL_LOCKS_EXCLUDED(users_mutex_);

  // Whether the caller is an operator, which decides who may operate the daemon if there are no
  // rules. Errors: PermissionDenied, naming the caller. Threads: any.
  absl::Status CheckOperator(grpc::ServerContextBase& context) const;

  // Whether the user is distinguished from other users: always without rules, and with rules only
  // if they name the user.
  bool TellsApart(const std::string& user) const;

 private:
  absl::StatusOr<Caller> Identify(grpc::ServerContextBase& context) const;
  static std::string UserOf(const grpc_auth_context& connection);

  Trust* const trust_;
  // gRPC lets concurrent calls of one connection add properties to it.
  mutable Mutex users_mutex_;
};

// A number for the connection of a call, unique among open connections. gRPC gives all peers of
// unix sockets the same name, but keeps properties for each connection.
uint64_t ConnectionOf(grpc::CallbackServerContext& context);

// The names in a connection's certificate, URIs before hosts. Borrows them.
std::vector<std::string_view> NamesOf(const grpc_auth_context& connection);

// Writes a line to the audit log at the end of each call that needs a role: who called what, and
// how it ended. Products have lines of their own (server/product/product.h), and so have calls that
// the gate refuses, which get no further. The daemon's calls to itself have none. Does nothing if
// there is no audit log. Borrows the gate.
void AuditCalls(const Gate& gate, grpc::ServerBuilder& builder);

}  // namespace gemmd
