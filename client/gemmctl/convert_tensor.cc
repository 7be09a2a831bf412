// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/convert_tensor.h"

#include <cstring>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/operand_size.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

absl::Status CheckShape(const std::vector<int64_t>& shape, const SourceTensor& input) {
  if (shape.size() > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shape: got ", shape.size(), " extents, want 1 to 3"));
  }
  const std::optional<int64_t> count = CountOf(input.shape);
  if (CountOf(shape) == count && count.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--shape: got ", absl::StrJoin(shape, ","), ", want a shape of ",
      count.has_value() ? absl::StrCat(*count) : "2^63 or more", " elements, as the input has"));
}

// Sizes are known to fit 63 bits before anything is made.
absl::Status CheckSize(const NpyArray& output) {
  const PackedMatrix view = PackedTensor(output.type, output.shape, output.order, "");
  return SizeOperand("output", {.type = view.type,
                                .order = view.order,
                                .rows = view.rows,
                                .columns = view.columns,
                                .batch = view.batch})
      .status();
}

absl::Status CheckMatrix(const SourceTensor& input, const NpyArray& output, const char* option) {
  // Lines without elements, of which there may be 2^62, would have factors.
  if (CountOf(output.shape) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": got no elements, want some"));
  }
  if (output.shape.size() == 2 && output.order == v1::ORDER_ROW_MAJOR) return absl::OkStatus();
  if (output.shape.size() == 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": got column order, want row order, such as --order row makes"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": got an array of ", input.shape.size(), " dimensions, want a matrix"));
}

absl::StatusOr<ConvertedTensor> QuantizeTensor(const SourceTensor& input, NpyArray output,
                                               ScalePer per) {
  ConversionCounts counts;
  const int64_t rows = output.shape[0];
  const int64_t columns = output.shape[1];
  const PackedMatrix floats = {.type = v1::ELEMENT_TYPE_F32, .rows = rows, .columns = columns};
  if (absl::Status status = CheckSize({.type = v1::ELEMENT_TYPE_F32, .shape = output.shape});
      !status.ok()) {
    return status;
  }
  const std::string bytes = ConvertElements(
      PackedTensor(input.type, input.shape, input.order, input.data), floats, counts);
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  auto quantized = Quantize(values, rows, columns, output.type, per);
  if (!quantized.ok()) return quantized.status();
  output.data = std::move(quantized->data);
  return ConvertedTensor{.array = std::move(output), .scale = std::move(quantized->scale)};
}

absl::Status PackTensor(ConvertedTensor& tensor, Prune prune) {
  NpyArray& array = tensor.array;
  const MatrixView dense =
      PackedView(array.type, std::as_bytes(std::span(array.data)), array.shape[0], array.shape[1]);
  auto packed = Pack24(dense, prune);
  if (!packed.ok()) {
    const bool may_be_pruned = prune == Prune::kRefuse && SparseGroupOf(array.type).has_value();
    return absl::Status(packed.status().code(),
                        absl::StrCat("--pack24: ", packed.status().message(),
                                     may_be_pruned ? " (--prune drops the smallest)" : ""));
  }
  array.data = std::move(packed->data);
  tensor.is_packed24 = true;
  tensor.dropped = packed->dropped;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NpyArray> PlanConversion(const SourceTensor& input,
                                        const TensorConversion& conversion) {
  NpyArray output = {
      .type = conversion.type == v1::ELEMENT_TYPE_UNSPECIFIED ? input.type : conversion.type,
      .shape = conversion.shape.empty() ? input.shape : conversion.shape,
      .order = conversion.order.value_or(input.order)};
  if (!conversion.shape.empty()) {
    if (absl::Status status = CheckShape(output.shape, input); !status.ok()) return status;
  }
  if (output.shape.size() != 2) {
    // A file of vectors or of a batch has no order: its elements are written row by row.
    if (conversion.order == v1::ORDER_COLUMN_MAJOR) {
      return absl::InvalidArgumentError(
          absl::StrCat("--order: got column for an array of ", output.shape.size(),
                       " dimensions, want row: only an array of 2 has an order in a .npy file"));
    }
    output.order = v1::ORDER_ROW_MAJOR;
  }
  if (absl::Status status = CheckSize(output); !status.ok()) return status;
  // Factors and 2:4 forms are of rows.
  if (conversion.scale.has_value() || conversion.pack24.has_value()) {
    if (!conversion.order.has_value()) output.order = v1::ORDER_ROW_MAJOR;
    const char* const option = conversion.scale.has_value() ? "--quantize" : "--pack24";
    if (absl::Status status = CheckMatrix(input, output, option); !status.ok()) return status;
  }
  return output;
}

absl::StatusOr<ConvertedTensor> ConvertTensor(const SourceTensor& input,
                                              const TensorConversion& conversion) {
  auto output = PlanConversion(input, conversion);
  if (!output.ok()) return output.status();
  ConvertedTensor tensor;
  if (conversion.scale.has_value()) {
    auto quantized = QuantizeTensor(input, *std::move(output), *conversion.scale);
    if (!quantized.ok()) {
      return absl::Status(quantized.status().code(),
                          absl::StrCat("--quantize: ", quantized.status().message()));
    }
    tensor = *std::move(quantized);
  } else {
    tensor.array = *std::move(output);
    tensor.array.data = ConvertElements(
        PackedTensor(input.type, input.shape, input.order, input.data),
        PackedTensor(tensor.array.type, tensor.array.shape, tensor.array.order, ""), tensor.counts);
  }
  if (conversion.pack24.has_value()) {
    if (absl::Status status = PackTensor(tensor, *conversion.pack24); !status.ok()) return status;
  }
  return tensor;
}

}  // namespace gemmd
