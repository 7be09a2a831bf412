// SPDX-License-Identifier: Apache-2.0
//
// Who may call what. Each call passes the gate before gRPC looks for its method, before its message
// is read and before any handler knows of it: so no service can forget to ask, and what exists is
// not told to whoever may not use it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
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

// The role that a call of the path needs: "/gemmd.v1.Gemm/Multiply". Nothing where anybody may call
// it, as health. A path that no service has needs a role that nobody has.
struct Requirement {
  bool is_open = false;
  std::optional<Role> role;
};
Requirement RequirementOf(std::string_view path);

class Gate {
 public:
  using Caller = std::shared_ptr<const Identity>;

  // Borrows it. Null where there are no rules; the gate is open then.
  explicit Gate(Trust* trust) : trust_(trust) {}

  bool is_open() const { return trust_ == nullptr; }

  // Whether the call may go on.
  // Errors: Unauthenticated, ResourceExhausted (Trust::Identify) and PermissionDenied, with the
  // same words for all that the caller may not call, whether or not it exists. Threads: any.
  absl::Status Admit(std::string_view path, const Evidence& evidence) const;

  // Who makes a call that was admitted, or sends one more message on it; null where the gate is
  // open.
  // Errors: as Admit, where the rules have changed since or a token has expired. Threads: any.
  absl::StatusOr<Caller> CallerOf(grpc::CallbackServerContext& context, Role role) const;

  // The name of who makes a call that was admitted; empty where the gate is open, or who it was is
  // known no more. Threads: any.
  std::string NameOfCaller(grpc::ServerContextBase& context) const;

  // The peer as gRPC names it, "ipv4:192.0.2.1:50123"; over a unix socket, where gRPC gives the
  // path that the peer itself chose, or none, its user: "unix:uid:1000", or "unix:" if it is not
  // known. Threads: any.
  std::string PeerOf(grpc::ServerContextBase& context) const;

  // Notes the user at the other end of a unix socket, and whether it is an operator, in what gRPC
  // keeps of the connection.
  void NoteUser(grpc_auth_context& connection, const std::string& user, bool is_operator) const
      ABSL_LOCKS_EXCLUDED(users_mutex_);

  // What a connection owes for bad tokens (Evidence), in bytes that gRPC keeps with the connection.
  // Adds them at its first call, so call it before anything reads what gRPC keeps of the
  // connection. Threads: any.
  TokenDebt* DebtOf(grpc_auth_context& connection) const ABSL_LOCKS_EXCLUDED(users_mutex_);
  TokenDebt* DebtOf(grpc::AuthContext& connection) const ABSL_LOCKS_EXCLUDED(users_mutex_);

  // Whether the call comes from an operator: who may operate the daemon where no rules say it.
  // Errors: PermissionDenied, with who called. Threads: any.
  absl::Status CheckOperator(grpc::ServerContextBase& context) const;

  // Whether the user is to be told apart from others: if there are rules, only if they name it.
  bool TellsApart(const std::string& user) const;

 private:
  absl::StatusOr<Caller> Identify(grpc::ServerContextBase& context) const;
  static std::string UserOf(const grpc_auth_context& connection);

  Trust* const trust_;
  // gRPC lets calls of one connection add to what it keeps of it at the same time.
  mutable Mutex users_mutex_;
};

// A number for the connection of a call, another one for each that is open: gRPC gives all peers of
// unix sockets the same name, but keeps something for each connection.
uint64_t ConnectionOf(grpc::CallbackServerContext& context);

// The names of a connection's certificate, URIs before hosts. Borrows them.
std::vector<std::string_view> NamesOf(const grpc_auth_context& connection);

// Has each call that needs a role, except products and the daemon's calls to itself, told to the
// audit log once it has ended: who called what, and how it ended. Products have lines of their own
// (server/product/product.h), as have calls that the gate refuses, which get no further.
// Does nothing where there is no audit log. Borrows the gate.
void AuditCalls(const Gate& gate, grpc::ServerBuilder& builder);

}  // namespace gemmd
