// SPDX-License-Identifier: Apache-2.0
//
// Handles of products that are computed asynchronously.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "gemmd/product.h"
#include "gemmd/tensor.h"

namespace gemmd {

class ProductCall;

// gRPC reads the matrices in place and writes `into` until Wait returns or the destructor does.
// gRPC may read the matrices even after a call was cancelled or timed out, so Wait and the
// destructor wait until it no longer does: at once, unless the server stopped reading in the middle
// of the request, whose connection is then closed within 30 s. Movable. Threads: one at a time,
// except Cancel. May outlive the client.
class PendingProduct {
 public:
  // A product that failed before anything was sent.
  explicit PendingProduct(absl::Status failure);
  explicit PendingProduct(std::unique_ptr<ProductCall> call);
  PendingProduct(PendingProduct&& other) noexcept;
  PendingProduct& operator=(PendingProduct&& other) noexcept;

  // Cancels an unfinished product. Do not destroy it within a callback of MultiplyAsync.
  ~PendingProduct();

  // Waits for D or an error. Call once: FailedPrecondition when called again.
  absl::StatusOr<MultiplyResult> Wait();

  // Cancels the product: Wait then returns Cancelled, or the answer if the answer arrived first.
  void Cancel();

 private:
  absl::Status failure_;
  std::unique_ptr<ProductCall> call_;
};

// A PendingProduct whose D stays on the server.
class PendingChain {
 public:
  explicit PendingChain(absl::Status failure);
  // `is_new`: D is a new tensor, which then belongs to `owner`.
  PendingChain(std::unique_ptr<ProductCall> call, std::weak_ptr<TensorOwner> owner, bool is_new);
  PendingChain(PendingChain&& other) noexcept;
  PendingChain& operator=(PendingChain&& other) noexcept;

  // Cancels an unfinished product. A new tensor that was created despite that is deleted, unless it
  // is pinned. Do not destroy it within a callback of MultiplyAsync.
  ~PendingChain();

  // Waits for the result. Call once: FailedPrecondition when called again.
  absl::StatusOr<ChainResult> Wait();

  // Cancels the product, as PendingProduct::Cancel does.
  void Cancel();

 private:
  void Drop();

  absl::Status failure_;
  std::unique_ptr<ProductCall> call_;
  std::weak_ptr<TensorOwner> owner_;
  bool is_new_ = false;
};

}  // namespace gemmd
