// SPDX-License-Identifier: Apache-2.0
#include "client/load/operand_place.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {
namespace {

// An operand of the request as a tensor that stays; it then names that instead of bytes.
absl::Status Keep(Client& client, int64_t rows, int64_t columns, int64_t batch,
                  v1::Operand& operand, std::vector<ResidentTensor>& tensors) {
  MatrixView view =
      PackedView(operand.type(), std::as_bytes(std::span(operand.data())), rows, columns);
  view.order = operand.order();
  view.sparsity = operand.sparsity();
  auto tensor = client.Put(view, {.matrices = batch});
  if (!tensor.ok()) return tensor.status();
  operand.Clear();
  *operand.mutable_tensor() = tensor->view().part();
  tensors.push_back(*std::move(tensor));
  return absl::OkStatus();
}

// The same request with D in a new tensor.
absl::StatusOr<std::shared_ptr<v1::MultiplyRequest>> KeepResult(const LoadProduct& product,
                                                                Client& client,
                                                                const v1::MultiplyRequest& request,
                                                                Payload& payload) {
  const std::string zeros(static_cast<size_t>(payload.answer_bytes), '\0');
  const MatrixView view =
      PackedView(OutputTypeOf(product), std::as_bytes(std::span(zeros)), product.m, product.n);
  auto tensor = client.Put(view, {.matrices = product.batch});
  if (!tensor.ok()) return tensor.status();
  auto kept = std::make_shared<v1::MultiplyRequest>(request);
  *kept->mutable_d()->mutable_tensor() = tensor->view().part();
  payload.tensors.push_back(*std::move(tensor));
  return kept;
}

// Calls that are under way together leave D in tensors of their own, as those of real callers do,
// as long as the results are small.
int64_t CountOfResults(int64_t bytes) {
  constexpr int64_t kMostBytes = int64_t{4} << 20;
  constexpr int64_t kMost = 64;
  return std::clamp<int64_t>(kMostBytes / std::max<int64_t>(bytes, 1), 1, kMost);
}

// Calls leave D in a few tensors, and those that are checked in another.
absl::Status KeepResults(const LoadProduct& product, Client& client,
                         const std::shared_ptr<Client>& reader,
                         std::shared_ptr<v1::MultiplyRequest>& request, Payload& payload) {
  const auto session = client.OpenSession();
  if (!session.ok()) return session.status();
  if (auto joined = reader->OpenSession(session->token); !joined.ok()) return joined.status();
  auto checked = KeepResult(product, client, *request, payload);
  if (!checked.ok()) return checked.status();
  auto slot = std::make_unique<ResultSlot>();
  slot->request = *checked;
  slot->reader = reader;
  payload.slot_of_client.push_back(slot.get());
  payload.slots[payload.tensors.back().handle()] = std::move(slot);
  auto& others = payload.others.emplace_back();
  for (int64_t i = 1; i < CountOfResults(payload.answer_bytes); ++i) {
    auto other = KeepResult(product, client, *request, payload);
    if (!other.ok()) return other.status();
    others.push_back(*std::move(other));
  }
  auto kept = KeepResult(product, client, *request, payload);
  if (!kept.ok()) return kept.status();
  request = *std::move(kept);
  return absl::OkStatus();
}

}  // namespace

const std::vector<OperandPlace>& OperandPlaces() {
  static const auto& places = *new std::vector<OperandPlace>{
      {"inline", "their bytes travel with each call", false, false},
      {"resident", "B, the weights, is uploaded once; A and D travel", true, false},
      {"resident-all", "A and B are uploaded once, and D stays in one of a few tensors", true,
       true}};
  return places;
}

const OperandPlace* FindOperandPlace(absl::string_view name) {
  for (const OperandPlace& place : OperandPlaces()) {
    if (place.name == name) return &place;
  }
  return nullptr;
}

absl::Status PlaceOperands(const OperandPlace& place, const LoadProduct& product, Client& client,
                           const std::shared_ptr<Client>& reader, Payload& payload) {
  if (!place.keeps_b) {
    payload.placed.push_back(payload.request);
    return absl::OkStatus();
  }
  auto request = std::make_shared<v1::MultiplyRequest>(*payload.request);
  absl::Status status =
      Keep(client, product.k, product.n, product.batch, *request->mutable_b(), payload.tensors);
  if (status.ok() && place.keeps_ad) {
    status =
        Keep(client, product.m, product.k, product.batch, *request->mutable_a(), payload.tensors);
    if (status.ok()) status = KeepResults(product, client, reader, request, payload);
    payload.answers_inline = false;
  }
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(product.name, ": ", status.message()));
  }
  payload.sent_bytes = static_cast<int64_t>(request->ByteSizeLong());
  payload.placed.push_back(std::move(request));
  return absl::OkStatus();
}

}  // namespace gemmd
