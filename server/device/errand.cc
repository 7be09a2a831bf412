// SPDX-License-Identifier: Apache-2.0
#include "server/device/errand.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/select.h"

namespace gemmd {
namespace {

JobPlace PlaceOf(const Source& source) {
  return {.block = source.block,
          .offset = source.offset,
          .parts = static_cast<int64_t>(source.parts.size())};
}

// A D with parts in host memory is staged as a whole.
bool IsInBlocks(absl::Span<const DestinationPart> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [](const DestinationPart& part) { return part.block != 0; });
}

JobPlace PlaceOf(const Destination& d) {
  const int64_t parts = IsInBlocks(d.parts) ? static_cast<int64_t>(d.parts.size()) : 0;
  return {.block = d.block, .offset = d.offset, .parts = parts};
}

std::vector<PlacedPart> PartsOf(const Job& job) {
  std::vector<PlacedPart> placed;
  for (const OperandRole role : kMatrixRoles) {
    placed.insert(placed.end(), job[role].parts.begin(), job[role].parts.end());
  }
  if (!IsInBlocks(job.d.parts)) return placed;
  for (const DestinationPart& part : job.d.parts) {
    placed.push_back({.block = part.block, .offset = part.offset, .bytes = part.bytes});
  }
  return placed;
}

// Max errands examined for one that may begin: waits for blocks are usually short.
constexpr size_t kMaxLookedAt = 64;

}  // namespace

bool HasGaps(const Job& job) {
  const MatrixLayout& d = job.problem.d;
  return HasGaps(job.problem) || job.d.line_stride(d) != d.line_stride_bytes();
}

void AppendLines(const Job& job, int64_t first, absl::Span<const std::byte> from, Copies& copies) {
  const MatrixLayout& d = job.problem.d;
  const int64_t end = first + static_cast<int64_t>(from.size());
  const int64_t line_bytes = (d.line_length() * BitsOf(d.type) + 7) / 8;
  const int64_t stride = d.line_stride_bytes();
  if (line_bytes == 0) return;
  const int64_t matrix_bytes = d.batch_stride_bytes;
  for (int64_t i = matrix_bytes > 0 ? first / matrix_bytes : 0; i < job.problem.batch; ++i) {
    const int64_t matrix = i * matrix_bytes;
    if (matrix >= end) return;
    for (int64_t line = std::max<int64_t>(0, (first - matrix) / stride); line < d.lines(); ++line) {
      const int64_t at = matrix + line * stride;
      if (at >= end) break;
      const int64_t begin = std::max(at, first);
      const int64_t bytes = std::min(at + line_bytes, end) - begin;
      if (bytes <= 0) continue;
      copies.push_back({.to = job.d.memory + matrix + line * job.d.line_stride(d) + (begin - at),
                        .from = from.data() + (begin - first),
                        .bytes = static_cast<size_t>(bytes)});
    }
  }
}

JobPlaces JobErrand::PlacesOf(const Job& job) {
  JobPlaces places;
  for (const OperandRole role : kOperandRoles) places[role] = PlaceOf(job[role]);
  places.a_form = job.a_form;
  places.b_form = job.b_form;
  places.d = PlaceOf(job.d);
  return places;
}

// A source that is too short would leave bytes of an earlier job in its place.
absl::Status JobErrand::CheckSources(const Job& job, const JobLayout& layout) {
  for (const OperandRole role : kOperandRoles) {
    const Source& source = job[role];
    const int64_t want = layout[role].bytes;
    const bool is_enough = source.block != 0 ? source.bytes >= want : source.bytes == want;
    if (is_enough) continue;
    return absl::InternalError(
        Concat("job: got a matrix of ", source.bytes, " bytes, want ", want));
  }
  return absl::OkStatus();
}

