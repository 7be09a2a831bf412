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

// `Matrix`: MatrixView or Operand.
template <typename Matrix>
PendingProduct StartProduct(ClientState& state, const Matrix& a, const Matrix& b,
                            const ProductOptions& product_options,
                            const CallOptions& call_options) {
  // The deadline counts from here.
  auto call = std::make_unique<ProductCall>(state.Next().channel);
  state.Prepare(call->context(), call_options);
  auto request = BuildLentRequest(a, b, product_options);
  if (!request.ok()) return PendingProduct(request.status());
  call->Start(*std::move(request), product_options.into);
  return PendingProduct(std::move(call));
}

}  // namespace

ProductCall::~ProductCall() {
  if (!is_started_) return;
  context_.TryCancel();
  AwaitEnd().IgnoreError();
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

absl::Status ProductCall::AwaitEnd() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &ProductCall::HasEnded));
  return status_.ok() ? absl::OkStatus() : ToAbslStatus(status_, context_);
}

absl::StatusOr<MultiplyResult> ProductCall::Wait() {
  if (absl::Status status = AwaitEnd(); !status.ok()) return status;
  return ReadProductAnswer(answer_, into_);
}

absl::StatusOr<v1::MultiplyResponse> ProductCall::WaitForMessage() {
  if (absl::Status status = AwaitEnd(); !status.ok()) return status;
  v1::MultiplyResponse message;
  if (!grpc::SerializationTraits<v1::MultiplyResponse>::Deserialize(&answer_, &message).ok()) {
    return absl::DataLossError("answer: got bytes that are no MultiplyResponse");
  }
  return message;
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
  return StartProduct(*state_, a, b, product_options, call_options);
}

PendingProduct Client::MultiplyAsync(const Operand& a, const Operand& b,
                                     const ProductOptions& product_options,
                                     const CallOptions& call_options) {
  return StartProduct(*state_, a, b, product_options, call_options);
}

absl::StatusOr<MultiplyResult> Client::Multiply(const MatrixView& a, const MatrixView& b,
                                                const ProductOptions& product_options,
                                                const CallOptions& call_options) {
  return MultiplyAsync(a, b, product_options, call_options).Wait();
}

absl::StatusOr<MultiplyResult> Client::Multiply(const Operand& a, const Operand& b,
                                                const ProductOptions& product_options,
                                                const CallOptions& call_options) {
  return MultiplyAsync(a, b, product_options, call_options).Wait();
}

}  // namespace gemmd
