// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_convert.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "proto/field_start.h"
#include "server/wire/convert.h"
#include "server/wire/incoming.h"

namespace gemmd {

namespace {

// Parses a range within `extent`; without a count, the range extends to the end.
absl::Status ParseExtent(std::string_view field, std::string_view name, int64_t extent,
                         int64_t first, std::optional<int64_t> given, int64_t& count) {
  count = given.value_or(first >= 0 && first <= extent ? extent - first : 0);
  if (first >= 0 && first <= extent && count >= 0 && count <= extent - first) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(Concat(field, ": got ", count, " ", name, " from ", first,
                                      " on, want a range within the tensor's ", extent));
}

bool Meet(int64_t first, int64_t count, int64_t other_first, int64_t other_count) {
  return count > 0 && other_count > 0 && first < other_first + other_count &&
         other_first < first + count;
}

}  // namespace

absl::StatusOr<PartOfTensor> ParsePart(std::string_view field, const v1::TensorPart& wire,
                                       const TensorSpec& spec) {
  const MatrixLayout& layout = spec.layout;
  const auto given = [](bool has, int64_t count) {
    return has ? std::optional<int64_t>(count) : std::nullopt;
  };
  PartOfTensor part;
  part.first_row = wire.first_row();
  part.first_column = wire.first_column();
  part.first_matrix = wire.first_matrix();
  RETURN_IF_ERROR(ParseExtent(field, "rows", layout.rows, part.first_row,
                              given(wire.has_rows(), wire.rows()), part.rows));
  RETURN_IF_ERROR(ParseExtent(field, "columns", layout.columns, part.first_column,
                              given(wire.has_columns(), wire.columns()), part.columns));
  RETURN_IF_ERROR(ParseExtent(field, "matrices", spec.matrices, part.first_matrix,
                              given(wire.has_matrices(), wire.matrices()), part.matrices));
  // The tensor's size fits 63 bits, and the part lies within it.
  part.offset_bytes = part.first_matrix * layout.batch_stride_bytes;
  if (layout.is_sparse()) {
    if (part.rows == layout.rows && part.columns == layout.columns) return part;
    return Invalid(field, "a part of the rows or columns of a sparse tensor", "all of them");
  }
  const bool is_row_major = layout.order == Order::kRowMajor;
  const int64_t first_line = is_row_major ? part.first_row : part.first_column;
  const int64_t first_element = is_row_major ? part.first_column : part.first_row;
  const int64_t first_bit = first_element * BitsOf(layout.type);
  if (first_bit % 8 != 0) {
    return Invalid(field, Concat("lines that start at element ", first_element),
                   "a start on a whole byte");
  }
  part.offset_bytes += first_line * layout.line_stride_bytes() + first_bit / 8;
  return part;
}

absl::Status CheckWholeBytes(std::string_view field, const PartOfTensor& part,
                             const TensorSpec& spec) {
  const MatrixLayout& layout = spec.layout;
  const bool is_row_major = layout.order == Order::kRowMajor;
  const int64_t end = is_row_major ? part.first_column + part.columns : part.first_row + part.rows;
  if (end == layout.line_length() || end * BitsOf(layout.type) % 8 == 0) return absl::OkStatus();
  return Invalid(field, Concat("lines that end at element ", end), "an end on a whole byte");
}

absl::Status CheckShape(std::string_view field, const PartOfTensor& part, int64_t rows,
                        int64_t columns, int64_t batch, bool may_broadcast) {
  if (part.rows != rows || part.columns != columns) {
    return Invalid(Concat(field, ".tensor"),
                   Concat(part.rows, " rows and ", part.columns, " columns"),
                   Concat(rows, " and ", columns));
  }
  if (part.matrices == batch || (may_broadcast && part.matrices == 1)) return absl::OkStatus();
  return Invalid(Concat(field, ".tensor"), Concat(part.matrices, " matrices"),
                 Concat(may_broadcast ? "1 or " : "", "batch = ", batch));
}

bool Overlap(const PartOfTensor& a, const PartOfTensor& b) {
  return Meet(a.first_row, a.rows, b.first_row, b.rows) &&
         Meet(a.first_column, a.columns, b.first_column, b.columns) &&
         Meet(a.first_matrix, a.matrices, b.first_matrix, b.matrices);
}

absl::StatusOr<absl::Span<const float>> ScaleOfPart(std::string_view field,
                                                    const PartOfTensor& part, const Tensor& tensor,
                                                    bool by_row) {
  const absl::Span<const float> scale = tensor.spec.scale;
  if (scale.size() <= 1) return scale;
  const MatrixLayout& layout = tensor.spec.layout;
  const int64_t extent = by_row ? layout.rows : layout.columns;
  if (static_cast<int64_t>(scale.size()) != extent) {
    return Invalid(Concat(field, ".tensor"), Concat(scale.size(), " factors"),
                   Concat("one for each ", by_row ? "row" : "column", " of the tensor, ", extent));
  }
  return scale.subspan(static_cast<size_t>(by_row ? part.first_row : part.first_column),
                       static_cast<size_t>(by_row ? part.rows : part.columns));
}

absl::StatusOr<BlocksOfPart> BlocksOf(std::string_view field, const PartOfTensor& part,
                                      const TensorSpec& spec, bool is_k_along_columns,
                                      int64_t batch) {
  const std::string name = Concat(field, ".tensor");
  const TensorBlocks& kept = *spec.blocks;
  if (kept.is_k_along_columns != is_k_along_columns) {
    return Invalid(
        name, kept.is_k_along_columns ? "k along the tensor's rows" : "k down the tensor's columns",
        Concat("it ", kept.is_k_along_columns ? "down its columns" : "along its rows",
               ", as its factors have it (spec.k_along_columns); transpose is one of the two"));
  }
  const MatrixLayout& layout = spec.layout;
  const int64_t lines = is_k_along_columns ? layout.columns : layout.rows;
  const int64_t k = is_k_along_columns ? layout.rows : layout.columns;
  const int64_t first_line = is_k_along_columns ? part.first_column : part.first_row;
  const int64_t part_lines = is_k_along_columns ? part.columns : part.rows;
  const int64_t part_k = is_k_along_columns ? part.rows : part.columns;
  if (part_k != k) {
    return Invalid(name, Concat("a part of k, ", part_k),
                   Concat("all ", k, " of a tensor with factors"));
  }
  BlocksOfPart result;
  result.blocks = kept.scale;
  if (first_line % kept.scale.lines != 0) {
    return Invalid(name, Concat("a part that begins at line ", first_line),
                   Concat("the beginning of a block, a multiple of ", kept.scale.lines));
  }
  if (part.matrices == 1) result.blocks.per_matrix = false;
  if (result.blocks.per_matrix && part_lines != lines) {
    return Invalid(name, Concat(part_lines, " lines of ", part.matrices, " matrices"),
                   "one matrix, or all lines, where each matrix has factors of its own");
  }
  ASSIGN_OR_RETURN(result.bytes, FactorBytes(name, result.blocks, part_lines, k, batch));
  result.offset_bytes =
      kept.offset + kept.scale.part_offset(part.first_matrix, first_line, lines, k);
  return result;
}

namespace {

using google::protobuf::io::CodedInputStream;

const uint32_t kChunkTag = DelimitedTag(v1::PutRequest::kChunkFieldNumber);
const uint32_t kDataTag = DelimitedTag(v1::PutChunk::kDataFieldNumber);
constexpr uint32_t kOffsetTag = v1::PutChunk::kOffsetFieldNumber << 3;  // A varint.

// A message that consists of exactly one chunk, as all serializers write it; otherwise nullopt.
std::optional<PutMessage::Chunk> ReadChunk(ReceivedSlices& slices, int64_t bytes) {
  SliceStream stream(slices, SliceStream::After::kKeep);
  CodedInputStream input(&stream);
  (void)input.PushLimit(static_cast<int>(bytes));
  WireRange whole;
  if (input.ReadTag() != kChunkTag || !ReadRange(input, whole) || whole.end != bytes) {
    return std::nullopt;
  }
  PutMessage::Chunk chunk;
  WireRange data;
  for (int64_t fields = 0; const uint32_t tag = NextTag(input); ++fields) {
    uint64_t offset = 0;
    if (fields == kMaxFields) return std::nullopt;
    if (tag == kOffsetTag && input.ReadVarint64(&offset)) {
      chunk.offset = static_cast<int64_t>(offset);
    } else if (tag != kDataTag || !ReadRange(input, data) ||
               !input.Skip(static_cast<int>(data.end - data.begin))) {
      return std::nullopt;
    }
  }
  if (!input.ConsumedEntireMessage()) return std::nullopt;
  SliceWalk().Visit(slices, data, [&chunk](const grpc::Slice& slice, size_t first, size_t last) {
    chunk.pieces.push_back(
        {reinterpret_cast<const std::byte*>(slice.begin()) + first, last - first});
  });
  return chunk;
}

void Release(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

}  // namespace

absl::StatusOr<PutMessage> ReadPutRequest(const grpc::ByteBuffer& bytes) {
  if (bytes.Length() > kMaxPutBytes) {
    return Invalid("message", Concat(bytes.Length(), " bytes"), Concat("at most ", kMaxPutBytes));
  }
  PutMessage message;
  message.slices = std::make_unique<ReceivedSlices>(SlicesIn(bytes));
  message.chunk = ReadChunk(*message.slices, static_cast<int64_t>(bytes.Length()));
  if (!message.chunk) {
    RETURN_IF_ERROR(ReadRequest(bytes, message.other, kMaxPutBytes));
    if (message.other.step_case() == v1::PutRequest::kChunk) {
      message.slices->clear();
      message.slices->emplace_back(message.other.chunk().data());
      const grpc::Slice& data = message.slices->front();
      message.chunk = PutMessage::Chunk();
      PutMessage::Chunk& chunk = *message.chunk;
      chunk.offset = message.other.chunk().offset();
      chunk.pieces.push_back({reinterpret_cast<const std::byte*>(data.begin()), data.size()});
    }
  }
  if (!message.chunk) return message;
  int64_t count = 0;
  for (const auto& piece : message.chunk->pieces) count += static_cast<int64_t>(piece.size());
  if (count > kMaxChunkBytes) {
    return Invalid("chunk.data", Concat(count, " bytes"), Concat("at most ", kMaxChunkBytes));
  }
  return message;
}

grpc::ByteBuffer ChunkAnswer(int64_t offset, absl::Span<const std::byte> bytes,
                             std::shared_ptr<const void> owner) {
  v1::GetChunk chunk;
  chunk.set_offset(offset);
  std::string fields = chunk.SerializeAsString();
  AppendFieldStart(v1::GetChunk::kDataFieldNumber, bytes.size(), fields);
  std::string head;
  AppendFieldStart(v1::GetResponse::kChunkFieldNumber, fields.size() + bytes.size(), head);
  head += fields;
  // gRPC's slices take pointers to mutable bytes, but gRPC only reads them.
  auto* const data = const_cast<std::byte*>(bytes.data());
  const grpc::Slice slices[] = {
      grpc::Slice(head),
      grpc::Slice(data, bytes.size(), Release, new std::shared_ptr<const void>(std::move(owner)))};
  return grpc::ByteBuffer(slices, 2);
}

namespace {

absl::StatusOr<MatrixLayout> ParseSparse(const v1::TensorSpec& spec, ElementType type,
                                         Order order) {
  if (order != Order::kRowMajor) {
    return Invalid("spec.order", "column", "row where sparsity is 2:4");
  }
  if (spec.leading_dimension() != 0) {
    return Invalid("spec.leading_dimension", spec.leading_dimension(), "0 where sparsity is 2:4");
  }
  return TightSparseLayout("spec", type, spec.rows(), spec.columns());
}

absl::StatusOr<std::optional<TensorBlocks>> ParseTensorBlocks(const v1::TensorSpec& spec,
                                                              ElementType type) {
  if (!spec.scale().has_blocks()) {
    if (!spec.k_along_columns()) return std::optional<TensorBlocks>();
    return Invalid("spec.k_along_columns", "true", "false without scale.blocks");
  }
  const v1::BlockScale& wire = spec.scale().blocks();
  if (BitsOf(type) > 8 || type == ElementType::kB1) {
    return Invalid("spec.scale.blocks", Concat("factors for elements of type ", NameOf(type)),
                   "none (only types of 4 to 8 bits have factors of blocks)");
  }
  if (spec.sparsity() != v1::SPARSITY_NONE) {
    return Invalid("spec.scale.blocks", "factors of a sparse tensor", "none");
  }
  if (!wire.factors().empty()) {
    return Invalid("spec.scale.blocks.factors", Concat(wire.factors().size(), " bytes"),
                   "none: the tensor's own bytes end with the factors");
  }
  TensorBlocks blocks;
  blocks.is_k_along_columns = spec.k_along_columns();
  ASSIGN_OR_RETURN(blocks.scale, ParseBlocks("spec.scale.blocks", wire));
  return std::optional(blocks);
}

absl::Status CheckScale(const v1::TensorSpec& spec, ElementType type) {
  const int64_t count = spec.scale().values_size();
  if (count > 0 && spec.scale().has_blocks()) {
    return Invalid("spec.scale.values", Concat(count, " values"), "none beside blocks");
  }
  if (count == 0) return absl::OkStatus();
  if (BitsOf(type) != 8) {
    return Invalid("spec.scale.values", Concat(count, " values"),
                   "none: only 8-bit types are scaled");
  }
  if (count == 1 || count == spec.rows() || count == spec.columns()) return absl::OkStatus();
  return Invalid("spec.scale.values", Concat(count, " values"),
                 Concat("0, 1, rows = ", spec.rows(), " or columns = ", spec.columns()));
}

absl::StatusOr<std::optional<Sha256Digest>> ParseDigest(const std::string& bytes) {
  if (bytes.empty()) return std::optional<Sha256Digest>();
  Sha256Digest digest;
  if (bytes.size() != digest.size()) {
    return Invalid("begin.sha256", Concat(bytes.size(), " bytes"), "32 or none");
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
    if (extent < 0) return Invalid(Concat("spec.", name), extent, "at least 0");
  }
  if (!v1::Sparsity_IsValid(spec.sparsity())) return UnknownValue("spec.sparsity", spec.sparsity());
  RETURN_IF_ERROR(CheckScale(spec, type));
  ASSIGN_OR_RETURN(std::optional<TensorBlocks> blocks, ParseTensorBlocks(spec, type));
  const bool is_sparse = spec.sparsity() != v1::SPARSITY_NONE;
  ASSIGN_OR_RETURN(const MatrixLayout layout,
                   is_sparse ? ParseSparse(spec, type, order)
                             : ParseLayout("spec", type, order, spec.rows(), spec.columns(),
                                           {spec.leading_dimension(), std::nullopt}));
  const auto& scale = spec.scale().values();
  return MakeTensorSpec(layout, matrices, std::vector<float>(scale.begin(), scale.end()), blocks);
}

absl::StatusOr<TensorName> ParseTensorRef(std::string_view field, const v1::TensorRef& ref) {
  switch (ref.tensor_case()) {
    case v1::TensorRef::kHandle: {
      const std::optional<RandomId> handle = RandomId::FromBytes(ref.handle());
      if (handle) return TensorName(*handle);
      return Invalid(Concat(field, ".handle"), Concat(ref.handle().size(), " bytes"),
                     RandomId::kBytes);
    }
    case v1::TensorRef::kName:
      RETURN_IF_ERROR(CheckNameLength(Concat(field, ".name"), ref.name()));
      if (ref.name().empty()) return Invalid(Concat(field, ".name"), "none", "a name");
      return TensorName(ref.name());
    default: return Invalid(field, "none", "a handle or a name");
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
        Concat("offset: got ", offset, ", want 0 to ", size, ", the tensor's bytes"));
  }
  const int64_t bytes = request.has_bytes() ? request.bytes() : size - offset;
  if (bytes < 0 || bytes > size - offset) {
    return absl::OutOfRangeError(Concat("bytes: got ", bytes, " from ", offset,
                                        " on, want at most the ", size - offset,
                                        " that are left of the tensor"));
  }
  return ByteRange{.offset = offset, .bytes = bytes};
}

void Fill(const TensorState& state, Scales scales, v1::TensorInfo& wire) {
  const Tensor& tensor = *state.tensor;
  const MatrixLayout& layout = tensor.spec.layout;
  const auto& handle = tensor.handle.bytes;
  wire.mutable_handle()->assign(reinterpret_cast<const char*>(handle.data()), handle.size());
  wire.set_name(tensor.name);
  v1::TensorSpec& spec = *wire.mutable_spec();
  spec.set_type(ToWire(layout.type));
  spec.set_order(ToWire(layout.order));
  spec.set_rows(layout.rows);
  spec.set_columns(layout.columns);
  spec.set_sparsity(layout.is_sparse() ? v1::SPARSITY_2_4 : v1::SPARSITY_NONE);
  spec.set_leading_dimension(layout.is_sparse() ? 0 : layout.leading_dimension);
  spec.set_matrices(tensor.spec.matrices);
  spec.clear_scale();
  spec.set_k_along_columns(tensor.spec.blocks && tensor.spec.blocks->is_k_along_columns);
  if (tensor.spec.blocks)
    Fill(tensor.spec.blocks->scale, {}, *spec.mutable_scale()->mutable_blocks());
  if (scales == Scales::kTold) {
    spec.mutable_scale()->mutable_values()->Assign(tensor.spec.scale.begin(),
                                                   tensor.spec.scale.end());
  }
  wire.set_bytes(tensor.spec.bytes);
  wire.set_kept_bytes(state.kept_bytes);
  wire.set_pinned(state.pinned);
  wire.set_lease_ns(state.lease_ns);
  wire.set_expires_in_ns(state.expires_in_ns);
  wire.clear_places();
  for (const TensorPlace& place : state.places) {
    v1::TensorPlace& told = *wire.add_places();
    told.set_device(place.device);
    told.set_bytes(place.bytes);
  }
  wire.set_lost(state.lost);
  wire.set_products(state.products);
}

v1::TensorInfo ToWire(const TensorState& state, Scales scales) {
  v1::TensorInfo wire;
  Fill(state, scales, wire);
  return wire;
}

}  // namespace gemmd