JobErrand::JobErrand(const Job& job, Device::Done done, WarmMemory& results)
    : Errand(Kind::kJob),
      job_(job),
      done_(std::move(done)),
      places_(PlacesOf(job)),
      parts_(PartsOf(job)),
      results_(results) {
  job_id = job.id;
  uses = UsesOf(places_, parts_);
  const absl::StatusOr<JobLayout> layout = LayOutJob(job.problem, places_);
  if (!layout.ok()) verdict = layout.status();
  if (!layout.ok()) return;
  layout_ = *layout;
  if (absl::Status wrong = CheckSources(job, layout_); !wrong.ok()) {
    verdict = std::move(wrong);
  }
  in_bytes = layout_.staged_in_bytes();
  out_bytes = layout_.staged_out_bytes();
  out_may_stay = layout_.is_d_staged() && !job.d.is_given();
  const JobMark mark = MarkOf(job.problem, layout_, places_, parts_);
  if (mark.bytes > 0) marked_bytes = static_cast<size_t>(mark.bytes);
  predicted_ns = job.kernel->recipe.times_for_data() * job.predicted.kernel_ns;
  predicted_ns += job.predicted.copy_ns;
}

std::vector<PlacedRange> JobErrand::InBlocks() const {
  std::vector<PlacedRange> placed;
  for (const PlacedRange& one : RangesOf(layout_, places_)) {
    if (one.place.block != 0) placed.push_back(one);
  }
  for (const FormPlace& form : {places_.a_form, places_.b_form}) {
    if (form.block != 0) placed.push_back({{0, form.bytes}, {.block = form.block}});
  }
  for (const PlacedPart& part : parts_) {
    const JobPlace place = {.block = part.block, .offset = part.offset};
    if (part.block != 0) placed.push_back({{part.offset, part.bytes}, place});
  }
  return placed;
}

absl::Status JobErrand::Prepare() { return CheckOperands(job_, &is_aborted); }

Copies JobErrand::CopiesIn() const {
  Copies copies;
  for (const OperandRole role : kOperandRoles) {
    const ByteRange& range = layout_[role];
    if (!places_[role].is_staged() || range.bytes == 0) continue;
    std::byte* to = in.bytes().data() + range.offset;
    const Source& source = job_[role];
    for (size_t piece = 0; piece < source.pieces.size(); ++piece) {
      const Piece& bytes = source.pieces[piece];
      copies.push_back({to, bytes.data(), bytes.size(), source.keeper, piece});
      to += bytes.size();
    }
    // Clears data of an earlier job between this matrix and the next.
    const auto bytes = static_cast<size_t>(range.bytes);
    std::memset(to, 0, -bytes % static_cast<size_t>(kJobAlignment));
  }
  // Also in D, in case a kernel does not write a part.
  if (layout_.is_d_in_place) std::memset(out.bytes().data(), 0, out.bytes().size());
  if (!parts_.empty()) {
    const auto bytes = static_cast<size_t>(layout_.parts.bytes);
    std::byte* const to = in.bytes().data() + layout_.parts.offset;
    std::memcpy(to, parts_.data(), bytes);
    std::memset(to + bytes, 0, -bytes % static_cast<size_t>(kJobAlignment));
  }
  return copies;
}

absl::Status JobErrand::Send(Channel& channel) const {
  JobRequest request;
  request.id = id;
  request.slot = slot;
  request.kernel = static_cast<uint32_t>(job_.kernel->position);
  request.predicted_ns = job_.predicted.kernel_ns;
  request.staged_inputs = in.offset();
  request.staged_d = out.offset();
  request.places = places_;
  request.problem = job_.problem;
  return SendRecord(channel, request);
}

absl::Span<std::byte> JobErrand::written() const {
  return out.bytes().first(static_cast<size_t>(layout_.written_bytes()));
}

absl::Span<std::byte> JobErrand::staged_mark() const {
  const absl::Span<std::byte> behind = in.bytes().subspan(static_cast<size_t>(layout_.input_bytes));
  return behind.first(std::min(behind.size(), ResultStamps::kBytes));
}

