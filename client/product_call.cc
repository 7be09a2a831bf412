// SPDX-License-Identifier: Apache-2.0
#include "client/product_call.h"

#include <utility>

#include "client/connections.h"
#include "client/product_answer.h"
#include "client/status_conversion.h"
#include "gemmd/pending_product.h"

namespace gemmd {
namespace {

constexpr char kMultiply[] = "/gemmd.v1.Gemm/Multiply";

}  // namespace

ProductCall::~ProductCall() {
  if (!is_started_) return;
  context_.TryCancel();
  AwaitEnd();
}

void ProductCall::Start(LentRequest request, std::span<std::byte> into) {
  into_ = into;
  request_ = ToByteBuffer(std::move(request), lent_);
  is_started_ = true;
  stub_.UnaryCall(&context_, kMultiply, {}, &request_, &answer_, [this](grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    status_ = std::move(status);
    has_ended_ = true;
  });
}

void ProductCall::AwaitEnd() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &ProductCall::HasEnded));
}

absl::StatusOr<MultiplyResult> ProductCall::Wait() {
  AwaitEnd();
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return ToAbslStatus(status_, context_);
  }
  return ReadProductAnswer(answer_, into_);
}

PendingProduct::PendingProduct(absl::Status failure) : failure_(std::move(failure)) {}
PendingProduct::PendingProduct(std::unique_ptr<ProductCall> call) : call_(std::move(call)) {}
PendingProduct::PendingProduct(PendingProduct&& other) noexcept = default;
PendingProduct& PendingProduct::operator=(PendingProduct&& other) noexcept = default;
PendingProduct::~PendingProduct() = default;

absl::StatusOr<MultiplyResult> PendingProduct::Wait() {
  const absl::Status failure = std::exchange(
      failure_, absl::FailedPreconditionError("product: its answer was taken already"));
  if (call_ == nullptr) return failure;
  auto result = call_->Wait();
  call_ = nullptr;  // Waits until nothing reads the matrices.
  return result;
}

void PendingProduct::Cancel() {
  if (call_ != nullptr) call_->context().TryCancel();
}

PendingProduct Client::MultiplyAsync(const MatrixView& a, const MatrixView& b,
                                     const ProductOptions& product_options,
                                     const CallOptions& call_options) {
  // The deadline counts from here.
  auto call = std::make_unique<ProductCall>(state_->Next().channel);
  state_->Prepare(call->context(), call_options);
  auto request = BuildLentRequest(a, b, product_options);
  if (!request.ok()) return PendingProduct(request.status());
  call->Start(*std::move(request), product_options.into);
  return PendingProduct(std::move(call));
}

absl::StatusOr<MultiplyResult> Client::Multiply(const MatrixView& a, const MatrixView& b,
                                                const ProductOptions& product_options,
                                                const CallOptions& call_options) {
  return MultiplyAsync(a, b, product_options, call_options).Wait();
}

}  // namespace gemmd
