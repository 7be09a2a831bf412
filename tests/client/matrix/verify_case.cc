// SPDX-License-Identifier: Apache-2.0
#include "tests/client/matrix/verify_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "client/matrix/random_matrix.h"
#include "gemmd/v1/gemm.pb.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {

v1::MultiplyRequest RequestFor(const VerifyCase& product) {
  const std::string a = RandomLines(product.type, product.k, product.m, 1);
  const std::string b = RandomLines(product.type, product.n, product.k, 2);
  MatrixView a_view = PackedView(product.type, std::as_bytes(std::span(a)), product.m, product.k);
  MatrixView b_view = PackedView(product.type, std::as_bytes(std::span(b)), product.k, product.n);
  ProductOptions options;
  if (product.change) product.change(a_view, b_view, options);
  const auto request = BuildRequest(a_view, b_view, options);
  EXPECT_THAT(request, IsOk());
  return *request;
}

void SetElement(v1::Matrix& d, int64_t row, int64_t column, double value) {
  const int64_t line_bytes = (d.columns() * ElementBits(d.type()) + 7) / 8;
  ASSERT_EQ(ElementBits(d.type()) % 8, 0);
  StoreElement(d.type(), ElementPattern(d.type(), value), column,
               d.mutable_data()->data() + row * line_bytes);
}

double GetElement(const v1::Matrix& d, int64_t row, int64_t column) {
  return MatrixReader(d).At(0, row, column);
}

v1::Matrix OneElement(v1::ElementType type, double value) {
  v1::Matrix d;
  d.set_type(type);
  d.set_rows(1);
  d.set_columns(1);
  d.set_batch(1);
  d.set_leading_dimension(1);
  d.set_batch_stride(ElementBits(type) / 8);
  d.set_data(std::string(static_cast<size_t>(ElementBits(type) / 8), '\0'));
  SetElement(d, 0, 0, value);
  return d;
}

}  // namespace gemmd
