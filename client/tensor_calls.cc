// SPDX-License-Identifier: Apache-2.0
//
// The client's calls that make, move and name tensors.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/connections.h"
#include "client/download_call.h"
#include "client/operand_size.h"
#include "client/product_call.h"
#include "client/status_conversion.h"
#include "client/steady_time.h"
#include "client/tensor_message.h"
#include "client/upload_call.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/resident.pb.h"

namespace gemmd {
namespace {

SteadyTime DeadlineOf(const ClientState& state, const std::optional<absl::Duration>& timeout) {
  return SteadyTime::Now() + timeout.value_or(state.timeout);
}

// What is left of the time that began with the caller's entry.
CallOptions Until(SteadyTime deadline, CallOptions options = {}) {
  options.timeout = deadline - SteadyTime::Now();
  return options;
}

// Calls in the client's name, which has a session from then on.
template <typename Response, typename Call>
absl::StatusOr<Response> CallTensors(ClientState& state, const CallOptions& options, Call call) {
  const SteadyTime deadline = DeadlineOf(state, options.timeout);
  const auto session = state.session->Open(deadline);
  if (!session.ok()) return session.status();
  grpc::ClientContext context;
  state.Prepare(context, Until(deadline, options));
  Response response;
  const grpc::Status status = call(*state.Next().tensors, &context, &response);
  if (!status.ok()) return ToAbslStatus(status, context);
  return response;
}

void FillKeep(const KeepOptions& keep, v1::NewTensor& message) {
  message.set_name(keep.name);
  message.set_pinned(keep.pinned);
  message.set_lease_ns(absl::ToInt64Nanoseconds(keep.lease));
}

absl::Status CheckIsAsStored(const MatrixView& matrix, int64_t matrices) {
  if (matrix.transpose) {
    return absl::InvalidArgumentError(
        "matrix.transpose: got true, want false: a product uses a tensor transposed");
  }
  if (matrix.batch_stride.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("matrix.batch_stride: got ",
                                                   *matrix.batch_stride,
                                                   ", want none: matrices follow each other"));
  }
  if (matrices >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("matrices: got ", matrices, ", want 1 or more"));
}

void FillSpec(const MatrixView& matrix, int64_t matrices, v1::TensorSpec& spec) {
  spec.set_type(matrix.type);
  spec.set_order(matrix.order);
  spec.set_rows(matrix.rows);
  spec.set_columns(matrix.columns);
  spec.set_leading_dimension(matrix.leading_dimension);
  spec.set_sparsity(matrix.sparsity);
  if (matrices != 1) spec.set_matrices(matrices);
  spec.mutable_scale()->mutable_values()->Add(matrix.scale.begin(), matrix.scale.end());
}

}  // namespace

absl::StatusOr<SessionInfo> Client::OpenSession(absl::string_view token,
                                                const CallOptions& options) {
  const SteadyTime deadline = DeadlineOf(*state_, options.timeout);
  return token.empty() ? state_->session->Open(deadline)
                       : state_->session->Join(std::string(token), deadline);
}

absl::StatusOr<ResidentTensor> Client::Put(const MatrixView& matrix, const PutOptions& options) {
  const SteadyTime entry = SteadyTime::Now();
  if (absl::Status status = CheckIsAsStored(matrix, options.matrices); !status.ok()) return status;
  const OperandShape shape = {.type = matrix.type,
                              .order = matrix.order,
                              .rows = matrix.rows,
                              .columns = matrix.columns,
                              .leading_dimension = matrix.leading_dimension,
                              .batch_stride = {},
                              .batch = options.matrices,
                              .sparsity = matrix.sparsity};
  absl::Status status =
      CheckOperandBytes("matrix", "rows*columns", shape, static_cast<int64_t>(matrix.data.size()));
  if (!status.ok()) return status;
  const int64_t bytes = SizeOperand("matrix", shape)->full;
  const std::vector<std::byte> padding(static_cast<size_t>(bytes) - matrix.data.size());

  const SteadyTime deadline = entry + options.timeout.value_or(state_->timeout);
  const auto session = state_->session->Open(deadline);
  if (!session.ok()) return session.status();
  // What was let go of before is free for this one.
  state_->session->AwaitDeletions(deadline);
  UploadPlan plan = {.begin = {},
                     .source = {.data = matrix.data, .padding = padding},
                     .connections = options.connections,
                     .terms = {.progress = options.progress,
                               .timeout = options.timeout,
                               .entry = entry,
                               .patience = state_->timeout}};
  FillSpec(matrix, options.matrices, *plan.begin.mutable_spec());
  FillKeep({.name = options.name, .pinned = options.pinned, .lease = options.lease},
           *plan.begin.mutable_keep());
  plan.begin.set_sha256(options.sha256);
  plan.begin.set_device(options.device);
  auto info = RunUpload(*state_->session, std::move(plan));
  if (!info.ok()) return info.status();
  return ResidentTensor(*std::move(info), state_->session->owner());
}

