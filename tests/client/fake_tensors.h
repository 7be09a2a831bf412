// SPDX-License-Identifier: Apache-2.0
//
// A Tensors service in this process that keeps bytes in memory and fails when the test wants it to.
// One session's tensors at a time; products are not computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace gemmd {

// Chunks and streams are numbered from 1 over all streams of the server's life.
struct TensorFaults {
  int64_t max_chunk_bytes = int64_t{1} << 20;
  int64_t max_bytes = int64_t{1} << 40;  // For all tensors; more is RESOURCE_EXHAUSTED.
  std::set<int> broken_put_chunks =
      {};  // Uploaded chunks; the stream of each ends with UNAVAILABLE, and the chunk is lost.
  std::set<int> broken_get_chunks = {};  // The same for downloaded chunks.
  std::set<int> broken_puts = {};  // Streams that end with UNAVAILABLE before their first answer.
  std::set<int> broken_sessions = {};  // The same for streams of sessions.
  bool ignores_chunks = false;         // Accepts no chunk; the streams stay open.
  bool sends_wrong_offsets = false;    // In Get.
  bool wants_too_much = false;         // Put asks for bytes outside of the tensor.
  absl::Duration session_delay = {};   // Before a session is opened.
};

struct StoredTensor {
  v1::TensorInfo info;
  std::string bytes;
};

class FakeTensors {
 public:
  explicit FakeTensors(TensorFaults faults = {});
  ~FakeTensors();

  const std::string& address() const { return address_; }

  // Ends the streams of sessions with UNAVAILABLE; their tokens stay valid unless `forgets`.
  void BreakSessions(bool forgets);

  // Ends them as a restart does: the server has another start, too.
  void Restart();

  int sessions_opened() const { return seen().sessions_opened; }
  int puts() const { return seen().puts; }
  int chunks() const { return seen().chunks; }
  int connections() const { return static_cast<int>(seen().peers.size()); }
  std::vector<std::string> deleted() const { return seen().deleted; }
  std::vector<v1::PutBegin> begun() const { return seen().begun; }
  std::vector<v1::MultiplyRequest> products() const { return seen().products; }
  std::string bytes_of(const std::string& handle) const { return seen().tensors[handle].bytes; }
  size_t tensors() const { return seen().tensors.size(); }
  std::vector<absl::Duration> times_left() const { return seen().times_left; }

 private:
  class Service;
  class Gemm;
  class Registry;

  struct Seen {
    int sessions_opened = 0;      // Streams; a session that is opened again counts again.
    int puts = 0;                 // Streams.
    int chunks = 0;               // Accepted chunks.
    std::set<std::string> peers;  // Connections of uploads and downloads.
    std::vector<std::string> deleted;
    std::vector<v1::PutBegin> begun;
    std::vector<v1::MultiplyRequest> products;
    std::map<std::string, StoredTensor> tensors;  // By handle.
    // The time left until the deadline when each call of a session came.
    std::vector<absl::Duration> times_left;
  };
  Seen seen() const;

  std::unique_ptr<Service> service_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace gemmd
