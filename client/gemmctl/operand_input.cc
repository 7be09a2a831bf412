// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/operand_input.h"

#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/matrix/random_matrix.h"
#include "client/operand_size.h"
#include "gemmd/element_codec.h"
#include "kernels/matrix/status.h"
#include "kernels/option/resources.h"

namespace gemmd {
namespace {

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
  return Prefixed("standard input", array.status());
}

absl::StatusOr<MappedNpy> MapArray(const std::string& path, v1::ElementType hint,
                                   const Console& console) {
  if (path != "-") return MappedNpy::Open(path, hint);
  ASSIGN_OR_RETURN(auto array, ReadArray(path, hint, console));
  return MappedNpy(std::move(array));
}

absl::Status ExpectEndOfInput(const Console& console) {
  return Prefixed("standard input", ExpectEndOfFile(console.in));
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
  ASSIGN_OR_RETURN(const auto bytes, SizeOperand(field, shape));
  if (!with_data || bytes.full == 0) return array;
  // A larger operand does not fit one message.
  constexpr int64_t kMaxBytes = int64_t{1} << 31;
  if (bytes.full > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ": got ", bytes.full, " bytes of random elements, want at most ", kMaxBytes));
  }
  const std::string refusal =
      option::RefuseMemory(absl::StrCat(array.shape[1], "x", array.shape[2]), bytes.full);
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
  ASSIGN_OR_RETURN(const auto array, ReadArray(text, v1::ELEMENT_TYPE_UNSPECIFIED, console));
  if (array.shape.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": got an array of ", array.shape.size(),
                                                   " dimensions, want a number or a vector"));
  }
  std::vector<float> values;
  for (int64_t i = 0; i < array.shape[0]; ++i) {
    const double factor = ElementValue(array.type, LoadElement(array.type, array.data, i));
    if (std::isfinite(factor) && std::abs(factor) > std::numeric_limits<float>::max()) {
      return BeyondFloats(flag, absl::StrCat(factor, " at ", i));
    }
    values.push_back(static_cast<float>(factor));
  }
  return values;
}

std::string PlaceText(int64_t batches, int64_t batch, int64_t row, int64_t column) {
  return absl::StrCat("[", batches == 1 ? "" : absl::StrCat(batch, ", "), row, ", ", column, "]");
}

std::string PatternText(v1::ElementType type, uint64_t pattern) {
  return absl::StrFormat("0x%0*x", (ElementBits(type) + 3) / 4, pattern);
}

std::string ElementText(v1::ElementType type, uint64_t pattern) {
  const int digits = ElementBits(type) == 64 ? 17 : 9;
  return absl::StrFormat("%.*g", digits, ElementValue(type, pattern));
}

namespace {

std::optional<v1::FactorType> FactorTypeNamed(absl::string_view name) {
  if (name == "f32") return v1::FACTOR_TYPE_F32;
  if (name == "ue8m0") return v1::FACTOR_TYPE_UE8M0;
  if (name == "ue4m3") return v1::FACTOR_TYPE_UE4M3;
  return std::nullopt;
}

absl::StatusOr<BlockScaleView> ParseForm(const std::string& flag, const std::string& form) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(form, absl::MaxSplits(':', 1));
  const std::pair<absl::string_view, absl::string_view> extents =
      absl::StrSplit(parts.second, absl::MaxSplits('x', 1));
  const std::optional<v1::FactorType> type = FactorTypeNamed(parts.first);
  BlockScaleView view;
  const bool is_form = type.has_value() && absl::SimpleAtoi(extents.first, &view.rows_per_block) &&
                       absl::SimpleAtoi(extents.second, &view.k_per_block) &&
                       view.rows_per_block >= 1 && view.k_per_block >= 1;
  if (!is_form) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": got ", form, ", want f32, ue8m0 or ue4m3 and a block, as in ue8m0:1x32"));
  }
  view.type = *type;
  return view;
}

bool HoldsFactors(v1::ElementType stored, v1::FactorType type) {
  if (type == v1::FACTOR_TYPE_F32) return stored == v1::ELEMENT_TYPE_F32;
  return stored == v1::ELEMENT_TYPE_U8 ||
         (type == v1::FACTOR_TYPE_UE4M3 && stored == v1::ELEMENT_TYPE_E4M3);
}

}  // namespace

BlockScaleView BlockFile::view() const {
  BlockScaleView view = form;
  view.factors = std::as_bytes(std::span(factors.data));
  return view;
}

absl::StatusOr<BlockFile> ReadBlocks(const std::string& form_flag, const std::string& form,
                                     const std::string& path_flag, const std::string& path,
                                     const Console& console) {
  BlockFile file;
  ASSIGN_OR_RETURN(file.form, ParseForm(form_flag, form));
  if (path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_flag, ": got none, want a .npy file with the factors of ", form_flag));
  }
  ASSIGN_OR_RETURN(auto array, ReadArray(path, v1::ELEMENT_TYPE_UNSPECIFIED, console));
  const size_t dimensions = array.shape.size();
  const bool is_right = HoldsFactors(array.type, file.form.type) &&
                        array.order == v1::ORDER_ROW_MAJOR && (dimensions == 2 || dimensions == 3);
  if (!is_right) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_flag, ": got an array of ", dimensions, " dimensions and type ",
        ElementTypeName(array.type), ", want one of 2 or 3 in C order, of ",
        file.form.type == v1::FACTOR_TYPE_F32 ? "f32" : "u8", " for ", form_flag, " ", form));
  }
  file.form.per_matrix = dimensions == 3;
  file.factors = std::move(array);
  return file;
}

}  // namespace gemmd
