// SPDX-License-Identifier: Apache-2.0
#include "server/wire/outgoing.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/slice.h>

#include <utility>

namespace gemmd {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

// A shorter matrix is copied: one slice more would cost more than its bytes.
constexpr size_t kCopiedBytes = size_t{16} << 10;

// The beginning of a field of bytes, of a string or of a message that has so many bytes.
void AppendFieldStart(int number, size_t bytes, std::string& to) {
  uint8_t start[10 + 10];
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(
      WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), start);
  end = CodedOutputStream::WriteVarint64ToArray(bytes, end);
  to.append(reinterpret_cast<const char*>(start), static_cast<size_t>(end - start));
}

// All of an answer but the bytes of D, which come last and follow it. Fields may come in any order.
std::string HeadOf(v1::MultiplyResponse answer, size_t d_bytes) {
  std::string matrix = answer.d().SerializeAsString();
  AppendFieldStart(v1::Matrix::kDataFieldNumber, d_bytes, matrix);
  answer.clear_d();
  std::string head = answer.SerializeAsString();
  AppendFieldStart(v1::MultiplyResponse::kDFieldNumber, matrix.size() + d_bytes, head);
  return head += matrix;
}

void LetGo(void* matrix) { delete static_cast<HeldBytes*>(matrix); }

grpc::ByteBuffer Joined(std::string head, HeldBytes d) {
  if (d.size() <= kCopiedBytes) {
    head.append(reinterpret_cast<const char*>(d.bytes().data()), d.size());
    const grpc::Slice slice(head);
    return grpc::ByteBuffer(&slice, 1);
  }
  auto* const matrix = new HeldBytes(std::move(d));
  const grpc::Slice slices[] = {grpc::Slice(head),
                                grpc::Slice(matrix->bytes().data(), matrix->size(), LetGo, matrix)};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace

grpc::ByteBuffer UnaryAnswer(v1::MultiplyResponse answer, HeldBytes d) {
  std::string head = HeadOf(std::move(answer), d.size());
  return Joined(std::move(head), std::move(d));
}

grpc::ByteBuffer StreamAnswer(const std::string& request_id, v1::MultiplyResponse answer,
                              HeldBytes d) {
  const std::string head = HeadOf(std::move(answer), d.size());
  std::string outer;
  AppendFieldStart(v1::MultiplyStreamResponse::kRequestIdFieldNumber, request_id.size(), outer);
  outer += request_id;
  AppendFieldStart(v1::MultiplyStreamResponse::kResponseFieldNumber, head.size() + d.size(), outer);
  outer += head;
  return Joined(std::move(outer), std::move(d));
}

grpc::ByteBuffer StreamRefusal(const std::string& request_id, const absl::Status& status) {
  v1::MultiplyStreamResponse refusal;
  refusal.set_request_id(request_id);
  refusal.mutable_error()->set_code(status.raw_code());
  refusal.mutable_error()->set_message(std::string(status.message()));
  const grpc::Slice slice(refusal.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace gemmd
