// SPDX-License-Identifier: Apache-2.0
#include "client/product_call.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/channel.h"
#include "gemmd/pending_product.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "kernels/matrix/status.h"
#include "proto/field_start.h"

namespace gemmd {

LentBytes::~LentBytes() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &LentBytes::HasAll));
}

grpc::Slice LentBytes::Lend(std::span<const std::byte> bytes) {
  {
    absl::MutexLock lock(&mutex_);
    ++lent_;
  }
  // gRPC only reads them.
  void* const memory = const_cast<std::byte*>(bytes.data());
  return grpc::Slice(memory, bytes.size(), &LentBytes::Return, this);
}

void LentBytes::Return(void* lender) {
  LentBytes& self = *static_cast<LentBytes*>(lender);
  absl::MutexLock lock(&self.mutex_);
  --self.lent_;
}

namespace {

// A shorter matrix is copied: a separate slice would cost more than the copy.
constexpr size_t kCopiedBytes = size_t{16} << 10;

class Writer {
 public:
  explicit Writer(LentBytes& lender) : lender_(lender) {}

  void Append(const std::string& bytes) { copied_ += bytes; }

  // Appends a nested message that ends with its bytes field.
  void AppendMatrix(int number, std::string matrix, int data_number,
                    std::span<const std::byte> data) {
    AppendFieldStart(data_number, data.size(), matrix);
    AppendFieldStart(number, matrix.size() + data.size(), copied_);
    copied_ += matrix;
    if (data.size() <= kCopiedBytes) {
      copied_.append(reinterpret_cast<const char*>(data.data()), data.size());
      return;
    }
    Flush();
    slices_.push_back(lender_.Lend(data));
  }

  grpc::ByteBuffer Finish() {
    Flush();
    return grpc::ByteBuffer(slices_.data(), slices_.size());
  }

 private:
  void Flush() {
    if (!copied_.empty()) slices_.emplace_back(copied_);
    copied_.clear();
  }

  LentBytes& lender_;
  std::string copied_;
  std::vector<grpc::Slice> slices_;
};

}  // namespace

grpc::ByteBuffer ToByteBuffer(LentRequest request, LentBytes& lender) {
  v1::MultiplyRequest& message = request.message;
  Writer writer(lender);
  // Fields may come in any order.
  const auto operand = [&](int number, const LentRequest::Bytes& data, const v1::Operand& field) {
    if (!data.has_value()) return false;
    writer.AppendMatrix(number, field.SerializeAsString(), v1::Operand::kDataFieldNumber, *data);
    return true;
  };
  if (operand(v1::MultiplyRequest::kAFieldNumber, request.a, message.a())) message.clear_a();
  if (operand(v1::MultiplyRequest::kBFieldNumber, request.b, message.b())) message.clear_b();
  if (operand(v1::MultiplyRequest::kCFieldNumber, request.c, message.c())) message.clear_c();
  writer.Append(message.SerializeAsString());
  return writer.Finish();
}

namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

absl::Status NoAnswer() {
  return absl::DataLossError("answer: got bytes that are no MultiplyResponse");
}

// Copies one field unchanged.
bool Keep(uint32_t tag, CodedInputStream& input, std::string& to) {
  StringOutputStream stream(&to);
  CodedOutputStream output(&stream);
  return WireFormatLite::SkipField(&input, tag, &output);
}

class AnswerReader {
 public:
  AnswerReader(CodedInputStream& input, std::span<std::byte> into) : input_(input), into_(into) {}

  absl::Status Read() {
    while (const uint32_t tag = NextTag(input_)) {
      if (tag != DelimitedTag(v1::MultiplyResponse::kDFieldNumber)) {
        if (!Keep(tag, input_, rest_)) return NoAnswer();
        continue;
      }
      int bytes = 0;
      if (!input_.ReadVarintSizeAsInt(&bytes) || bytes > input_.BytesUntilLimit()) {
        return NoAnswer();
      }
      const CodedInputStream::Limit limit = input_.PushLimit(bytes);
      if (absl::Status status = ReadMatrix(); !status.ok()) return status;
      input_.PopLimit(limit);
    }
    if (!input_.ConsumedEntireMessage()) return NoAnswer();
    if (!response.ParseFromString(rest_)) return NoAnswer();
    return matrix_.empty() || response.mutable_d()->ParseFromString(matrix_) ? absl::OkStatus()
                                                                             : NoAnswer();
  }

  v1::MultiplyResponse response;
  std::unique_ptr<std::byte[]> own;
  std::span<const std::byte> data;

 private:
  absl::Status ReadMatrix() {
    while (const uint32_t tag = NextTag(input_)) {
      const bool is_read =
          tag == DelimitedTag(v1::Matrix::kDataFieldNumber) || Keep(tag, input_, matrix_);
      if (!is_read) return NoAnswer();
      if (tag != DelimitedTag(v1::Matrix::kDataFieldNumber)) continue;
      if (absl::Status status = ReadData(); !status.ok()) return status;
    }
    return input_.ConsumedEntireMessage() ? absl::OkStatus() : NoAnswer();
  }

  absl::Status ReadData() {
    int bytes = 0;
    if (!input_.ReadVarintSizeAsInt(&bytes) || bytes > input_.BytesUntilLimit()) return NoAnswer();
    const auto size = static_cast<size_t>(bytes);
    std::byte* to = into_.data();
    if (into_.empty()) {
      // Not zeroed: every byte is overwritten.
      own = std::make_unique_for_overwrite<std::byte[]>(size);
      to = own.get();
    } else if (into_.size() != size) {
      return absl::InvalidArgumentError(
          absl::StrCat("into: got ", into_.size(), " bytes, want ", size, ", as D has"));
    }
    data = {to, size};
    return input_.ReadRaw(to, bytes) ? absl::OkStatus() : NoAnswer();
  }

