// SPDX-License-Identifier: Apache-2.0
//
// The tables of the matrix instructions (kernels/mma) as the wire shows them.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "gemmd/v1/instructions.pb.h"
#include "kernels/mma/instruction.h"
#include "kernels/nearest_names.h"
#include "server/wire/fragment_cache.h"
#include "server/wire/listing.h"

namespace gemmd {

v1::Instruction ToWire(const mma::Instruction& instruction);

// The answers about instructions. Those to ListInstructions are prepared, those to DescribeFragment
// are kept for the next who asks, as far as there is room.
class InstructionAnswers {
 public:
  InstructionAnswers();

  // Errors: NotFound for an unknown chip; InvalidArgument for a name or pattern that is too long.
  // Threads: any.
  absl::StatusOr<grpc::ByteBuffer> List(const v1::ListInstructionsRequest& request) const;

  // Errors: NotFound for an unknown instruction, with the nearest names; InvalidArgument for an
  // operand or a selector that the instruction does not have, and for a name that is too long.
  // Threads: any.
  absl::StatusOr<grpc::ByteBuffer> Fragment(const v1::DescribeFragmentRequest& request);

 private:
  const NameIndex chips_;
  const NameIndex names_;
  const Listing listing_;
  FragmentCache fragments_;
};

}  // namespace gemmd
