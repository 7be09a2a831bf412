// SPDX-License-Identifier: Apache-2.0
//
// What gRPC itself moves when nobody looks at the bytes: a server in this process whose answers
// are as long as the path of the call says. It copies what it takes once, as any server must that
// keeps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace gemmd {

// A channel with a connection of its own.
std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address);

// Bytes that nobody changes, in one slice; at most 256 MiB from any place on.
grpc::ByteBuffer Bytes(size_t bytes, size_t from = 0);

class BareGrpc {
 public:
  static constexpr int kConnections = 4;

  // Over the same transport as `beside`: a port of loopback, or a unix socket of another name.
  explicit BareGrpc(const std::string& beside);
  ~BareGrpc();

  const std::string& address() const { return address_; }

  // One call that brings so many bytes, which are copied, or that gets them, which are not.
  void Up(size_t bytes, int connection = 0) { Call("/bare/take", Bytes(bytes), connection); }
  void Down(size_t bytes, int connection = 0);

  // As many bytes over as many streams, each on a connection of its own, in chunks; they are copied
  // where they arrive.
  void StreamUp(size_t bytes, int connections) { Stream(bytes, connections, true); }
  void StreamDown(size_t bytes, int connections) { Stream(bytes, connections, false); }

  // The paths at which each message of a stream, or that of a unary call, is answered by one of
  // that length.
  static std::string EchoPath(size_t answer_bytes);
  static std::string AnswerPath(size_t answer_bytes);

 private:
  class Service final : public grpc::CallbackGenericService {
    grpc::ServerGenericBidiReactor* CreateReactor(
        grpc::GenericCallbackServerContext* context) override;
  };

  void Call(const std::string& path, const grpc::ByteBuffer& request, int connection);
  void Stream(size_t bytes, int connections, bool is_up);

  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::vector<std::vector<std::byte>> areas_;  // Where each connection copies what it gets.
};

}  // namespace gemmd
