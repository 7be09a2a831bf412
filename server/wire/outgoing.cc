// SPDX-License-Identifier: Apache-2.0
#include "server/wire/outgoing.h"

#include <string>
#include <utility>

#include "proto/field_start.h"

namespace gemmd {
namespace {

// All of an answer but the bytes of D, which come last and follow it. Fields may come in any order.
std::string HeadOf(v1::MultiplyResponse answer, size_t d_bytes) {
  std::string matrix = answer.d().SerializeAsString();
  AppendFieldStart(v1::Matrix::kDataFieldNumber, d_bytes, matrix);
  answer.clear_d();
  std::string head = answer.SerializeAsString();
  AppendFieldStart(v1::MultiplyResponse::kDFieldNumber, matrix.size() + d_bytes, head);
  return head += matrix;
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

grpc::ByteBuffer UnaryAnswer(v1::MultiplyResponse answer, HeldBytes d) {
  std::string head = HeadOf(std::move(answer), d.size());
  return MessageOf(std::move(head), std::move(d));
}

}  // namespace gemmd
