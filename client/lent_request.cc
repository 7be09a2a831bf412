// SPDX-License-Identifier: Apache-2.0
#include "client/lent_request.h"

#include <string>
#include <utility>
#include <vector>

#include "grpcpp/support/slice.h"
#include "proto/field_start.h"

namespace gemmd {
namespace {

// A shorter matrix is copied: one slice more would cost more than its bytes.
constexpr size_t kCopiedBytes = size_t{16} << 10;

class Writer {
 public:
  explicit Writer(LentBytes& lender) : lender_(lender) {}

  void Append(const std::string& bytes) { copied_ += bytes; }

  // A message within the message, which ends with the field of its bytes.
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
  if (request.bias.has_value()) {
    writer.AppendMatrix(v1::MultiplyRequest::kBiasFieldNumber, message.bias().SerializeAsString(),
                        v1::Bias::kDataFieldNumber, *request.bias);
    message.clear_bias();
  }
  writer.Append(message.SerializeAsString());
  return writer.Finish();
}

}  // namespace gemmd
