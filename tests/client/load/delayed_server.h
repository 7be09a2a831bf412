// SPDX-License-Identifier: Apache-2.0
//
// A gRPC server in this process with known delays: every Multiply is answered a fixed time after
// its arrival, and during one stall not before the stall's end. No thread waits for a call, so any
// number of calls may be delayed at once. It computes nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"

namespace gemmd {

struct DelayScript {
  absl::Duration delay = absl::ZeroDuration();
  // When call number `stall_at_call` (from 1) arrives, no answer is sent for `stall`.
  int64_t stall_at_call = 0;
  absl::Duration stall = absl::ZeroDuration();
  // Calls before this one take `early_delay` instead, like those of a cold server.
  int64_t early_calls = 0;
  absl::Duration early_delay = absl::ZeroDuration();
  // If true, no answer is sent before the test calls Release.
  bool is_held = false;
};

class DelayedServer {
 public:
  explicit DelayedServer(const DelayScript& script);
  ~DelayedServer();

  const std::string& address() const { return address_; }

  // The number of calls that have arrived.
  int64_t calls() const;

  // Ends the script's `is_held`.
  void Release();

 private:
  class Gemm;

  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace gemmd
