// SPDX-License-Identifier: Apache-2.0
//
// Products that are being computed while their caller does something else.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "gemmd/product.h"
#include "gemmd/tensor.h"

namespace gemmd {

class ProductCall;

// The memory of the matrices is read where it lies, and `into` is written, until Wait has returned
// or this is destroyed: gRPC may read it after the call has ended, even one that was cancelled or
// ran out of time, so both wait until it does so no longer. That is at once, except where the
// server stopped reading in the middle of the request: its connection is given up within 30 s.
// Movable. Threads: one at a time, except Cancel. It may outlive the client.
class PendingProduct {
 public:
  // One that has failed before anything was sent.
  explicit PendingProduct(absl::Status failure);
  explicit PendingProduct(std::unique_ptr<ProductCall> call);
  PendingProduct(PendingProduct&& other) noexcept;
  PendingProduct& operator=(PendingProduct&& other) noexcept;

  // Cancels what has not ended. Not within a callback of MultiplyAsync.
  ~PendingProduct();

  // Waits for D, or for why there is none. Once: FailedPrecondition when called again.
  absl::StatusOr<MultiplyResult> Wait();

  // Asks for the end: Wait then gives Cancelled, or the answer where that was faster.
  void Cancel();

 private:
  absl::Status failure_;
  std::unique_ptr<ProductCall> call_;
};

// The same for a product whose D stays on the server.
class PendingChain {
 public:
  explicit PendingChain(absl::Status failure);
  // `is_new`: D is a new tensor, which is the owner's then.
  PendingChain(std::unique_ptr<ProductCall> call, std::weak_ptr<TensorOwner> owner, bool is_new);
  PendingChain(PendingChain&& other) noexcept;
  PendingChain& operator=(PendingChain&& other) noexcept;

  // Cancels what has not ended. A new tensor that was made all the same is deleted, unless it is
  // pinned. Not within a callback of MultiplyAsync.
  ~PendingChain();

  // Waits for the end. Once: FailedPrecondition when called again.
  absl::StatusOr<ChainResult> Wait();

  // Asks for the end, as of a PendingProduct.
  void Cancel();

 private:
  void Drop();

  absl::Status failure_;
  std::unique_ptr<ProductCall> call_;
  std::weak_ptr<TensorOwner> owner_;
  bool is_new_ = false;
};

}  // namespace gemmd
