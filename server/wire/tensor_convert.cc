// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_convert.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/convert_operand.h"

namespace gemmd {
namespace {

absl::StatusOr<MatrixLayout> ParseSparse(const v1::TensorSpec& spec, ElementType type,
                                         Order order) {
  if (order != Order::kRowMajor) {
    return absl::InvalidArgumentError(GotWant("spec.order", "column", "row where sparsity is 2:4"));
  }
  if (spec.leading_dimension() != 0) {
    return absl::InvalidArgumentError(GotWant(
        "spec.leading_dimension", Concat(spec.leading_dimension()), "0 where sparsity is 2:4"));
  }
  return TightSparseLayout("spec", type, spec.rows(), spec.columns());
}

absl::Status CheckScale(const v1::TensorSpec& spec, ElementType type) {
  if (spec.scale().has_blocks()) {
    return absl::InvalidArgumentError(
        "spec.scale.blocks: got factors of blocks, want none: products bring those along");
  }
  const int64_t count = spec.scale().values_size();
  if (count == 0) return absl::OkStatus();
  if (BitsOf(type) != 8) {
    return absl::InvalidArgumentError(Concat("spec.scale.values: got ", count,
                                             " values, want none: only 8-bit types are scaled"));
  }
  if (count == 1 || count == spec.rows() || count == spec.columns()) return absl::OkStatus();
  return absl::InvalidArgumentError(Concat("spec.scale.values: got ", count,
                                           " values, want 0, 1, rows = ", spec.rows(),
                                           " or columns = ", spec.columns()));
}

absl::StatusOr<std::optional<Sha256Digest>> ParseDigest(const std::string& bytes) {
  if (bytes.empty()) return std::optional<Sha256Digest>();
  Sha256Digest digest;
  if (bytes.size() != digest.size()) {
    return absl::InvalidArgumentError(
        GotWant("begin.sha256", Concat(bytes.size(), " bytes"), "32 or none"));
  }
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return std::optional<Sha256Digest>(digest);
}

}  // namespace

absl::StatusOr<TensorSpec> ParseTensorSpec(const v1::TensorSpec& spec) {
  ASSIGN_OR_RETURN(const ElementType type, ParseType("spec.type", spec.type(), {}));
  ASSIGN_OR_RETURN(const Order order, ParseOrder("spec.order", spec.order()));
  const int64_t matrices = spec.has_matrices() ? spec.matrices() : 1;
  const std::pair<std::string_view, int64_t> extents[] = {
      {"rows", spec.rows()}, {"columns", spec.columns()}, {"matrices", matrices}};
  for (const auto& [name, extent] : extents) {
    if (extent < 0) {
      return absl::InvalidArgumentError(
          Concat("spec.", name, ": got ", extent, ", want at least 0"));
    }
  }
  if (!v1::Sparsity_IsValid(spec.sparsity())) return UnknownValue("spec.sparsity", spec.sparsity());
  RETURN_IF_ERROR(CheckScale(spec, type));
  const bool is_sparse = spec.sparsity() != v1::SPARSITY_NONE;
  ASSIGN_OR_RETURN(const MatrixLayout layout,
                   is_sparse ? ParseSparse(spec, type, order)
                             : ParseLayout("spec", type, order, spec.rows(), spec.columns(),
                                           {spec.leading_dimension(), std::nullopt}));
  const auto& scale = spec.scale().values();
  return MakeTensorSpec(layout, matrices, std::vector<float>(scale.begin(), scale.end()));
}

absl::StatusOr<TensorName> ParseTensorRef(std::string_view field, const v1::TensorRef& ref) {
  switch (ref.tensor_case()) {
    case v1::TensorRef::kHandle: {
      const std::optional<RandomId> handle = RandomId::FromBytes(ref.handle());
      if (handle) return TensorName(*handle);
      return absl::InvalidArgumentError(GotWant(Concat(field, ".handle"),
                                                Concat(ref.handle().size(), " bytes"),
                                                Concat(RandomId::kBytes)));
    }
    case v1::TensorRef::kName:
      RETURN_IF_ERROR(CheckNameLength(Concat(field, ".name"), ref.name()));
      if (ref.name().empty()) {
        return absl::InvalidArgumentError(GotWant(Concat(field, ".name"), "none", "a name"));
      }
      return TensorName(ref.name());
    default: return absl::InvalidArgumentError(GotWant(field, "none", "a handle or a name"));
  }
}

Keeping ParseKeeping(const v1::NewTensor& keep) {
  return {.name = keep.name(), .lease_ns = keep.lease_ns(), .pinned = keep.pinned()};
}

absl::StatusOr<NewUpload> ParsePutBegin(const v1::PutBegin& begin) {
  RETURN_IF_ERROR(CheckNameLength("begin.device", begin.device()));
  NewUpload upload;
  ASSIGN_OR_RETURN(upload.spec, ParseTensorSpec(begin.spec()));
  ASSIGN_OR_RETURN(upload.digest, ParseDigest(begin.sha256()));
  upload.keep = ParseKeeping(begin.keep());
  return upload;
}

absl::StatusOr<Compressor::Request> ParseCompress(const v1::CompressRequest& request) {
  Compressor::Request asked;
  ASSIGN_OR_RETURN(asked.tensor, ParseTensorRef("tensor", request.tensor()));
  if (request.has_mask()) {
    ASSIGN_OR_RETURN(asked.mask, ParseTensorRef("mask", request.mask()));
  }
  asked.keep = ParseKeeping(request.keep());
  return asked;
}

absl::StatusOr<ByteRange> ParseRange(const v1::GetRequest& request, int64_t size) {
  const int64_t offset = request.offset();
  if (offset < 0 || offset > size) {
    return absl::OutOfRangeError(
        Concat("offset: got ", offset, ", want 0 to the tensor's bytes, ", size));
  }
  const int64_t bytes = request.has_bytes() ? request.bytes() : size - offset;
  if (bytes < 0 || bytes > size - offset) {
    return absl::OutOfRangeError(Concat("bytes: got ", bytes, " from ", offset,
                                        " on, want at most the ", size - offset,
                                        " that are left of the tensor"));
  }
  return ByteRange{.offset = offset, .bytes = bytes};
}

v1::TensorInfo ToWire(const TensorState& state, Scales scales) {
  const Tensor& tensor = *state.tensor;
  const MatrixLayout& layout = tensor.spec.layout;
  v1::TensorInfo wire;
  wire.set_handle(tensor.handle.ToBytes());
  wire.set_name(tensor.name);
  v1::TensorSpec& spec = *wire.mutable_spec();
  spec.set_type(ToWire(layout.type));
  spec.set_order(layout.order == Order::kRowMajor ? v1::ORDER_ROW_MAJOR : v1::ORDER_COLUMN_MAJOR);
  spec.set_rows(layout.rows);
  spec.set_columns(layout.columns);
  if (layout.is_sparse()) {
    spec.set_sparsity(v1::SPARSITY_2_4);
  } else {
    spec.set_leading_dimension(layout.leading_dimension);
  }
  spec.set_matrices(tensor.spec.matrices);
  if (scales == Scales::kTold) {
    spec.mutable_scale()->mutable_values()->Assign(tensor.spec.scale.begin(),
                                                   tensor.spec.scale.end());
  }
  wire.set_bytes(tensor.spec.bytes);
  wire.set_kept_bytes(state.kept_bytes);
  wire.set_pinned(state.pinned);
  wire.set_lease_ns(state.lease_ns);
  wire.set_expires_in_ns(state.expires_in_ns);
  for (const TensorPlace& place : state.places) {
    v1::TensorPlace& told = *wire.add_places();
    told.set_device(place.device);
    told.set_bytes(place.bytes);
  }
  wire.set_lost(state.lost);
  wire.set_products(state.products);
  return wire;
}

}  // namespace gemmd
