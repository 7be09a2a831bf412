// SPDX-License-Identifier: Apache-2.0
//
// A Tensors service in this process that keeps bytes in memory and fails where the test wants it
// to. One session's tensors at a time; products are not computed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace gemmd {

// What goes wrong. Numbers count from 1 over all streams of the server's life.
struct TensorFaults {
  int64_t max_chunk_bytes = int64_t{1} << 20;
  int64_t max_bytes = int64_t{1} << 40;  // For all tensors; more is RESOURCE_EXHAUSTED.
  std::set<int> broken_put_chunks =
      {};  // The stream that brings one ends with UNAVAILABLE, the chunk lost.
  std::set<int> broken_get_chunks = {};  // The same of those that are asked for.
  std::set<int> broken_puts = {};    // Streams that end with UNAVAILABLE before their first answer.
  bool ignores_chunks = false;       // Takes no chunk; the streams stay open.
  bool sends_wrong_offsets = false;  // In Get.
  bool wants_too_much = false;       // Put asks for bytes outside of the tensor.
};

class FakeTensors {
 public:
  explicit FakeTensors(TensorFaults faults = {});
  ~FakeTensors();

  const std::string& address() const;

  // Ends the streams of sessions with UNAVAILABLE; their tokens stay valid unless they are
  // forgotten.
  void BreakSessions(bool forgets);

  int sessions_opened() const;  // By streams, the same one again counted again.
  int puts() const;             // Streams.
  int chunks() const;           // That were taken.
  int connections() const;      // That uploads and downloads came over.
  std::vector<std::string> deleted() const;
  std::vector<v1::PutBegin> begun() const;
  std::vector<v1::MultiplyRequest> products() const;
  std::string bytes_of(const std::string& handle) const;
  size_t tensors() const;

 private:
  class Service;
  class Gemm;

  std::unique_ptr<Service> service_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace gemmd
