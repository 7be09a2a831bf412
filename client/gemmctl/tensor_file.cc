// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/tensor_file.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/matrix/npy_storage.h"
#include "client/operand_size.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

// All elements as one line, as files have them.
PackedMatrix OneLine(v1::ElementType type, const std::vector<int64_t>& shape,
                     absl::string_view data) {
  return {.type = type, .rows = 1, .columns = CountOf(shape).value_or(0), .data = data};
}

// The bits of an element in a file; a boolean takes a byte.
int FileBits(v1::ElementType type) { return type == v1::ELEMENT_TYPE_B1 ? 8 : ElementBits(type); }

absl::Status NoName(v1::ElementType type) {
  return absl::InvalidArgumentError(absl::StrCat(
      "--type: got ", ElementTypeName(type),
      ", which a .safetensors file cannot name, want f64, f32, tf32, f16, bf16, e4m3, e5m2, e3m2, "
      "e2m3, e2m1, s8, u8, b1 or s32"));
}

}  // namespace

bool IsTensorFile(const std::string& path) { return absl::EndsWith(path, ".safetensors"); }

absl::StatusOr<SourceTensor> TensorOf(const MappedSafetensors& file, const SafetensorsEntry& entry,
                                      v1::ElementType hint, std::string& own) {
  const v1::ElementType of_file = TypeOfSafetensors(entry.type);
  const v1::ElementType type = hint == v1::ELEMENT_TYPE_UNSPECIFIED ? of_file : hint;
  const int64_t count = CountOf(entry.shape).value_or(0);
  const bool is_known = type != v1::ELEMENT_TYPE_UNSPECIFIED &&
                        SafetensorsBytes(entry.type, {8}).value_or(0) == FileBits(type);
  if (!is_known) {
    return absl::InvalidArgumentError(absl::StrCat(
        entry.name, ": got a tensor of ", entry.type, ", want one of ",
        hint == v1::ELEMENT_TYPE_UNSPECIFIED ? "an element type" : ElementTypeName(hint)));
  }
  SourceTensor tensor = {.name = entry.name, .type = type, .shape = entry.shape};
  tensor.data = file.BytesOf(entry);
  if (ElementBits(type) >= 8) return tensor;
  if (type == v1::ELEMENT_TYPE_B1) {
    auto packed = PackLines(type, tensor.data, count);
    if (!packed.ok()) return packed.status();
    own = *std::move(packed);
  } else {
    own = std::string(tensor.data);
  }
  ConversionCounts ignored;
  own = ConvertElements(OneLine(type, entry.shape, own),
                        PackedTensor(type, entry.shape, v1::ORDER_ROW_MAJOR, ""), ignored);
  tensor.data = own;
  return tensor;
}

absl::StatusOr<std::vector<SafetensorsEntry>> EntriesFor(const std::string& name,
                                                         const NpyArray& planned,
                                                         const TensorConversion& conversion) {
  SafetensorsEntry entry = {.name = name, .type = std::string(SafetensorsTypeOf(planned.type))};
  if (conversion.pack24.has_value()) {
    const auto bytes = SizeOperand(name, {.type = planned.type,
                                          .rows = planned.shape[0],
                                          .columns = planned.shape[1],
                                          .sparsity = v1::SPARSITY_2_4});
    if (!bytes.ok()) return bytes.status();
    entry.type = "U8";
    entry.shape = {bytes->full};
  } else if (entry.type.empty()) {
    return NoName(planned.type);
  } else {
    entry.shape = planned.shape;
  }
  const auto bytes = SafetensorsBytes(entry.type, entry.shape);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", bytes.status().message()));
  }
  entry.end = *bytes;
  std::vector<SafetensorsEntry> entries = {std::move(entry)};
  if (!conversion.scale.has_value()) return entries;
  int64_t factors = 1;
  if (*conversion.scale != ScalePer::kMatrix) {
    factors = planned.shape[*conversion.scale == ScalePer::kRow ? 0 : 1];
  }
  entries.push_back({.name = absl::StrCat(name, "_scale"),
                     .type = "F32",
                     .shape = {factors},
                     .begin = entries[0].end,
                     .end = entries[0].end + factors * static_cast<int64_t>(sizeof(float))});
  return entries;
}

std::vector<std::pair<std::string, std::string>> MetadataFor(const std::string& name,
                                                             const NpyArray& planned) {
  return {{absl::StrCat(name, ".sparsity"), "2:4"},
          {absl::StrCat(name, ".type"), std::string(ElementTypeName(planned.type))},
          {absl::StrCat(name, ".shape"), absl::StrJoin(planned.shape, ",")}};
}

std::string BytesFor(const ConvertedTensor& tensor) {
  const NpyArray& array = tensor.array;
  std::string bytes = array.data;
  if (!tensor.is_packed24 && ElementBits(array.type) < 8) {
    ConversionCounts ignored;
    bytes = ConvertElements(PackedTensor(array.type, array.shape, array.order, array.data),
                            OneLine(array.type, array.shape, ""), ignored);
    const int64_t count = CountOf(array.shape).value_or(0);
    if (array.type == v1::ELEMENT_TYPE_B1) bytes = UnpackLines(array.type, bytes, count, 1);
  }
  bytes.append(reinterpret_cast<const char*>(tensor.scale.data()),
               tensor.scale.size() * sizeof(float));
  return bytes;
}

}  // namespace gemmd
