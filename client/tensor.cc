// SPDX-License-Identifier: Apache-2.0
#include "gemmd/tensor.h"

#include <openssl/sha.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "client/client_session.h"
#include "client/tensor_message.h"
#include "gemmd/v1/resident.pb.h"

namespace gemmd {

std::string Sha256Of(std::span<const std::byte> bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

TensorRef NamedTensor(absl::string_view name) { return {.name = std::string(name)}; }
TensorRef TensorOfHandle(absl::string_view handle) { return {.handle = std::string(handle)}; }

v1::TensorRef MessageOf(const TensorRef& ref) {
  v1::TensorRef message;
  if (ref.handle.empty()) {
    message.set_name(ref.name);
  } else {
    message.set_handle(ref.handle);
  }
  return message;
}

namespace {

// Where a part of a range begins in the tensor. What a range of the whole exceeds, the server says.
// Of a range within a part it would see no more than where it ends up: one that leaves the part
// gets a beginning that the server refuses.
int64_t BeginOf(const TensorView& outer, int64_t outer_first, int64_t outer_count, int64_t first,
                int64_t count) {
  if (outer.is_whole) return first;
  const bool is_within = outer_first >= 0 && first >= 0 && count >= 0 && first <= outer_count &&
                         count <= outer_count - first;
  return is_within && outer_first <= std::numeric_limits<int64_t>::max() - first
             ? outer_first + first
             : -1;
}

}  // namespace

TensorView TensorView::Rows(int64_t first, int64_t count) const {
  TensorView view = *this;
  view.first_row = BeginOf(*this, first_row, rows, first, count);
  view.rows = count;
  view.is_whole = false;
  return view;
}

TensorView TensorView::Columns(int64_t first, int64_t count) const {
  TensorView view = *this;
  view.first_column = BeginOf(*this, first_column, columns, first, count);
  view.columns = count;
  view.is_whole = false;
  return view;
}

TensorView TensorView::Matrices(int64_t first, int64_t count) const {
  TensorView view = *this;
  view.first_matrix = BeginOf(*this, first_matrix, matrices, first, count);
  view.matrices = count;
  view.is_whole = false;
  return view;
}

TensorView TensorView::Transposed() const {
  TensorView view = *this;
  view.transpose = !transpose;
  return view;
}

v1::TensorPart TensorView::part() const {
  v1::TensorPart part;
  *part.mutable_tensor() = MessageOf(tensor);
  if (is_whole) return part;
  part.set_first_row(first_row);
  part.set_rows(rows);
  part.set_first_column(first_column);
  part.set_columns(columns);
  part.set_first_matrix(first_matrix);
  part.set_matrices(matrices);
  return part;
}

TensorView ViewOf(const v1::TensorInfo& info) {
  const v1::TensorSpec& spec = info.spec();
  TensorView view;
  view.tensor = TensorOfHandle(info.handle());
  view.type = spec.type();
  view.order = spec.order();
  view.sparsity = spec.sparsity();
  view.rows = spec.rows();
  view.columns = spec.columns();
  view.matrices = spec.has_matrices() ? spec.matrices() : 1;
  return view;
}

ResidentTensor::ResidentTensor(v1::TensorInfo info, std::weak_ptr<TensorOwner> owner)
    : info_(std::make_shared<const v1::TensorInfo>(std::move(info))), owner_(std::move(owner)) {}

ResidentTensor::ResidentTensor(ResidentTensor&& other) noexcept
    : info_(other.info_), owner_(std::move(other.owner_)) {
  other.owner_.reset();
}

ResidentTensor& ResidentTensor::operator=(ResidentTensor&& other) noexcept {
  if (this == &other) return *this;
  DeleteFromServer();
  info_ = other.info_;
  owner_ = std::move(other.owner_);
  other.owner_.reset();
  return *this;
}

const std::string& ResidentTensor::handle() const { return info_->handle(); }
v1::ElementType ResidentTensor::type() const { return info_->spec().type(); }
int64_t ResidentTensor::rows() const { return info_->spec().rows(); }
int64_t ResidentTensor::columns() const { return info_->spec().columns(); }
int64_t ResidentTensor::bytes() const { return info_->bytes(); }

ResidentTensor::~ResidentTensor() { DeleteFromServer(); }

std::string ResidentTensor::Release() && {
  owner_.reset();
  return info_->handle();
}

void ResidentTensor::DeleteFromServer() {
  const auto owner = owner_.lock();
  owner_.reset();
  if (owner == nullptr || info_->pinned()) return;
  // The session cannot go meanwhile.
  absl::MutexLock lock(&owner->mutex);
  if (owner->session != nullptr) owner->session->DeleteSoon(info_->handle());
}

Operand::Operand(const MatrixView& view) : matrix_(view) {}
Operand::Operand(const TensorView& view) : tensor_(view) {}
Operand::Operand(const ResidentTensor& tensor) : tensor_(tensor.view()) {}

}  // namespace gemmd
