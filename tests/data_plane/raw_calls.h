// SPDX-License-Identifier: Apache-2.0
//
// Many small calls with one prepared message: the client costs the same whatever the server is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gemmd/v1/gemm.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace gemmd {

struct RawTarget {
  std::string address;
  std::string path;
  // Sent in turn.
  std::vector<grpc::ByteBuffer> requests;
  std::string session = "";  // The session's token; empty: none.
  int products = 1;          // The number of products per message.
  bool is_checked = false;   // The answers are gemmd's: they are checked and counted.
};

constexpr char kMultiplyPath[] = "/gemmd.v1.Gemm/Multiply";
constexpr char kStreamPath[] = "/gemmd.v1.Gemm/MultiplyStream";

grpc::ByteBuffer Serialized(const google::protobuf::MessageLite& message);

class RawCalls {
 public:
  RawCalls(RawTarget target, int connections);
  ~RawCalls();

  // Unary calls with this many in flight: answers a second.
  double UnaryRate(int in_flight, double seconds);
  // Messages on one stream per connection, with this many products in flight over all: products a
  // second.
  double StreamRate(int in_flight, double seconds);
  // The seconds of each of this many unary calls, one after the other.
  std::vector<double> Latencies(int calls);

 private:
  const RawTarget target_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
};

}  // namespace gemmd
