// SPDX-License-Identifier: Apache-2.0
//
// Whether a server's D is right: each element against the f64 reference and its bound.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/matrix/reference.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// How much may be recomputed. Rows are left out, evenly, where the product has more.
struct VerifyBudget {
  int64_t multiplications = int64_t{1} << 28;  // About a second.
  int64_t elements = int64_t{1} << 22;         // 32 bytes of memory each.
};

// An element of D and what it should be.
struct VerifiedElement {
  int64_t batch = 0;
  int64_t row = 0;
  int64_t column = 0;
  double got = 0;
  double want = 0;   // The f64 reference, before conversion to D's type.
  double error = 0;  // |got - want|; NaN where got is.
  double bound = 0;  // The largest error that a correct result may have, conversion included.
};

struct Verification {
  int64_t total = 0;    // Elements of D.
  int64_t checked = 0;  // Elements that were compared.
  int64_t undecidable =
      0;              // Not compared: whether they overflow depends on the order of summation.
  int64_t wrong = 0;  // Compared elements that are wrong.
  VerifiedElement
      worst;  // The first wrong element; else the one with the largest share of its bound.

  // Whether nothing is wrong, and something was compared where there was anything.
  bool passed() const { return wrong == 0 && (checked > 0 || total == 0); }
};

// Whether `got`, an element of type `type`, may be the conversion of a number within `error` of
// `want`. NaN is right only where `want` is NaN and the type has one, infinity only where the
// conversion gives it.
bool IsWithinBound(v1::ElementType type, double got, double want, double error);

// Precondition: the request is BuildRequest's, with its bytes; D is a MultiplyResult's.
// Errors: InvalidArgument where D is not the answer's to this request: another shape or type.
absl::StatusOr<Verification> Verify(const v1::MultiplyRequest& request, const v1::Matrix& d,
                                    const VerifyBudget& budget = {},
                                    Summation summation = Summation::kOfType);

}  // namespace gemmd
