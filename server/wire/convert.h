// SPDX-License-Identifier: Apache-2.0
//
// Converts requests from messages to products: matrices, block factors, resident tensors.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/nearest_names.h"
#include "kernels/mma/instruction.h"
#include "kernels/problem.h"
#include "server/device/job.h"
#include "server/product/product.h"
#include "server/store/tensor_store.h"
#include "server/system/mutex.h"
#include "server/trust/identity.h"
#include "server/wire/incoming.h"
#include "server/wire/listing.h"

namespace gemmd {

// The error for an unknown value of an enumeration: "field: got unknown value 9".
absl::Status UnknownValue(std::string_view field, int value);

// Errors: InvalidArgument for an unknown type, and for an unspecified type without a default.
absl::StatusOr<ElementType> ParseType(std::string_view field, v1::ElementType type,
                                      std::optional<ElementType> unspecified);
absl::StatusOr<Order> ParseOrder(std::string_view field, v1::Order order);
v1::ElementType ToWire(ElementType type);
v1::Order ToWire(Order order);

// The parts of a layout that operands and outputs of messages share.
struct Strides {
  int64_t leading_dimension;
  std::optional<int64_t> batch_stride;
};

template <typename Message>
Strides StridesOf(const Message& message) {
  return {message.leading_dimension(), message.has_batch_stride()
                                           ? std::optional<int64_t>(message.batch_stride())
                                           : std::nullopt};
}

// The layout of a rows x columns matrix. Errors: InvalidArgument if a stride is negative, too short
// or too large.
absl::StatusOr<MatrixLayout> ParseLayout(std::string_view field, ElementType type, Order order,
                                         int64_t rows, int64_t columns, const Strides& strides);

// The layout of an operand as it is used: rows x columns after the transposition, which becomes a
// change of the order. Errors: InvalidArgument, as ParseLayout, and for a sparse operand that is
// not A, not tight or not row major.
absl::StatusOr<MatrixLayout> ParseOperandLayout(std::string_view field, const v1::Operand& operand,
                                                int64_t rows, int64_t columns,
                                                std::optional<ElementType> default_type);

// Where the bytes of a field are: held apart from the message, or in it.
struct FieldBytes {
  PieceList pieces;
  PieceKeeper* keeper = nullptr;

  int64_t size() const;
};
// An empty result, made in place: if an empty list is moved, GCC 12 warns of uninitialized memory.
inline absl::StatusOr<FieldBytes> NoBytes() { return absl::StatusOr<FieldBytes>(absl::in_place); }
FieldBytes FindBytes(const google::protobuf::Message& message, int number,
                     const std::string& own_bytes, const HeldFields& held);

// The bytes of an operand without the padding at its end; empty if the matrix is empty or is not
// read. `shape` ("m*k") is for the error's text. If `is_read` is false the bytes may be absent.
// Errors: InvalidArgument if their count does not fit the layout.
absl::StatusOr<FieldBytes> ParseBytes(std::string_view field, std::string_view shape,
                                      const v1::Operand& operand, const HeldFields& held,
                                      const MatrixLayout& layout, int64_t batch, bool is_read);

// Block factors: their description and their bytes.
//
// The rows of op(A) or the columns of op(B).
struct NamedExtent {
  std::string_view name;  // "m"
  int64_t value;
};

// Errors: InvalidArgument if the type is absent or unknown. Validate checks the rest.
absl::StatusOr<BlockScale> ParseBlocks(std::string_view field, const v1::BlockScale& wire);

// The block factors of an operand of a valid problem; empty if they are not read. Errors:
// InvalidArgument if their count does not fit the blocks.
absl::StatusOr<FieldBytes> ParseBlockFactors(std::string_view field, const NamedExtent& extent,
                                             const v1::BlockScale& wire, const BlockScale& blocks,
                                             const Problem& problem, const HeldFields& held);

void Fill(const BlockScale& blocks, const std::vector<std::byte>& factors, v1::BlockScale& wire);

// Converts a request to the types of kernels/. Requests are validated here and nowhere else in the
// server: a parsed request is a valid problem with every byte in place.
//
// Errors: InvalidArgument, as the wire contract says: "field: got X, want Y"; NotFound for an
// unknown kernel.
//
// `held` has the operand bytes that are not in the request itself. The product, which must be new,
// borrows both. If `held` is null, the bytes of operands are not read and need not be there.
absl::Status ParseMultiply(const v1::MultiplyRequest& request, const HeldFields* held,
                           Product& product);

// Products whose matrices are resident tensors or parts of tensors.
//
// The caller in whose name a request names tensors.
struct TensorCaller {
  std::string_view token;
  const Identity* identity = nullptr;  // Null if callers have no names.
  // The session of the token, if it has already been found.
  std::shared_ptr<const TensorStore::SessionUse> session = nullptr;

  std::string_view name() const {
    return identity == nullptr ? std::string_view() : std::string_view(identity->name);
  }
};

// Parses a request like ParseMultiply, which knows no tensors: first writes what ParseMultiply
// needs to know of them into the request, and afterwards tells the job where they are. Errors:
// those of ParseMultiply, and those of Operand.tensor and OutputSpec in the wire contract;
// Unauthenticated if the request names tensors but the token is of no session of the caller;
// PermissionDenied if the rules allow the caller no tensors.
absl::Status ParseWithTensors(TensorStore& store, const TensorCaller& caller,
                              v1::MultiplyRequest& request, const HeldFields* held,
                              Product& product);

// Answers about matrix instructions (kernels/mma) and where the elements of their operands lie
// (kernels/mma/fragment.h).

// Identifies a fragment: the instruction's index, the operand's number, the selector.
using FragmentKey = std::tuple<size_t, int, int>;

// Recent answers, up to a number of bytes. Evicts the least recently requested first.
class FragmentCache {
 public:
  explicit FragmentCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Threads: any.
  std::optional<grpc::Slice> Find(const FragmentKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps the answer, unless it is there already or exceeds the bound on its own.
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
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // Most recently requested first.
  std::map<FragmentKey, Entries::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

v1::Instruction ToWire(const mma::Instruction& instruction);

// The answers about instructions. Those to ListInstructions are prepared. Those to DescribeFragment
// are cached as far as there is room.
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
