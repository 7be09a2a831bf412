// SPDX-License-Identifier: Apache-2.0
//
// A gRPC server in this process whose answers the test scripts: on its own port, with gRPC's health
// service. It only does what the script says.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "gemmd/v1/gemm.grpc.pb.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/registry.grpc.pb.h"
#include "gemmd/v1/statistics.pb.h"
#include "grpcpp/grpcpp.h"

namespace gemmd {

// What the server does with each call. An empty function means UNIMPLEMENTED.
struct FakeScript {
  // Answers a Multiply. If it returns no status, the call stays open until its client cancels it.
  std::function<std::optional<grpc::Status>(grpc::CallbackServerContext&,
                                            const v1::MultiplyRequest&, v1::MultiplyResponse&)>
      multiply;
  std::function<grpc::Status(
      grpc::ServerContext&,
      grpc::ServerReaderWriter<v1::MultiplyStreamResponse, v1::MultiplyStreamRequest>&)>
      multiply_stream;
  std::function<grpc::Status(const v1::ListKernelsRequest&, v1::ListKernelsResponse&)> list_kernels;
  std::function<grpc::Status(v1::ListDevicesResponse&)> list_devices;
  std::function<grpc::Status(const v1::ExplainRequest&, v1::ExplainResponse&)> explain;
  std::function<grpc::Status(v1::GetServerInfoResponse&)> get_server_info;
  std::function<grpc::Status(v1::GetStatisticsResponse&)> get_statistics;
  std::function<grpc::Status(const v1::ListInstructionsRequest&, v1::ListInstructionsResponse&)>
      list_instructions;
  std::function<grpc::Status(const v1::DescribeFragmentRequest&, v1::DescribeFragmentResponse&)>
      describe_fragment;
};

class FakeServer {
 public:
  explicit FakeServer(FakeScript script);
  ~FakeServer();

  const std::string& address() const { return address_; }

  // The number of Multiply calls that have arrived; each retry counts.
  int multiply_calls() const;

  // The number of Multiply calls that their client cancelled.
  int abandoned_calls() const;

  // The number of connections over which Multiply calls came.
  int connections() const;

  void SetServing(bool is_serving);

 private:
  class Gemm;
  class Registry;

  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// A script whose Multiply answers with D = op(A) op(B) for one f32 product of row-major operands.
FakeScript ComputingScript();

// A script whose Multiply keeps the request and refuses it. Borrows `sent`.
FakeScript KeepingScript(v1::MultiplyRequest& sent);

}  // namespace gemmd
