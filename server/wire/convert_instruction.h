// SPDX-License-Identifier: Apache-2.0
//
// The tables of the matrix instructions (kernels/mma) as the wire shows them, and where the
// elements of an instruction's operands lie (kernels/mma/fragment.h).
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/instructions.pb.h"
#include "kernels/mma/instruction.h"
#include "kernels/nearest_names.h"
#include "server/system/mutex.h"
#include "server/wire/listing.h"

namespace gemmd {

// Which fragment: an instruction's position, an operand's number, a selector.
using FragmentKey = std::tuple<size_t, int, int>;

// Answers that were made before, up to a number of bytes: those that were asked for longest ago go
// first.
class FragmentCache {
 public:
  explicit FragmentCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Threads: any.
  std::optional<grpc::Slice> Find(const FragmentKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps the answer, if it is not there yet and alone is within the bound.
  void Add(const FragmentKey& key, grpc::Slice answer) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    FragmentKey key;
    grpc::Slice answer;
  };
  using Entries = std::list<Entry>;

  const size_t max_bytes_;
  mutable Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // The one asked for last comes first.
  std::map<FragmentKey, Entries::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

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
