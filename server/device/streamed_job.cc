// SPDX-License-Identifier: Apache-2.0
#include "server/device/streamed_job.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/kernel.h"
#include "kernels/text.h"
#include "server/device/operand_check.h"
#include "server/device/result_lines.h"

namespace gemmd {
namespace {

// Between two slices it may be aborted: copying one takes some 5 ms.
constexpr int64_t kSliceBytes = int64_t{32} << 20;

// Takes a slice from the front of the pieces.
std::vector<Piece> TakeSlice(std::vector<Piece>& left) {
  std::vector<Piece> slice;
  auto missing = static_cast<size_t>(kSliceBytes);
  size_t used = 0;
  while (missing > 0 && used < left.size()) {
    Piece& piece = left[used];
    const Piece part = piece.first(std::min(piece.size(), missing));
    slice.push_back(part);
    missing -= part.size();
    piece.remove_prefix(part.size());
    if (piece.empty()) ++used;
  }
  left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(used));
  return slice;
}

}  // namespace

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
  for (Source* const source :
       {&inner_.a, &inner_.b, &inner_.c, &inner_.bias, &inner_.a_scale, &inner_.b_scale}) {
    if (source->block == 0 && source->bytes > 0) to_place_.push_back(source);
  }
}

void StreamedJob::Start() {
  if (GoesOn(CheckOperands(job_, &is_aborted_))) PlaceNext();
}

bool StreamedJob::GoesOn(const absl::Status& status) {
  if (is_aborted_) {
    End(AbortedLaunch());
    return false;
  }
  if (status.ok()) return true;
  // Its own blocks are lost with the worker alone.
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
        if (!self->GoesOn(block.status())) return;
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
  std::vector<Piece> slice = TakeSlice(left_);
  const int64_t offset = written_;
  for (const Piece& piece : slice) written_ += static_cast<int64_t>(piece.size());
  memory_.Write(blocks_.back(), offset, std::move(slice),
                [self = shared_from_this()](const absl::Status& status) {
                  if (self->GoesOn(status)) self->WriteNext();
                });
}

void StreamedJob::PlaceD() {
  if (job_.d.block != 0 || job_.d_bytes == 0) return Run();
  memory_.AllocateScratch(job_.d_bytes,
                          [self = shared_from_this()](absl::StatusOr<DeviceBlock> block) {
                            if (block.ok()) self->blocks_.push_back(*block);
                            if (!self->GoesOn(block.status())) return;
                            self->inner_.d = {.block = *block};
                            self->Run();
                          });
}

void StreamedJob::Run() {
  const int64_t begun_ns = clock_.NowNs();
  submit_(inner_, [self = shared_from_this(), begun_ns](JobOutcome outcome) {
    self->outcome_ = std::move(outcome);
    self->outcome_.copy_in_ns += begun_ns - self->submitted_ns_;
    if (!self->GoesOn(self->outcome_.status)) return;
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
        if (!self->GoesOn(status)) return;
        if (is_scattered) self->Scatter(offset, slice);
        self->ReadNext();
      });
}

void StreamedJob::Scatter(int64_t offset, absl::Span<const std::byte> slice) const {
  std::vector<CopiedBytes> copies;
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
