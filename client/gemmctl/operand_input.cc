// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/operand_input.h"

#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/matrix/random_matrix.h"
#include "client/operand_size.h"
#include "gemmd/element_codec.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/option/free_memory.h"

namespace gemmd {
namespace {

absl::Status InStandardInput(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("standard input: ", status.message()));
}

absl::Status BeyondFloats(const std::string& flag, const std::string& factor) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": got ", factor, ", want at most ",
                                                 std::numeric_limits<float>::max(),
                                                 ", as f32 has"));
}

}  // namespace

absl::StatusOr<NpyArray> ReadArray(const std::string& path, v1::ElementType hint,
                                   const Console& console, v1::ElementType unnamed) {
  if (path != "-") return ReadNpyFile(path, hint, unnamed);
  auto array = ReadNpy(console.in, hint, unnamed);
  if (array.ok()) return array;
  return InStandardInput(array.status());
}

absl::Status ExpectEndOfInput(const Console& console) {
  return InStandardInput(ExpectEndOfFile(console.in));
}

absl::Status WriteArray(const NpyArray& array, const std::string& path, const Console& console) {
  return path == "-" ? WriteNpy(array, console.out) : WriteNpyFile(array, path);
}

absl::Status CheckOutputFiles(const GlobalFlags& global, const std::vector<NamedFile>& outputs,
                              std::vector<NamedFile> inputs) {
  for (NamedFile& file : FilesOf(global.security)) inputs.push_back(std::move(file));
  return CheckOutputs(outputs, inputs);
}

Console ReportBeside(const std::string& output_path, const Console& console) {
  return {console.in, output_path == "-" ? console.err : console.out, console.err, console.program};
}

absl::StatusOr<NpyArray> MakeRandomArray(const std::string& field, const RandomOperand& operand,
                                         bool with_data) {
  NpyArray array;
  array.type = operand.type;
  array.order = operand.order;
  array.shape = {operand.batch, operand.transpose ? operand.columns : operand.rows,
                 operand.transpose ? operand.rows : operand.columns};
  const OperandShape shape = {.type = array.type,
                              .order = array.order,
                              .rows = array.shape[1],
                              .columns = array.shape[2],

                              .batch = operand.batch};
  const auto bytes = SizeOperand(field, shape);
  if (!bytes.ok()) return bytes.status();
  if (!with_data || bytes->full == 0) return array;
  // A larger operand could not be sent in one message, so making it would be of no use.
  constexpr int64_t kMostBytes = int64_t{1} << 31;
  if (bytes->full > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ": got ", bytes->full, " bytes of random elements, want at most ", kMostBytes));
  }
  const std::string refusal =
      option::RefuseMemory(absl::StrCat(array.shape[1], "x", array.shape[2]), bytes->full);
  if (!refusal.empty()) return absl::ResourceExhaustedError(absl::StrCat(field, ": ", refusal));
  const bool by_columns = array.order == v1::ORDER_COLUMN_MAJOR;
  const int64_t length = array.shape[by_columns ? 1 : 2];
  const int64_t lines = array.shape[by_columns ? 2 : 1];
  array.data = RandomLines(array.type, length, operand.batch * lines, operand.seed);
  return array;
}

absl::StatusOr<MatrixView> ViewArray(const std::string& field, const NpyArray& array,
                                     bool transpose, int64_t batch) {
  const size_t dimensions = array.shape.size();
  if (dimensions != 2 && dimensions != 3) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": got an array of ", dimensions,
                                                   " dimensions, want 2, or 3 for a batch"));
  }
  if (dimensions == 3 && array.shape[0] != batch) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": got a batch of ", array.shape[0], ", want ", batch));
  }
  MatrixView view = PackedView(array.type, std::as_bytes(std::span(array.data)),
                               array.shape[dimensions - 2], array.shape[dimensions - 1]);
  view.order = array.order;
  view.transpose = transpose;
  if (dimensions == 2 && batch != 1) view.batch_stride = 0;
  return view;
}

absl::StatusOr<std::vector<float>> ReadScale(const std::string& flag, const std::string& text,
                                             const Console& console) {
  float value = 0;
  if (text.empty()) return std::vector<float>();
  if (absl::SimpleAtof(text, &value)) {
    const bool is_infinity = text.find_first_of("0123456789") == text.npos;
    if (std::isinf(value) && !is_infinity) return BeyondFloats(flag, text);
    return std::vector<float>{value};
  }
  const auto array = ReadArray(text, v1::ELEMENT_TYPE_UNSPECIFIED, console);
  if (!array.ok()) return array.status();
  if (array->shape.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": got an array of ", array->shape.size(),
                                                   " dimensions, want a number or a vector"));
  }
  std::vector<float> values;
  for (int64_t i = 0; i < array->shape[0]; ++i) {
    const double factor = ElementValue(array->type, LoadElement(array->type, array->data, i));
    if (std::isfinite(factor) && std::abs(factor) > std::numeric_limits<float>::max()) {
      return BeyondFloats(flag, absl::StrCat(factor, " at ", i));
    }
    values.push_back(static_cast<float>(factor));
  }
  return values;
}

}  // namespace gemmd
