// SPDX-License-Identifier: Apache-2.0
#include "server/wire/outgoing.h"

#include <string>
#include <utility>

#include "proto/field_start.h"

namespace gemmd {
namespace {

// All of an answer but the bytes of D, which come last and follow it: room for them is there if
// they are copied. Fields may come in any order.
std::string HeadOf(v1::MultiplyResponse& answer, size_t d_bytes) {
  constexpr size_t kFieldStarts = 32;  // At most.
  const v1::Matrix matrix = answer.d();
  answer.clear_d();
  const size_t matrix_bytes = matrix.ByteSizeLong();
  std::string head;
  head.reserve(answer.ByteSizeLong() + matrix_bytes + kFieldStarts +
               (d_bytes <= kCopiedBytes ? d_bytes : 0));
  answer.AppendToString(&head);
  AppendFieldStart(v1::MultiplyResponse::kDFieldNumber,
                   matrix_bytes + EncodedFieldBytes(v1::Matrix::kDataFieldNumber, d_bytes), head);
  matrix.AppendToString(&head);
  AppendFieldStart(v1::Matrix::kDataFieldNumber, d_bytes, head);
  return head;
}

void FreeMatrix(void* matrix) { delete static_cast<HeldBytes*>(matrix); }

}  // namespace

grpc::Slice SliceOf(HeldBytes bytes) {
  auto* const held = new HeldBytes(std::move(bytes));
  return grpc::Slice(held->bytes().data(), held->size(), FreeMatrix, held);
}

grpc::ByteBuffer MessageOf(std::string head, HeldBytes d) {
  if (d.size() <= kCopiedBytes) {
    head.append(reinterpret_cast<const char*>(d.bytes().data()), d.size());
    const grpc::Slice slice(head);
    return grpc::ByteBuffer(&slice, 1);
  }
  const grpc::Slice slices[] = {grpc::Slice(head), SliceOf(std::move(d))};
  return grpc::ByteBuffer(slices, 2);
}

grpc::ByteBuffer UnaryAnswer(v1::MultiplyResponse& answer, HeldBytes d) {
  std::string head = HeadOf(answer, d.size());
  return MessageOf(std::move(head), std::move(d));
}

}  // namespace gemmd
