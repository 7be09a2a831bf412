// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/block_file.h"

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/gemmctl/operand_input.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
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
  auto parsed = ParseForm(form_flag, form);
  if (!parsed.ok()) return parsed.status();
  file.form = *parsed;
  if (path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_flag, ": got none, want a .npy file with the factors of ", form_flag));
  }
  auto array = ReadArray(path, v1::ELEMENT_TYPE_UNSPECIFIED, console);
  if (!array.ok()) return array.status();
  const size_t dimensions = array->shape.size();
  const bool is_right = HoldsFactors(array->type, file.form.type) &&
                        array->order == v1::ORDER_ROW_MAJOR && (dimensions == 2 || dimensions == 3);
  if (!is_right) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_flag, ": got an array of ", dimensions, " dimensions and type ",
        ElementTypeName(array->type), ", want one of 2 or 3 in C order, of ",
        file.form.type == v1::FACTOR_TYPE_F32 ? "f32" : "u8", " for ", form_flag, " ", form));
  }
  file.form.per_matrix = dimensions == 3;
  file.factors = *std::move(array);
  return file;
}

}  // namespace gemmd
