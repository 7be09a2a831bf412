// SPDX-License-Identifier: Apache-2.0
//
// Between the wire's messages and the words of kernels/. Requests are validated here and nowhere
// else in the server; a parsed request is a valid problem with every byte in place.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/problem.h"
#include "kernels/select.h"
#include "server/device/device.h"

namespace gemmd {

// A request as the server works with it. `job` borrows the operands of the message; its kernel,
// sizes and destination are not set yet.
struct ParsedRequest {
  Job job;
  Constraints constraints;
  std::string device;  // Empty: the default.
};

// Whether a request must bring the bytes of its operands.
enum class OperandBytes { kRequired, kIgnored };

// Errors: InvalidArgument, as the wire contract says: "field: got X, want Y"; NotFound for a kernel
// that there is not.
absl::StatusOr<ParsedRequest> ParseMultiply(const v1::MultiplyRequest& request, OperandBytes bytes);

// Fills shape and layout of the answer's matrix; the bytes are the device's to write.
void FillMatrix(const Problem& problem, v1::Matrix& matrix);

// A kernel of the catalogue as the wire shows it, without availability.
v1::Kernel ToWire(const Kernel& kernel);

}  // namespace gemmd
