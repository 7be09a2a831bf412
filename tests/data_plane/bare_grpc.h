// SPDX-License-Identifier: Apache-2.0
//
// The speed of gRPC itself when nobody looks at the bytes: a server in this process whose answers
// are as long as the call's path says. It copies each message once, as any server must that keeps
// it.
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

// A channel with its own connection.
std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address);

// Constant bytes in one slice; at most 256 MiB, starting anywhere.
grpc::ByteBuffer Bytes(size_t bytes, size_t from = 0);

class BareGrpc {
 public:
  static constexpr int kConnections = 4;

  // Uses the same transport as `beside`: a loopback port, or a unix socket with another name.
  explicit BareGrpc(const std::string& beside);
  ~BareGrpc();

  const std::string& address() const { return address_; }

  // One call that sends this many bytes, which are copied, or that receives them, which are not.
  void Up(size_t bytes, int connection = 0) { Call("/bare/take", Bytes(bytes), connection); }
  void Down(size_t bytes, int connection = 0);

  // As many bytes over as many streams, each on its own connection, in chunks; they are copied on
  // arrival.
  void StreamUp(size_t bytes, int connections) { Stream(bytes, connections, true); }
  void StreamDown(size_t bytes, int connections) { Stream(bytes, connections, false); }

  // The paths at which each message of a stream, or that of a unary call, is answered by one of
  // this length.
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
  std::vector<std::vector<std::byte>> areas_;  // Where each connection copies its bytes.
};

}  // namespace gemmd
