// SPDX-License-Identifier: Apache-2.0
//
// A request whose matrices are sent from where they lie: neither copied into a message nor out of
// it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "client/lent_bytes.h"
#include "gemmd/product.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/gemm.pb.h"
#include "grpcpp/support/byte_buffer.h"

namespace gemmd {

// The message without the bytes of its matrices, and where those are. Absent: they are not sent.
struct LentRequest {
  using Bytes = std::optional<std::span<const std::byte>>;
  v1::MultiplyRequest message;
  Bytes a = {};
  Bytes b = {};
  Bytes c = {};
  Bytes bias = {};
};

// Borrows what the views borrow. Errors: as BuildRequest.
absl::StatusOr<LentRequest> BuildLentRequest(const MatrixView& a, const MatrixView& b,
                                             const ProductOptions& options);
absl::StatusOr<LentRequest> BuildLentRequest(const Operand& a, const Operand& b,
                                             const ProductOptions& options,
                                             const std::optional<TensorView>& c = {});
absl::StatusOr<LentRequest> BuildLentChainRequest(const Operand& a, const Operand& b,
                                                  const ChainOptions& options);

// The wire's bytes of it; those of long matrices are lent by `lender`.
grpc::ByteBuffer ToByteBuffer(LentRequest request, LentBytes& lender);

}  // namespace gemmd