absl::StatusOr<TensorView> Client::Get(const TensorRef& tensor, std::span<std::byte> into,
                                       const GetOptions& options) {
  const SteadyTime entry = SteadyTime::Now();
  const SteadyTime deadline = entry + options.timeout.value_or(state_->timeout);
  const int64_t bytes = static_cast<int64_t>(into.size());
  if (options.bytes.has_value() && *options.bytes != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("into: got ", bytes, " bytes, want ",
                                                   *options.bytes, " as options.bytes says"));
  }
  const auto session = state_->session->Open(deadline);
  if (!session.ok()) return session.status();
  TensorRef ref = tensor;
  if (tensor.handle.empty()) {
    // Another version of that name is not to be mixed with this one.
    const auto info = Describe(tensor, Until(deadline));
    if (!info.ok()) return info.status();
    ref = TensorOfHandle(info->handle());
  }
  const auto sink = [into](int64_t offset, std::span<const std::byte> piece) {
    std::memcpy(into.data() + offset, piece.data(), piece.size());
    return absl::OkStatus();
  };
  const auto got = RunDownload(*state_->session, {.tensor = MessageOf(ref),
                                                  .offset = options.offset,
                                                  .bytes = bytes,
                                                  .is_rest = !options.bytes.has_value(),
                                                  .sink = sink,
                                                  .connections = options.connections,
                                                  .terms = {.progress = options.progress,
                                                            .timeout = options.timeout,
                                                            .entry = entry,
                                                            .patience = state_->timeout}});
  if (!got.ok()) return got.status();
  return ViewOf(*got);
}

absl::StatusOr<TensorView> Client::Get(const TensorRef& tensor, const TensorSink& sink,
                                       const GetOptions& options) {
  const SteadyTime entry = SteadyTime::Now();
  const auto info = Describe(tensor, Until(entry + options.timeout.value_or(state_->timeout)));
  if (!info.ok()) return info.status();
  const int64_t left = info->bytes() - options.offset;
  if (options.offset < 0 || left < 0 || options.bytes.value_or(left) > left ||
      options.bytes.value_or(0) < 0) {
    return absl::OutOfRangeError(
        absl::StrCat("range: got ", options.bytes.value_or(left), " bytes from ", options.offset,
                     " on, want them within the tensor's ", info->bytes()));
  }
  const auto got =
      RunDownload(*state_->session, {.tensor = MessageOf(TensorOfHandle(info->handle())),
                                     .offset = options.offset,
                                     .bytes = options.bytes.value_or(left),
                                     .is_rest = !options.bytes.has_value(),
                                     .sink = sink,
                                     .connections = options.connections,
                                     .terms = {.progress = options.progress,
                                               .timeout = options.timeout,
                                               .entry = entry,
                                               .patience = state_->timeout}});
  if (!got.ok()) return got.status();
  return ViewOf(*got);
}

absl::StatusOr<v1::ListTensorsResponse> Client::ListTensors(absl::string_view pattern,
                                                            const CallOptions& options) {
  v1::ListTensorsRequest request;
  request.set_pattern(std::string(pattern));
  return CallTensors<v1::ListTensorsResponse>(*state_, options,
                                              [&](auto& stub, auto* context, auto* response) {
                                                return stub.List(context, request, response);
                                              });
}

absl::StatusOr<v1::TensorInfo> Client::Describe(const TensorRef& tensor,
                                                const CallOptions& options) {
  const v1::TensorRef request = MessageOf(tensor);
  return CallTensors<v1::TensorInfo>(*state_, options,
                                     [&](auto& stub, auto* context, auto* response) {
                                       return stub.Describe(context, request, response);
                                     });
}

absl::Status Client::Delete(const TensorRef& tensor, const CallOptions& options) {
  const v1::TensorRef request = MessageOf(tensor);
  return CallTensors<v1::DeleteTensorResponse>(*state_, options,
                                               [&](auto& stub, auto* context, auto* response) {
                                                 return stub.Delete(context, request, response);
                                               })
      .status();
}

