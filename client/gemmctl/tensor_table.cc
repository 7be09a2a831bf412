// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/tensor_table.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/message_json.h"
#include "client/terminal/text_table.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

std::string KeptText(const v1::TensorInfo& tensor) {
  if (tensor.lost()) return "lost";
  if (tensor.pinned()) return "pinned";
  return absl::StrCat("for ", FormatNanoseconds(tensor.expires_in_ns()));
}

std::string PlacesText(const v1::TensorInfo& tensor) {
  std::vector<std::string> places;
  for (const v1::TensorPlace& place : tensor.places()) places.push_back(place.device());
  return places.empty() ? "-" : absl::StrJoin(places, " ");
}

}  // namespace

std::string HandleText(const v1::TensorInfo& tensor) {
  return absl::BytesToHexString(tensor.handle());
}

std::string ShapeText(const v1::TensorSpec& spec) {
  const int64_t matrices = spec.has_matrices() ? spec.matrices() : 1;
  return absl::StrCat(matrices == 1 ? "" : absl::StrCat(matrices, " of "), spec.rows(), " x ",
                      spec.columns(), " ", ElementTypeName(spec.type()),
                      spec.sparsity() == v1::SPARSITY_NONE ? "" : " 2:4",
                      spec.order() == v1::ORDER_COLUMN_MAJOR ? ", columns" : "");
}

std::string TensorTable(const v1::ListTensorsResponse& tensors) {
  TextTable table({{"name"},
                   {"handle"},
                   {"shape"},
                   {"bytes", Align::kRight},
                   {"kept"},
                   {"places"},
                   {"products", Align::kRight}});
  for (const v1::TensorInfo& tensor : tensors.tensors()) {
    table.AddRow({tensor.name().empty() ? "-" : tensor.name(), HandleText(tensor),
                  ShapeText(tensor.spec()), FormatBytes(tensor.kept_bytes()), KeptText(tensor),
                  PlacesText(tensor), FormatCount(tensor.products())});
  }
  return absl::StrCat(table.Print(), "\n", FormatBytes(tensors.session_bytes()), " of ",
                      FormatBytes(tensors.max_session_bytes()), " of the session, ",
                      FormatBytes(tensors.free_bytes()), " free\n");
}

std::string TensorText(const v1::TensorInfo& tensor) {
  return absl::StrCat("name    ", tensor.name().empty() ? "-" : tensor.name(), "\nhandle  ",
                      HandleText(tensor), "\nshape   ", ShapeText(tensor.spec()), "\nbytes   ",
                      FormatBytes(tensor.bytes()), "\nkept    ", KeptText(tensor), "\n");
}

nlohmann::ordered_json TensorJson(const v1::TensorInfo& tensor) {
  nlohmann::ordered_json json = {{"handle", HandleText(tensor)}};
  json.update(MessageJson(tensor));
  return json;
}

}  // namespace gemmd
