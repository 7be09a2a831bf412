// SPDX-License-Identifier: Apache-2.0
//
// Parses a request into a new product.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/matrix/status.h"
#include "server/wire/convert.h"

namespace gemmd {

inline absl::StatusOr<std::unique_ptr<Product>> ParsedProduct(const v1::MultiplyRequest& request,
                                                              const HeldFields* held) {
  auto product = std::make_unique<Product>();
  RETURN_IF_ERROR(ParseMultiply(request, held, *product));
  return product;
}

}  // namespace gemmd
