// SPDX-License-Identifier: Apache-2.0
//
// A Tensors service in this process that keeps bytes in memory and fails when the test wants it to.
// One session's tensors at a time; products are not computed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "tests/client/tensor_faults.h"

namespace gemmd {

class FakeTensorsService;

class FakeTensors {
 public:
  explicit FakeTensors(TensorFaults faults = {});
  ~FakeTensors();

  const std::string& address() const;

  // Ends the streams of sessions with UNAVAILABLE; their tokens stay valid unless `forgets`.
  void BreakSessions(bool forgets);

  // Ends them as a restart does: the server has another start, too.
  void Restart();

  int sessions_opened() const;  // Streams; a session that is opened again counts again.
  int puts() const;             // Streams.
  int chunks() const;           // Accepted chunks.
  int connections() const;      // Of uploads and downloads.
  std::vector<std::string> deleted() const;
  std::vector<v1::PutBegin> begun() const;
  std::vector<v1::MultiplyRequest> products() const;
  std::string bytes_of(const std::string& handle) const;
  size_t tensors() const;
  // The time left until the deadline when each call of a session came.
  std::vector<absl::Duration> times_left() const;

 private:
  class Gemm;
  class Registry;

  std::unique_ptr<FakeTensorsService> service_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace gemmd