absl::Status JobErrand::PlaceResult(Copies& copies) {
  if (!layout_.is_d_staged()) return absl::OkStatus();
  const absl::Span<std::byte> d = out.bytes().first(static_cast<size_t>(layout_.d.bytes));
  if (!job_.d.parts.empty()) {
    const std::byte* from = d.data();
    for (const DestinationPart& part : job_.d.parts) {
      const auto bytes = static_cast<size_t>(part.bytes);
      if (part.memory != nullptr)
        copies.push_back({.to = part.memory, .from = from, .bytes = bytes});
      from += bytes;
    }
    return absl::OkStatus();
  }
  if (std::byte* const to = job_.d.memory; to != nullptr) {
    if (HasGaps(job_)) {
      AppendLines(job_, 0, d, copies);
    } else {
      copies.push_back({.to = to, .from = d.data(), .bytes = d.size()});
    }
    return absl::OkStatus();
  }
  if (out.is_for_results()) {
    d_ = HeldBytes(d, [range = std::move(out)] {});
    return absl::OkStatus();
  }
  std::optional<HeldBytes> memory = results_.Take(static_cast<int64_t>(d.size()));
  if (!memory.has_value()) {
    return absl::ResourceExhaustedError(
        Concat("d: no memory for ", d.size(), " bytes of a result"));
  }
  d_ = *std::move(memory);
  copies.push_back({.to = d_.bytes().data(), .from = d.data(), .bytes = d.size()});
  return absl::OkStatus();
}

void JobErrand::End(const absl::Status& status, const Times& took) {
  JobOutcome outcome;
  outcome.status = status;
  outcome.wait_ns = took.wait_ns;
  outcome.copy_in_ns = took.copy_in_ns;
  outcome.compute_ns = took.compute_ns;
  outcome.copy_out_ns = took.copy_out_ns;
  outcome.made_forms = status.ok() && made_forms;
  if (status.ok()) outcome.d = std::move(d_);
  std::move(done_)(std::move(outcome));
}

void ErrandQueue::Add(std::unique_ptr<Errand> errand) {
  Enter(*errand);
  (errand->kind == Errand::Kind::kJob ? jobs_ : memory_).push_back(std::move(errand));
}

std::unique_ptr<Errand> ErrandQueue::TakeNextOf(Waiting& waiting, const TakeRoom& take_room,
                                                Room& room) {
  const size_t count = std::min(waiting.size(), kMaxLookedAt);
  for (size_t i = 0; i < count; ++i) {
    Errand& errand = *waiting[i];
    if (!errand.verdict) {
      if (!HasTurn(errand)) continue;
      room = take_room(errand);
      if (room != Room::kTaken) return nullptr;
    }
    std::unique_ptr<Errand> taken = std::move(waiting[i]);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    return taken;
  }
  return nullptr;
}

std::unique_ptr<Errand> ErrandQueue::TakeNext(const TakeRoom& take_room) {
  const bool is_turn_of_memory = is_turn_of_memory_;
  for (const bool is_memory : {is_turn_of_memory, !is_turn_of_memory}) {
    Room room = Room::kTaken;
    std::unique_ptr<Errand> taken = TakeNextOf(is_memory ? memory_ : jobs_, take_room, room);
    if (taken != nullptr) is_turn_of_memory_ = !is_memory;
    if (taken != nullptr || room == Room::kNoStaging) return taken;
  }
  return nullptr;
}

std::unique_ptr<Errand> ErrandQueue::TakeJob(JobId id) {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(),
                   [id](const std::unique_ptr<Errand>& one) { return one->job_id == id; });
  if (found == jobs_.end()) return nullptr;
  std::unique_ptr<Errand> taken = std::move(*found);
  jobs_.erase(found);
  Leave(*taken);
  return taken;
}

std::unique_ptr<Errand> ErrandQueue::TakeAny() {
  Waiting& waiting = jobs_.empty() ? memory_ : jobs_;
  if (waiting.empty()) return nullptr;
  std::unique_ptr<Errand> taken = std::move(waiting.front());
  waiting.pop_front();
  Leave(*taken);
  return taken;
}

}  // namespace gemmd
