// SPDX-License-Identifier: Apache-2.0
//
// A gRPC server in this process with delays that a test knows: every Multiply is answered a fixed
// time after its arrival, and during one stall not before the stall's end. No thread waits for a
// call, so that any number of calls may be delayed at once. It computes nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"

namespace gemmd {

struct DelayScript {
  absl::Duration delay = absl::ZeroDuration();
  // From the arrival of the call of this number (the first is 1) no answer leaves for `stall`.
  int64_t stall_at_call = 0;
  absl::Duration stall = absl::ZeroDuration();
  // Calls before this one take `early_delay` instead, as those of a cold server do.
  int64_t early_calls = 0;
  absl::Duration early_delay = absl::ZeroDuration();
  // No answer leaves before the test says so.
  bool is_held = false;
};

class DelayedServer {
 public:
  explicit DelayedServer(const DelayScript& script);
  ~DelayedServer();

  const std::string& address() const { return address_; }

  // How many calls have arrived.
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
