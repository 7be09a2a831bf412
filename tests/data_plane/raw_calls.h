// SPDX-License-Identifier: Apache-2.0
//
// Many small calls of one message that was made before: the client costs the same whoever answers.
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
  // Each in its turn.
  std::vector<grpc::ByteBuffer> requests;
  std::string session = "";  // In whose name; empty: nobody's.
  int products = 1;          // Each message has so many.
  bool is_checked = false;   // The answers are those of gemmd: looked at, and counted.
};

constexpr char kMultiplyPath[] = "/gemmd.v1.Gemm/Multiply";
constexpr char kStreamPath[] = "/gemmd.v1.Gemm/MultiplyStream";

grpc::ByteBuffer Serialized(const google::protobuf::MessageLite& message);

class RawCalls {
 public:
  RawCalls(RawTarget target, int connections);
  ~RawCalls();

  // Unary calls, so many in flight: answers a second.
  double UnaryRate(int in_flight, double seconds);
  // Messages on one stream for each connection, so many products in flight over all: products
  // a second.
  double StreamRate(int in_flight, double seconds);
  // Seconds of each of so many unary calls, one after the other.
  std::vector<double> Latencies(int calls);

 private:
  const RawTarget target_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
};

}  // namespace gemmd
