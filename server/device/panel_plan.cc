// SPDX-License-Identifier: Apache-2.0
#include "server/device/panel_plan.h"

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/checked.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// Multiples of the first are aligned in blocks as kernels want it, whatever the type; tiles of
// kernels divide the second; the last fills bytes.
constexpr std::array<int64_t, 3> kGranules = {2048, 256, 8};

int64_t PanelsAlong(int64_t extent, int64_t step) { return (extent - 1) / step + 1; }

int64_t Half(int64_t step, int64_t granule) {
  const int64_t half = (step - 1) / 2 + 1;
  return std::min(step, ((half - 1) / granule + 1) * granule);
}

Checked Padded(int64_t bytes) {
  const Checked padded = Checked(bytes) + Checked(kJobAlignment - 1);
  return padded.value() ? Checked(*padded.value() / kJobAlignment * kJobAlignment) : padded;
}

// Whether the worker makes a copy of a matrix in a block for the kernel.
bool IsCopied(const PlacedRange& matrix, const PlacedRange& d) {
  if (matrix.place.offset % kJobAlignment != 0) return true;
  return matrix.place.block == d.place.block && &matrix != &d &&
         matrix.place.offset < d.place.offset + d.range.bytes &&
         d.place.offset < matrix.place.offset + matrix.range.bytes;
}

}  // namespace

absl::StatusOr<int64_t> MemoryOf(const Problem& problem, const JobPlaces& places,
                                 const Kernel* kernel) {
  ASSIGN_OR_RETURN(const JobLayout layout, LayOutJob(problem, places));
  Checked bytes = layout.end;
  if (kernel != nullptr) {
    ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel->workspace_bytes(problem));
    bytes = bytes + Padded(workspace_bytes);
  }
  const std::array<PlacedRange, 7> ranges = RangesOf(layout, places);
  for (const PlacedRange& one : ranges) {
    const bool is_there = one.place.block != 0 && one.range.bytes > 0;
    if (is_there && IsCopied(one, ranges.back())) bytes = bytes + Padded(one.range.bytes);
  }
  if (bytes.value()) return *bytes.value();
  return absl::ResourceExhaustedError("the job takes more than 2^63 bytes");
}

int64_t PanelPlan::count() const {
  return PanelsAlong(whole_.matrices, steps_.matrices) * PanelsAlong(whole_.rows, steps_.rows) *
         PanelsAlong(whole_.columns, steps_.columns);
}

Panel PanelPlan::at(int64_t index) const {
  const int64_t across = PanelsAlong(whole_.columns, steps_.columns);
  const int64_t down = PanelsAlong(whole_.rows, steps_.rows);
  const auto extent = [](int64_t number, int64_t step, int64_t whole) {
    return Panel::Extent{number * step, std::min(step, whole - number * step)};
  };
  return {.matrices = extent(index / across / down, steps_.matrices, whole_.matrices),
          .rows = extent(index / across % down, steps_.rows, whole_.rows),
          .columns = extent(index % across, steps_.columns, whole_.columns)};
}

// Halves panels until they fit.
class PanelPlan::Search {
 public:
  Search(const Problem& problem, const JobPlaces& places, const Kernel* kernel)
      : problem_(problem), places_(places), kernel_(kernel) {}

  // Errors: those of MemoryOf.
  absl::StatusOr<int64_t> Divide(PanelPlan& plan, int64_t granule, int64_t most_bytes) const {
    ASSIGN_OR_RETURN(int64_t bytes, BytesOf(plan));
    while (bytes > most_bytes) {
      std::optional<PanelPlan> best;
      for (const Steps& steps : Smaller(plan.steps_, granule)) {
        PanelPlan other = plan;
        other.steps_ = steps;
        ASSIGN_OR_RETURN(const int64_t other_bytes, BytesOf(other));
        // A batch is divided into matrices before these are, whether that alone helps or not.
        if (other_bytes >= bytes && steps.matrices == plan.steps_.matrices) continue;
        best = other;
        bytes = other_bytes;
      }
      if (!best) break;
      plan = *best;
    }
    return bytes;
  }

 private:
  std::vector<Steps> Smaller(const Steps& steps, int64_t granule) const {
    if (steps.matrices > 1) return {{Half(steps.matrices, 1), steps.rows, steps.columns}};
    std::vector<Steps> smaller;
    // The values and the indices of a sparse A in a block lie apart.
    const bool may_divide_rows = !problem_.a.is_sparse() || places_.a.block == 0;
    const int64_t rows = may_divide_rows ? Half(steps.rows, granule) : steps.rows;
    const int64_t columns = Half(steps.columns, granule);
    if (rows < steps.rows) smaller.push_back({steps.matrices, rows, steps.columns});
    if (columns < steps.columns) smaller.push_back({steps.matrices, steps.rows, columns});
    return smaller;
  }

  // The first panel is the largest; others may lie where less is aligned.
  absl::StatusOr<int64_t> BytesOf(const PanelPlan& plan) const {
    const int64_t across = PanelsAlong(plan.whole_.columns, plan.steps_.columns);
    const int64_t down = PanelsAlong(plan.whole_.rows, plan.steps_.rows);
    int64_t most = 0;
    for (const int64_t index : {int64_t{0}, int64_t{1}, across, across * down}) {
      if (index >= plan.count()) break;
      const PanelProblem panel = ProblemOfPanel(problem_, places_, plan.at(index));
      ASSIGN_OR_RETURN(const int64_t bytes, MemoryOf(panel.problem, panel.places, kernel_));
      most = std::max(most, bytes);
    }
    return most;
  }

  const Problem& problem_;
  const JobPlaces& places_;
  const Kernel* const kernel_;
};

absl::StatusOr<PanelPlan> PanelPlan::Of(const Problem& problem, const JobPlaces& places,
                                        const Kernel* kernel, int64_t most_bytes) {
  const Search search(problem, places, kernel);
  int64_t bytes = 0;
  for (const int64_t granule : kGranules) {
    PanelPlan plan(problem);
    if (!problem.has_output()) return plan;
    ASSIGN_OR_RETURN(bytes, search.Divide(plan, granule, most_bytes));
    if (bytes <= most_bytes) return plan;
  }
  return absl::ResourceExhaustedError(
      GotWant("device memory", Concat("at most ", most_bytes, " bytes"),
              Concat("at least ", bytes, " for the smallest panel of D")));
}

}  // namespace gemmd