  CodedInputStream& input_;
  const std::span<std::byte> into_;
  std::string rest_;  // The answer's fields, without D's bytes.
  std::string matrix_;
};

}  // namespace

absl::StatusOr<MultiplyResult> ReadProductAnswer(grpc::ByteBuffer& answer,
                                                 std::span<std::byte> into) {
  const int bytes = static_cast<int>(answer.Length());
  grpc::ProtoBufferReader stream(&answer);
  if (!stream.status().ok()) return NoAnswer();
  CodedInputStream input(&stream);
  const CodedInputStream::Limit limit = input.PushLimit(bytes);
  AnswerReader reader(input, into);
  if (absl::Status status = reader.Read(); !status.ok()) return status;
  input.PopLimit(limit);
  if (!into.empty() && reader.data.size() != into.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("into: got ", into.size(), " bytes, want 0, as D has"));
  }
  return MultiplyResult::FromParts(std::move(reader.response), reader.data, std::move(reader.own));
}

std::unique_ptr<ProductRetry> RetryOf(ClientSession& session, LentRequest& request,
                                      std::string token, std::shared_ptr<grpc::Channel> channel,
                                      SteadyTime deadline, const std::string& traceparent) {
  if (!NamesTensors(request.message)) return nullptr;
  SentTensors sent = {.uses = session.Translate(request.message), .token = std::move(token)};
  const bool is_restorable = !sent.uses.empty();
  return std::make_unique<ProductRetry>(
      ProductRetry{.owner = session.owner(),
                   .channel = std::move(channel),
                   .deadline = deadline,
                   .traceparent = traceparent,
                   .sent = std::move(sent),
                   .request = is_restorable ? request : LentRequest()});
}

namespace {

constexpr char kMultiply[] = "/gemmd.v1.Gemm/Multiply";

}  // namespace

ProductCall::~ProductCall() {
  if (!is_started_) return;
  context_.TryCancel();
  AwaitEnd().IgnoreError();
}

void ProductCall::Start(LentRequest request, std::span<std::byte> into,
                        std::unique_ptr<ProductRetry> retry) {
  into_ = into;
  retry_ = std::move(retry);
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

void ProductCall::Cancel() {
  ProductCall* again = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    again = again_.get();
  }
  // Not under the lock, which the end of the call takes.
  context_.TryCancel();
  if (again != nullptr) again->Cancel();
}

absl::StatusOr<ProductCall*> ProductCall::Again(const absl::Status& refusal) {
  std::unique_ptr<ProductRetry> retry = std::move(retry_);
  if (retry == nullptr) return refusal;
  {
    absl::MutexLock lock(&mutex_);
    if (is_cancelled_) return refusal;
  }
  const SessionUse use(retry->owner);
  ClientSession* const session = use.session();
  if (session == nullptr) return refusal;
  if (absl::Status ready = session->Restore(refusal, retry->sent, retry->deadline); !ready.ok()) {
    return ready;
  }
  retry->sent.uses = session->Translate(retry->request.message);
  auto again = std::make_unique<ProductCall>(retry->channel);
  retry->sent.token =
      session->Prepare(again->context(), retry->deadline - SteadyTime::Now(), retry->traceparent);
  ProductCall* const started = again.get();
  {
    absl::MutexLock lock(&mutex_);
    if (is_cancelled_) return absl::CancelledError("product: it was cancelled");
    again_ = std::move(again);
  }
  LentRequest request = retry->request;
  started->Start(std::move(request), into_, std::move(retry));
  return started;
}

absl::StatusOr<MultiplyResult> ProductCall::Wait() {
  if (absl::Status status = AwaitEnd(); !status.ok()) {
    ASSIGN_OR_RETURN(ProductCall* const again, Again(status));
    return again->Wait();
  }
  return ReadProductAnswer(answer_, into_);
}

absl::StatusOr<v1::MultiplyResponse> ProductCall::WaitForMessage() {
  if (absl::Status status = AwaitEnd(); !status.ok()) {
    ASSIGN_OR_RETURN(ProductCall* const again, Again(status));
    return again->WaitForMessage();
  }
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
  if (call_ != nullptr) call_->Cancel();
}

namespace {

void Release(void* text) { delete static_cast<std::string*>(text); }

}  // namespace

std::string RequestQueue::PartOf(const v1::MultiplyRequest& request) {
  std::string part;
  AppendFieldStart(v1::MultiplyStreamRequest::kRequestsFieldNumber, request.ByteSizeLong(), part);
  request.AppendToString(&part);
  return part;
}

bool RequestQueue::Takes(const std::string& part) const {
  if (empty()) return true;
  return count_ < kMaxRequests && part.size() <= kMaxBytes &&
         message_.size() <= kMaxBytes - part.size();
}

void RequestQueue::Add(std::string part) {
  if (empty()) {
    message_ = std::move(part);
  } else {
    message_ += part;
  }
  ++count_;
}

grpc::ByteBuffer RequestQueue::Take() {
  auto* const text = new std::string(std::move(message_));
  Clear();
  const grpc::Slice slice(text->data(), text->size(), Release, text);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace gemmd
