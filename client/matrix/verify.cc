// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/matrix/matrix_reader.h"
#include "client/matrix/reference.h"
#include "gemmd/element_codec.h"

namespace gemmd {
namespace {

// The values that a correct result may take, in D's type.
struct Range {
  double least;
  double most;
};

Range RangeOf(v1::ElementType type, double want, double error) {
  // The sums round in f64; one neighbour outwards keeps the range safe. With error 0 they are
  // exact.
  double least = want - error;
  double most = want + error;
  if (!(error == 0)) {
    least = std::nextafter(least, -std::numeric_limits<double>::infinity());
    most = std::nextafter(most, std::numeric_limits<double>::infinity());
  }
  return {RoundToElement(type, least), RoundToElement(type, most)};
}

// How much of its bound a right element's error takes.
double Share(const VerifiedElement& element) {
  if (element.error == 0 || !std::isfinite(element.bound)) return 0;
  return element.error / element.bound;
}

class Checker {
 public:
  Checker(const v1::MultiplyRequest& request, const v1::Matrix& d, Summation summation)
      : reference_(request, summation), d_(d), reader_(d) {
    const bool is_empty = d.batch() == 0 || d.rows() == 0 || d.columns() == 0;
    if (!is_empty) result_.total = d.batch() * d.rows() * d.columns();
  }

  void CheckRows(int64_t batch, const std::vector<int64_t>& rows) {
    const std::vector<ReferenceElement> elements = reference_.Rows(batch, rows);
    for (size_t i = 0; i < elements.size(); ++i) {
      const int64_t column = static_cast<int64_t>(i) % d_.columns();
      const int64_t row = rows[i / static_cast<size_t>(d_.columns())];
      Check(elements[i], {.batch = batch, .row = row, .column = column});
    }
  }

  const Verification& result() const { return result_; }

 private:
  void Check(const ReferenceElement& reference, VerifiedElement element) {
    // A type without NaN and infinity shows nothing of a NaN; the contract leaves its pattern open.
    const bool hides_nan = std::isnan(reference.value) && !HasNan(d_.type()) && IsFloat(d_.type());
    if (!reference.is_decidable || hides_nan) {
      ++result_.undecidable;
      return;
    }
    element.got = reader_.At(element.batch, element.row, element.column);
    element.want = reference.value;
    const Range range = RangeOf(d_.type(), reference.value, reference.error);
    element.error = element.got == element.want ? 0 : std::fabs(element.got - element.want);
    if (std::isfinite(element.want)) {
      element.bound = std::max(range.most - element.want, element.want - range.least);
    }
    ++result_.checked;
    const bool is_right = IsWithinBound(d_.type(), element.got, reference.value, reference.error);
    const bool is_first = result_.checked == 1;
    if (!is_right) {
      if (result_.wrong++ == 0) result_.worst = element;
    } else if (result_.wrong == 0 && (is_first || Share(element) > Share(result_.worst))) {
      result_.worst = element;
    }
  }

  Reference reference_;
  const v1::Matrix& d_;
  MatrixReader reader_;
  Verification result_;
};

absl::Status CheckAnswer(const v1::MultiplyRequest& request, const v1::Matrix& d) {
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  if (d.rows() != request.m() || d.columns() != request.n() || d.batch() != batch) {
    return absl::InvalidArgumentError(absl::StrCat("d: got ", d.batch(), " matrices of ", d.rows(),
                                                   "x", d.columns(), ", want ", batch, " of ",
                                                   request.m(), "x", request.n()));
  }
  return absl::OkStatus();
}

// `count` of `total` rows at even distances, the first and the last among them.
std::vector<int64_t> EvenRows(int64_t total, int64_t count) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(count == 1 ? total / 2
                              : static_cast<int64_t>(static_cast<double>(total - 1) /
                                                     static_cast<double>(count - 1) *
                                                     static_cast<double>(i)));
  }
  return rows;
}

}  // namespace

bool IsWithinBound(v1::ElementType type, double got, double want, double error) {
  if (std::isnan(want)) return HasNan(type) ? std::isnan(got) : got == RoundToElement(type, want);
  if (std::isinf(want)) {
    // Whatever is finite has no part in it, and an infinite error none of its own.
    const double exact = RoundToElement(type, want);
    return got == exact || (std::isnan(got) && std::isnan(exact));
  }
  const Range range = RangeOf(type, want, error);
  return range.least <= got && got <= range.most;
}

absl::StatusOr<Verification> Verify(const v1::MultiplyRequest& request, const v1::Matrix& d,
                                    const VerifyBudget& budget, Summation summation) {
  if (absl::Status status = CheckAnswer(request, d); !status.ok()) return status;
  Checker checker(request, d, summation);
  if (checker.result().total == 0) return checker.result();
  const double row_work =
      static_cast<double>(d.columns()) * static_cast<double>(std::max<int64_t>(1, request.k()));
  const double affordable =
      std::min(static_cast<double>(budget.multiplications) / row_work,
               static_cast<double>(budget.elements) / static_cast<double>(d.columns()));
  const double all_rows = static_cast<double>(d.batch()) * static_cast<double>(d.rows());
  // At least one row of some matrix; matrices are sampled where one row of each is too much.
  const double matrices = std::clamp(affordable, 1.0, static_cast<double>(d.batch()));
  const double rows =
      std::clamp(std::min(affordable, all_rows) / matrices, 1.0, static_cast<double>(d.rows()));
  const std::vector<int64_t> chosen_rows = EvenRows(d.rows(), static_cast<int64_t>(rows));
  for (int64_t batch : EvenRows(d.batch(), static_cast<int64_t>(matrices))) {
    checker.CheckRows(batch, chosen_rows);
  }
  return checker.result();
}

}  // namespace gemmd
