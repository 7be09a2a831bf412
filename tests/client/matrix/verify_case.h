// SPDX-License-Identifier: Apache-2.0
//
// Random products, and a server in this process that computes them, for the tests of verification.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "client/matrix/verify.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

struct VerifyCase {
  v1::ElementType type = v1::ELEMENT_TYPE_F32;
  int64_t m = 5;
  int64_t n = 7;
  int64_t k = 33;
  std::function<void(MatrixView&, MatrixView&, ProductOptions&)> change = {};
};

// A random product; the matrices are row major and tight.
v1::MultiplyRequest RequestFor(const VerifyCase& product);

// A server in float (or double, or exact integers), summing from the last product to the first.
template <typename Accumulator>
v1::Matrix Compute(
    const v1::MultiplyRequest& request, v1::ElementType d_type,
    const std::function<Accumulator(Accumulator, int64_t, int64_t)>& finish = nullptr) {
  const MatrixReader a(request.a(), request.a().type(), request.m(), request.k());
  const MatrixReader b(request.b(), request.b().type(), request.k(), request.n());
  const int64_t batches = request.has_batch() ? request.batch() : 1;
  const int64_t line_bytes = (request.n() * ElementBits(d_type) + 7) / 8;
  std::string data(static_cast<size_t>(batches * request.m() * line_bytes), '\0');
  for (int64_t batch = 0; batch < batches; ++batch) {
    for (int64_t i = 0; i < request.m(); ++i) {
      for (int64_t j = 0; j < request.n(); ++j) {
        Accumulator sum = 0;
        for (int64_t l = request.k() - 1; l >= 0; --l) {
          sum += static_cast<Accumulator>(static_cast<Accumulator>(a.At(batch, i, l)) *
                                          static_cast<Accumulator>(b.At(batch, l, j)));
        }
        if (finish) sum = finish(sum, i, j);
        StoreElement(d_type, ElementPattern(d_type, static_cast<double>(sum)), j,
                     data.data() + (batch * request.m() + i) * line_bytes);
      }
    }
  }
  v1::Matrix d;
  d.set_type(d_type);
  d.set_rows(request.m());
  d.set_columns(request.n());
  d.set_batch(batches);
  d.set_leading_dimension(request.n());
  d.set_batch_stride(request.m() * line_bytes);
  d.set_data(data);
  return d;
}

// Elements of the first matrix of a D whose elements are whole bytes.
void SetElement(v1::Matrix& d, int64_t row, int64_t column, double value);
double GetElement(const v1::Matrix& d, int64_t row, int64_t column);

// A D of one element.
v1::Matrix OneElement(v1::ElementType type, double value);

}  // namespace gemmd
