// SPDX-License-Identifier: Apache-2.0
#include "server/device/large_job.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kernels/kernel.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/device/errand.h"
#include "server/device/operands.h"

namespace gemmd {
namespace {

using Extent = Panel::Extent;

// Bytes of the pieces of a source. Ranges are taken in ascending order.
class PieceReader {
 public:
  PieceReader(absl::Span<const Piece> pieces, std::vector<Piece>& to) : pieces_(pieces), to_(to) {}

  void Take(int64_t offset, int64_t bytes) {
    while (bytes > 0 && !pieces_.empty()) {
      const Piece& piece = pieces_.front();
      const int64_t end = begin_ + static_cast<int64_t>(piece.size());
      if (offset < end) {
        const int64_t taken = std::min(bytes, end - offset);
        to_.push_back(
            piece.subspan(static_cast<size_t>(offset - begin_), static_cast<size_t>(taken)));
        offset += taken;
        bytes -= taken;
      }
      if (bytes == 0) return;
      begin_ = end;
      pieces_.remove_prefix(1);
    }
  }

 private:
  absl::Span<const Piece> pieces_;
  std::vector<Piece>& to_;
  int64_t begin_ = 0;  // Bytes before the first remaining piece.
};

void TakeSparseRows(const MatrixLayout& whole, int64_t offset, const Extent& rows,
                    PieceReader& reader) {
  const auto layout = SparseLayoutOf("a", whole.type, whole.rows, whole.columns);
  if (!layout.ok()) return;  // A valid problem has one.
  reader.Take(offset + layout->values_offset(rows.first), rows.count * layout->value_line_bytes);
  reader.Take(offset + layout->indices_offset(rows.first), rows.count * layout->index_line_bytes);
}

// Takes the part of a matrix in host memory.
void TakeMatrix(const MatrixLayout& whole, const MatrixLayout& part, int64_t offset, int64_t bytes,
                const Extent& rows, PieceReader& reader) {
  if (part.is_sparse() && part.rows < whole.rows) {
    return TakeSparseRows(whole, offset, rows, reader);
  }
  if (part.leading_dimension == whole.leading_dimension) return reader.Take(offset, bytes);
  for (int64_t line = 0; line < part.lines(); ++line) {
    reader.Take(offset + line * whole.line_stride_bytes(), part.line_stride_bytes());
  }
}

// Multiples of the first are aligned in blocks for kernels, for any type; multiples of the second
// are whole tiles; multiples of the last are whole bytes.
constexpr std::array<int64_t, 3> kGranules = {2048, 256, 8};

int64_t PanelsAlong(int64_t extent, int64_t step) { return (extent - 1) / step + 1; }

int64_t Half(int64_t step, int64_t granule) {
  const int64_t half = (step - 1) / 2 + 1;
  return std::min(step, ((half - 1) / granule + 1) * granule);
}

// Whether the worker copies a matrix in a block for the kernel.
bool IsCopied(const PlacedRange& matrix, const PlacedRange& d) {
  if (matrix.place.offset % kJobAlignment != 0) return true;
  return matrix.place.block == d.place.block && &matrix != &d &&
         matrix.place.offset < d.place.offset + d.range.bytes &&
         d.place.offset < matrix.place.offset + matrix.range.bytes;
}

// The job may be aborted between slices: copying one takes about 5 ms.
constexpr int64_t kSliceBytes = int64_t{32} << 20;

}  // namespace

Job JobOfPanel(const Job& whole, const JobPlaces& places, const Panel& panel, PanelPieces& pieces) {
  const PanelProblem part = ProblemOfPanel(whole.problem, places, panel);
  Job job = whole;
  job.problem = part.problem;
  job.a_form = job.b_form = {};  // Forms are of the whole.
  job.workspace_bytes = whole.kernel->workspace_bytes(part.problem).value_or(0);
  job.d_bytes = BytesWritten(part.problem);
  // Scales predicted times by the elements of D.
  const auto elements = [](const Problem& problem) { return ElementsOf(problem.d, problem.batch); };
  const double share = elements(part.problem) / std::max(elements(whole.problem), 1.0);
  for (int64_t PredictedTime::*const ns : {&PredictedTime::kernel_ns, &PredictedTime::copy_ns}) {
    job.predicted.*ns = static_cast<int64_t>(share * static_cast<double>(whole.predicted.*ns));
  }
  const absl::StatusOr<JobLayout> layout = LayOutJob(part.problem, part.places);
  if (!layout.ok()) return job;  // Cannot fail: it is no larger than that of the whole.
  for (const OperandRole role : kOperandRoles) {
    Source& source = job[role];
    const int64_t bytes = (*layout)[role].bytes;
    const int64_t offset = part.places[role].offset;
    if (source.block != 0) {
      source.offset = offset;
      source.bytes = bytes;
      continue;
    }
    pieces[role].clear();
    PieceReader reader(source.pieces, pieces[role]);
    if (role > kMatrixRoles.back()) {
      reader.Take(offset, bytes);
    } else if (bytes > 0) {
      TakeMatrix(LayoutOf(whole.problem, role), LayoutOf(job.problem, role), offset, bytes,
                 panel.rows, reader);
    }
    source = {.pieces = pieces[role], .bytes = bytes};
  }
  job.d.offset = job.d.block != 0 ? part.places.d.offset : 0;
  if (job.d.memory != nullptr) {
    job.d.memory += part.places.d.offset;
    job.d.line_stride_bytes = whole.problem.d.line_stride_bytes();
  }
  return job;
}

absl::StatusOr<int64_t> MemoryOf(const Problem& problem, const JobPlaces& places,
                                 const Kernel* kernel) {
  ASSIGN_OR_RETURN(const JobLayout layout, LayOutJob(problem, places));
  AlignedRanges taken(layout.end);
  if (kernel != nullptr) {
    ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel->workspace_bytes(problem));
    taken.Take(workspace_bytes);
  }
  const auto ranges = RangesOf(layout, places);
  for (const PlacedRange& one : ranges) {
    const bool is_there = one.place.block != 0 && one.range.bytes > 0;
    if (is_there && IsCopied(one, ranges.back())) taken.Take(one.range.bytes);
  }
  if (taken.end()) return *taken.end();
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
  absl::StatusOr<int64_t> Divide(PanelPlan& plan, int64_t granule, int64_t max_bytes) const {
    ASSIGN_OR_RETURN(int64_t bytes, BytesOf(plan));
    while (bytes > max_bytes) {
      std::optional<PanelPlan> best;
      for (const Steps& steps : Smaller(plan.steps_, granule)) {
        PanelPlan other = plan;
        other.steps_ = steps;
        ASSIGN_OR_RETURN(const int64_t other_bytes, BytesOf(other));
        // Divides a batch into matrices before dividing matrices.
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
    // Values and indices of a sparse A in a block are stored separately.
    const bool may_divide_rows = !problem_.a.is_sparse() || places_.a.block == 0;
    const auto granule_of = [granule](const BlockScale* blocks, int64_t extent) {
      return blocks != nullptr ? blocks->GranuleOf(granule, extent) : granule;
    };
    const int64_t of_rows = granule_of(problem_.blocks_of_a(), problem_.m);
    const int64_t of_columns = granule_of(problem_.blocks_of_b(), problem_.n);
    const int64_t rows = may_divide_rows ? Half(steps.rows, of_rows) : steps.rows;
    const int64_t columns = Half(steps.columns, of_columns);
    if (rows < steps.rows) smaller.push_back({steps.matrices, rows, steps.columns});
    if (columns < steps.columns) smaller.push_back({steps.matrices, steps.rows, columns});
    return smaller;
  }

  // The first panel is the largest, but others may be less aligned and need copies: the second
  // ones, and the last ones, whose extents may be odd.
  absl::StatusOr<int64_t> BytesOf(const PanelPlan& plan) const {
    const int64_t across = PanelsAlong(plan.whole_.columns, plan.steps_.columns);
    const int64_t down = PanelsAlong(plan.whole_.rows, plan.steps_.rows);
    int64_t max = 0;
    for (const int64_t index : {int64_t{0}, int64_t{1}, across, across * down, across - 1,
                                across * (down - 1), across * down - 1, plan.count() - 1}) {
      if (index >= plan.count()) continue;
      const PanelProblem panel = ProblemOfPanel(problem_, places_, plan.at(index));
      ASSIGN_OR_RETURN(const int64_t bytes, MemoryOf(panel.problem, panel.places, kernel_));
      max = std::max(max, bytes);
    }
    return max;
  }

  const Problem& problem_;
  const JobPlaces& places_;
  const Kernel* const kernel_;
};

absl::StatusOr<PanelPlan> PanelPlan::Of(const Problem& problem, const JobPlaces& places,
                                        const Kernel* kernel, int64_t max_bytes) {
  const Search search(problem, places, kernel);
  int64_t bytes = 0;
  for (const int64_t granule : kGranules) {
    PanelPlan plan(problem);
    if (!problem.has_output()) return plan;
    ASSIGN_OR_RETURN(bytes, search.Divide(plan, granule, max_bytes));
    if (bytes <= max_bytes) return plan;
  }
  return absl::ResourceExhaustedError(
      GotWant("device memory", Concat("at most ", max_bytes, " bytes"),
              Concat("at least ", bytes, " for the smallest panel of D")));
}

PaneledJob::PaneledJob(const Job& job, const JobPlaces& places, const PanelPlan& plan,
                       Device::Done done, Calls calls)
    : places_(places), plan_(plan), done_(std::move(done)), calls_(std::move(calls)), job_(job) {
  // Every panel copies its part of them again.
  for (const OperandRole role : kOperandRoles) job_[role].keeper = nullptr;
}

void PaneledJob::Start() {
  calls_.work([self = shared_from_this()] {
    Job& job = self->job_;
    if (job.d.block == 0 && job.d.memory == nullptr && job.d_bytes > 0) {
      std::optional<HeldBytes> memory = HeldBytes::Zeros(job.d_bytes);
      if (!memory.has_value()) {
        return self->End(absl::ResourceExhaustedError(
            Concat("d: no memory for ", job.d_bytes, " bytes of a result")));
      }
      self->d_ = *std::move(memory);
      job.d.memory = self->d_.bytes().data();
    }
    self->RunNext();
  });
}

void PaneledJob::RunNext() {
  if (is_aborted_) return End(AbortedLaunch());
  const Job panel = JobOfPanel(job_, places_, plan_.at(next_), pieces_);
  const JobId id = job_.id;
  calls_.submit(panel, [self = shared_from_this()](JobOutcome outcome) {
    self->EndPanel(std::move(outcome));
  });
  // The job may have been aborted before the device knew the panel.
  if (is_aborted_) calls_.abort(id);
}

void PaneledJob::EndPanel(JobOutcome outcome) {
  if (next_ == 0) outcome_.wait_ns = outcome.wait_ns;
  outcome_.copy_in_ns += outcome.copy_in_ns;
  outcome_.compute_ns += outcome.compute_ns;
  outcome_.copy_out_ns += outcome.copy_out_ns;
  if (next_ > 0 && absl::IsUnavailable(outcome.status)) {
    return End(
        absl::AbortedError(Concat("device: lost after panel ", next_, " of ", plan_.count(),
                                  " of the product: ", std::string(outcome.status.message()))));
  }
  if (!outcome.status.ok() || ++next_ == plan_.count()) return End(outcome.status);
  calls_.work([self = shared_from_this()] { self->RunNext(); });
}

void PaneledJob::End(const absl::Status& status) {
  if (!status.ok()) outcome_ = {.status = status, .wait_ns = outcome_.wait_ns};
  if (status.ok()) outcome_.d = std::move(d_);
  std::move(done_)(std::move(outcome_));
  calls_.ended(*this);
}

StreamedJob::StreamedJob(const Job& job, Device::Done done, int64_t bytes, WorkerMemory& memory,
                         const Clock& clock, Submit submit, Ended ended)
    : job_(job),
      done_(std::move(done)),
      bytes_(bytes),
      memory_(memory),
      clock_(clock),
      submit_(std::move(submit)),
      ended_(std::move(ended)),
      inner_(job),
      submitted_ns_(clock.NowNs()) {
  for (const OperandRole role : kOperandRoles) {
    Source& source = inner_[role];
    if (source.block == 0 && source.bytes > 0) to_place_.push_back(&source);
  }
}

void StreamedJob::Start() {
  if (ContinueOrEnd(CheckOperands(job_, &is_aborted_))) PlaceNext();
}

bool StreamedJob::ContinueOrEnd(const absl::Status& status) {
  if (is_aborted_) {
    End(AbortedLaunch());
    return false;
  }
  if (status.ok()) return true;
  // The job's own blocks are lost only if the worker is.
  const bool is_lost = absl::IsFailedPrecondition(status);
  const std::string message(status.message());
  if (is_lost && ran_ns_ != 0) {
    End(absl::AbortedError(Concat("device: lost after the product ran: ", message)));
  } else if (is_lost) {
    End(absl::UnavailableError(Concat("device: lost before the product started: ", message)));
  } else {
    End(status);
  }
  return false;
}

void StreamedJob::PlaceNext() {
  if (placing_ == to_place_.size()) return PlaceD();
  Source& source = *to_place_[placing_];
  memory_.AllocateScratch(
      source.bytes, [self = shared_from_this(), &source](absl::StatusOr<DeviceBlock> block) {
        if (block.ok()) self->blocks_.push_back(*block);
        if (!self->ContinueOrEnd(block.status())) return;
        self->left_.assign(source.pieces.begin(), source.pieces.end());
        self->written_ = 0;
        source = {.pieces = {}, .block = *block, .offset = 0, .bytes = source.bytes};
        self->WriteNext();
      });
}

void StreamedJob::WriteNext() {
  if (left_.empty()) {
    ++placing_;
    return PlaceNext();
  }
  std::vector<Piece> slice = TakeFront(left_, kSliceBytes);
  const int64_t offset = written_;
  for (const Piece& piece : slice) written_ += static_cast<int64_t>(piece.size());
  memory_.Write(blocks_.back(), offset, std::move(slice),
                [self = shared_from_this()](const absl::Status& status) {
                  if (self->ContinueOrEnd(status)) self->WriteNext();
                });
}

void StreamedJob::PlaceD() {
  if (job_.d.block != 0 || job_.d_bytes == 0) return Run();
  memory_.AllocateScratch(job_.d_bytes,
                          [self = shared_from_this()](absl::StatusOr<DeviceBlock> block) {
                            if (block.ok()) self->blocks_.push_back(*block);
                            if (!self->ContinueOrEnd(block.status())) return;
                            self->inner_.d = {.block = *block};
                            self->Run();
                          });
}

void StreamedJob::Run() {
  const int64_t begun_ns = clock_.NowNs();
  submit_(inner_, [self = shared_from_this(), begun_ns](JobOutcome outcome) {
    self->outcome_ = std::move(outcome);
    self->outcome_.copy_in_ns += begun_ns - self->submitted_ns_;
    if (!self->ContinueOrEnd(self->outcome_.status)) return;
    self->ran_ns_ = self->clock_.NowNs();
    self->ReadD();
  });
}

void StreamedJob::ReadD() {
  if (job_.d.block != 0 || job_.d_bytes == 0) return End(absl::OkStatus());
  to_ = job_.d.memory;
  if (to_ == nullptr || HasGaps(job_)) {
    const int64_t bytes = to_ == nullptr ? job_.d_bytes : std::min(kSliceBytes, job_.d_bytes);
    std::optional<HeldBytes> memory = HeldBytes::Zeros(bytes);
    if (!memory.has_value()) {
      return End(
          absl::ResourceExhaustedError(Concat("d: no memory for ", bytes, " bytes of a result")));
    }
    d_ = *std::move(memory);
    to_ = d_.bytes().data();
  }
  ReadNext();
}

void StreamedJob::ReadNext() {
  if (read_ == job_.d_bytes) return Finish();
  const bool is_scattered = job_.d.memory != nullptr && d_.size() > 0;
  const int64_t offset = read_;
  const auto bytes = static_cast<size_t>(std::min(kSliceBytes, job_.d_bytes - offset));
  const absl::Span<std::byte> slice(to_ + (is_scattered ? 0 : offset), bytes);
  read_ += static_cast<int64_t>(bytes);
  memory_.Read(
      blocks_.back(), offset, slice,
      [self = shared_from_this(), is_scattered, offset, slice](const absl::Status& status) {
        if (!self->ContinueOrEnd(status)) return;
        if (is_scattered) self->Scatter(offset, slice);
        self->ReadNext();
      });
}

void StreamedJob::Scatter(int64_t offset, absl::Span<const std::byte> slice) const {
  Copies copies;
  AppendLines(job_, offset, slice, copies);
  CopyAll(copies);
}

void StreamedJob::Finish() {
  outcome_.copy_out_ns += clock_.NowNs() - ran_ns_;
  if (job_.d.memory == nullptr) outcome_.d = std::move(d_);
  End(absl::OkStatus());
}

void StreamedJob::End(const absl::Status& status) {
  for (const DeviceBlock block : blocks_) memory_.Free(block);
  blocks_.clear();
  outcome_.status = status;
  if (!status.ok()) {
    outcome_ = {.status = status, .wait_ns = clock_.NowNs() - submitted_ns_};
  }
  std::move(done_)(std::move(outcome_));
  ended_(*this);
}

}  // namespace gemmd