absl::StatusOr<v1::TensorInfo> Client::KeepAlive(const TensorRef& tensor,
                                                 const KeepAliveOptions& keep,
                                                 const CallOptions& options) {
  v1::KeepAliveRequest request;
  *request.mutable_tensor() = MessageOf(tensor);
  if (keep.lease.has_value()) request.set_lease_ns(absl::ToInt64Nanoseconds(*keep.lease));
  if (keep.pinned.has_value()) request.set_pinned(*keep.pinned);
  return CallTensors<v1::TensorInfo>(*state_, options,
                                     [&](auto& stub, auto* context, auto* response) {
                                       return stub.KeepAlive(context, request, response);
                                     });
}

absl::Status Client::KeepAlive(ResidentTensor& tensor, const KeepAliveOptions& keep,
                               const CallOptions& options) {
  auto info = KeepAlive(tensor.ref(), keep, options);
  if (!info.ok()) return info.status();
  tensor.info_ = std::make_shared<const v1::TensorInfo>(*std::move(info));
  return absl::OkStatus();
}

absl::StatusOr<ResidentTensor> Client::Compress(const TensorRef& tensor,
                                                const CompressOptions& compress,
                                                const CallOptions& options) {
  const SteadyTime deadline = DeadlineOf(*state_, options.timeout);
  v1::CompressRequest request;
  *request.mutable_tensor() = MessageOf(tensor);
  FillKeep(compress.keep, *request.mutable_keep());
  if (compress.mask.has_value()) *request.mutable_mask() = MessageOf(*compress.mask);
  state_->session->AwaitDeletions(deadline);
  auto info = CallTensors<v1::TensorInfo>(*state_, Until(deadline, options),
                                          [&](auto& stub, auto* context, auto* response) {
                                            return stub.Compress(context, request, response);
                                          });
  if (!info.ok()) return info.status();
  return ResidentTensor(*std::move(info), state_->session->owner());
}

PendingChain Client::ChainAsync(const Operand& a, const Operand& b, const ChainOptions& chain,
                                const CallOptions& options) {
  const SteadyTime deadline = DeadlineOf(*state_, options.timeout);
  auto request = BuildLentChainRequest(a, b, chain);
  if (!request.ok()) return PendingChain(request.status());
  const auto session = state_->session->Open(deadline);
  if (!session.ok()) return PendingChain(session.status());
  const bool is_new = !chain.into.has_value();
  if (is_new) state_->session->AwaitDeletions(deadline);
  auto call = std::make_unique<ProductCall>(state_->Next().channel);
  state_->Prepare(call->context(), Until(deadline, options));
  call->Start(*std::move(request), {});
  return PendingChain(std::move(call), state_->session->owner(), is_new);
}

absl::StatusOr<ChainResult> Client::Chain(const Operand& a, const Operand& b,
                                          const ChainOptions& chain, const CallOptions& options) {
  return ChainAsync(a, b, chain, options).Wait();
}

PendingChain::PendingChain(absl::Status failure) : failure_(std::move(failure)) {}
PendingChain::PendingChain(std::unique_ptr<ProductCall> call, std::weak_ptr<TensorOwner> owner,
                           bool is_new)
    : call_(std::move(call)), owner_(std::move(owner)), is_new_(is_new) {}
PendingChain::PendingChain(PendingChain&& other) noexcept = default;
PendingChain& PendingChain::operator=(PendingChain&& other) noexcept {
  Drop();
  failure_ = std::move(other.failure_);
  call_ = std::move(other.call_);
  owner_ = std::move(other.owner_);
  is_new_ = other.is_new_;
  return *this;
}
PendingChain::~PendingChain() { Drop(); }

// A tensor that came all the same is deleted with the result.
void PendingChain::Drop() {
  if (call_ == nullptr) return;
  Cancel();
  Wait().IgnoreError();
}

void PendingChain::Cancel() {
  if (call_ != nullptr) call_->context().TryCancel();
}

absl::StatusOr<ChainResult> PendingChain::Wait() {
  const absl::Status failure = std::exchange(
      failure_, absl::FailedPreconditionError("product: its answer was taken already"));
  if (call_ == nullptr) return failure;
  auto response = call_->WaitForMessage();
  call_ = nullptr;  // Waits until nothing reads the matrices.
  if (!response.ok()) return response.status();
  ChainResult result = {
      .tensor = {}, .response = std::make_shared<const v1::MultiplyResponse>(*std::move(response))};
  if (!is_new_) return result;
  if (!result.response->has_tensor()) {
    return absl::DataLossError("chain: got no tensor, want the one that D went into");
  }
  result.tensor = ResidentTensor(result.response->tensor(), owner_);
  return result;
}

}  // namespace gemmd
