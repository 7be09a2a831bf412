// SPDX-License-Identifier: Apache-2.0
#include "client/load/operand_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

// What a file says about a size of the product.
absl::Status Agree(const std::string& path, absl::string_view size, int64_t got, int64_t& want) {
  if (want == 0) want = got;
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": got ", size, " = ", got, ", want ", want,
                                                 " as the rest of the product"));
}

// Reads one operand of `rows` x `columns`, whose names are `row_size` and `column_size`.
absl::StatusOr<NpyArray> Read(const std::string& path, LoadProduct& product,
                              absl::string_view row_size, int64_t& rows,
                              absl::string_view column_size, int64_t& columns) {
  auto array = ReadNpyFile(path, product.type);
  if (!array.ok()) return array.status();
  const size_t dimensions = array->shape.size();
  if (dimensions != 2 && dimensions != 3) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": got an array of ", dimensions,
                                                   " dimensions, want 2, or 3 for a batch"));
  }
  if (product.type == v1::ELEMENT_TYPE_UNSPECIFIED) product.type = array->type;
  if (array->type != product.type) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": got elements of ", std::string(ElementTypeName(array->type)),
                     ", want ", std::string(ElementTypeName(product.type))));
  }
  absl::Status status = Agree(path, row_size, array->shape[dimensions - 2], rows);
  status.Update(Agree(path, column_size, array->shape[dimensions - 1], columns));
  status.Update(Agree(path, "batch", dimensions == 3 ? array->shape[0] : 1, product.batch));
  if (!status.ok()) return status;
  return array;
}

}  // namespace

absl::StatusOr<GivenOperands> ReadOperands(LoadProduct& product) {
  GivenOperands given;
  if (!product.a_path.empty()) {
    auto a = Read(product.a_path, product, "m", product.m, "k", product.k);
    if (!a.ok()) return a.status();
    given.a = *std::move(a);
  }
  if (!product.b_path.empty()) {
    auto b = Read(product.b_path, product, "k", product.k, "n", product.n);
    if (!b.ok()) return b.status();
    product.b_order = b->order;
    given.b = *std::move(b);
  }
  if (product.m < 1 || product.n < 1 || product.k < 1 || product.batch < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "m,n,k: got ", product.m, ",", product.n, ",", product.k, " in a batch of ", product.batch,
        ", want sizes of 1 on: --shape names those of an operand that "
        "comes from no file"));
  }
  return given;
}

}  // namespace gemmd
