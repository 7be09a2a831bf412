// SPDX-License-Identifier: Apache-2.0
#include "server/worker/gpu_memory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/crossing/protocol.h"

namespace gemmd {
namespace {

// Slab sizes are multiples of this. Few large slabs, because allocating one takes longer than most
// jobs.
constexpr int64_t kGranuleBytes = int64_t{2} << 20;

bool IsAligned(const std::byte* at) {
  return reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(kJobAlignment) == 0;
}

bool Overlap(const std::byte* a, int64_t a_bytes, const std::byte* b, int64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

DeviceArena::~DeviceArena() {
  for (const Slab& slab : slabs_) runtime_.Free(slab.memory);
}

bool DeviceArena::is_idle() const {
  return std::all_of(slabs_.begin(), slabs_.end(),
                     [](const Slab& slab) { return slab.ranges.taken_bytes() == 0; });
}

absl::StatusOr<DeviceArena::Range> DeviceArena::Reserve(int64_t bytes) {
  if (bytes == 0) return Range();
  if (bytes > limit_bytes_) {
    return absl::ResourceExhaustedError(
        GotWant("device memory", Concat(bytes, " bytes to compute in"),
                Concat("at most ", std::max(limit_bytes_, int64_t{0}))));
  }
  Slab* slab = FindRoom(bytes);
  if (slab == nullptr) {
    ASSIGN_OR_RETURN(slab, AddSlab(bytes));
  }
  const std::optional<int64_t> offset = slab->ranges.Take(bytes);
  if (!offset) return absl::InternalError("arena: a slab has less room than it reported");
  return Range{.memory = slab->memory + *offset, .bytes = bytes};
}

// The slab with the smallest sufficient space (best fit), so that small jobs leave space for large
// ones.
DeviceArena::Slab* DeviceArena::FindRoom(int64_t bytes) {
  Slab* best = nullptr;
  for (Slab& slab : slabs_) {
    if (slab.ranges.longest_bytes() < bytes) continue;
    if (best == nullptr || slab.ranges.longest_bytes() < best->ranges.longest_bytes()) best = &slab;
  }
  return best;
}

absl::StatusOr<DeviceArena::Slab*> DeviceArena::AddSlab(int64_t bytes) {
  const int64_t rounded = ((bytes - 1) / kGranuleBytes + 1) * kGranuleBytes;
  if (rounded > limit_bytes_ - bytes_) FreeIdle();
  constexpr int64_t kAlignment = FreeRanges::kAlignment;
  const int64_t min_size = ((bytes - 1) / kAlignment + 1) * kAlignment;
  const int64_t size = std::min(rounded, (limit_bytes_ - bytes_) / kAlignment * kAlignment);
  const absl::Status later = absl::UnavailableError("device memory: in use by other jobs");
  if (size < min_size && !is_idle()) return later;
  // The limit need not be a multiple of the alignment.
  const int64_t wanted = std::max(size, min_size);
  absl::StatusOr<std::byte*> memory = runtime_.Allocate(wanted);
  if (absl::IsResourceExhausted(memory.status()) && !slabs_.empty()) {
    FreeIdle();
    if (!slabs_.empty()) return later;
    memory = runtime_.Allocate(wanted);
  }
  RETURN_IF_ERROR(memory.status());
  slabs_.push_back({.memory = *memory, .ranges = FreeRanges(wanted)});
  bytes_ += wanted;
  return &slabs_.back();
}

void DeviceArena::GiveBack(const Range& range) {
  if (range.bytes == 0) return;
  for (Slab& slab : slabs_) {
    if (range.memory < slab.memory || range.memory >= slab.memory + slab.ranges.bytes()) continue;
    slab.ranges.GiveBack(range.memory - slab.memory, range.bytes);
  }
}

void DeviceArena::FreeIdle() {
  const auto is_taken = [](const Slab& slab) { return slab.ranges.taken_bytes() > 0; };
  const auto idle = std::stable_partition(slabs_.begin(), slabs_.end(), is_taken);
  for (auto slab = idle; slab != slabs_.end(); ++slab) {
    runtime_.Free(slab->memory);
    bytes_ -= slab->ranges.bytes();
  }
  slabs_.erase(idle, slabs_.end());
}

BlockTable::~BlockTable() {
  for (const auto& [number, block] : blocks_) runtime_.Free(block.memory);
}

absl::StatusOr<std::byte*> BlockTable::Add(uint64_t block, int64_t bytes) {
  if (blocks_.contains(block)) {
    return absl::InvalidArgumentError(GotWant("block", Concat(block, " again"), "a new number"));
  }
  Block added;
  added.bytes = bytes;
  ASSIGN_OR_RETURN(added.memory, runtime_.Allocate(bytes));
  bytes_ += bytes;
  std::byte* const memory = added.memory;
  blocks_[block] = std::move(added);
  return memory;
}

void BlockTable::Remove(uint64_t block) {
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return;
  runtime_.Free(found->second.memory);
  bytes_ -= found->second.bytes;
  blocks_.erase(found);
}

absl::StatusOr<std::byte*> BlockTable::Find(uint64_t block, int64_t offset, int64_t bytes) const {
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) {
    return absl::FailedPreconditionError(Concat("tensor lost: the GPU has no block ", block));
  }
  RETURN_IF_ERROR(CheckRange("block", offset, bytes, found->second.bytes));
  return found->second.memory + offset;
}

absl::Status BlockTable::Follow(Lanes& lanes, Lane lane, const BlockUses& uses) const {
  Points latest = {};
  for (const BlockUse& use : uses) {
    const auto found = blocks_.find(use.block);
    if (found == blocks_.end()) continue;
    const Block& block = found->second;
    for (size_t i = 0; i < latest.size(); ++i) {
      latest[i] = std::max(latest[i], block.last_writes[i]);
      if (use.is_write) latest[i] = std::max(latest[i], block.last_reads[i]);
    }
  }
  for (const Lane other : kAllLanes) {
    RETURN_IF_ERROR(lanes.Follow(lane, other, latest[static_cast<size_t>(other)]));
  }
  return absl::OkStatus();
}

void BlockTable::SetUsedUntil(const LanePoint& point, const BlockUses& uses) {
  for (const BlockUse& use : uses) {
    const auto found = blocks_.find(use.block);
    if (found == blocks_.end()) continue;
    Points& points = use.is_write ? found->second.last_writes : found->second.last_reads;
    points[static_cast<size_t>(point.lane)] = point.number;
  }
}

bool BlockTable::IsUnused(const Lanes& lanes, uint64_t block) const {
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return true;
  return std::all_of(kAllLanes.begin(), kAllLanes.end(), [&](Lane lane) {
    const auto index = static_cast<size_t>(lane);
    return lanes.IsReached(lane, found->second.last_reads[index]) &&
           lanes.IsReached(lane, found->second.last_writes[index]);
  });
}

absl::StatusOr<JobMemory> JobMemory::Of(const JobRequest& request,
                                        absl::Span<const PlacedPart> parts, int64_t workspace_bytes,
                                        const BlockTable& blocks, std::byte* staging) {
  JobMemory memory;
  memory.workspace_bytes_ = workspace_bytes;
  ASSIGN_OR_RETURN(memory.layout_, LayOutJob(request.problem, request.places));
  memory.mark_ = MarkOf(request.problem, memory.layout_, request.places, parts);
  RETURN_IF_ERROR(memory.Place(request, blocks, staging));
  RETURN_IF_ERROR(memory.PlaceParts(request, parts, blocks));
  return memory;
}

absl::Status JobMemory::Place(const JobRequest& request, const BlockTable& blocks,
                              std::byte* staging) {
  AlignedRanges taken(layout_.is_d_copied() ? layout_.end : copied_in_bytes());
  if (are_inputs_in_place()) staged_inputs_ = staging + request.staged_inputs;
  const JobPlace& d_place = request.places.d;
  std::byte* d = nullptr;
  if (d_place.block != 0) {
    ASSIGN_OR_RETURN(d, blocks.Find(d_place.block, d_place.offset, layout_.d.bytes));
  }
  matrices_.d = {.at = d, .bytes = layout_.d.bytes};
  if (layout_.is_d_in_place) {
    matrices_.d.at = staging + request.staged_d;
  } else if (d_place.is_staged()) {
    matrices_.d.in_range = layout_.d.offset;
  } else if (d == nullptr || !IsAligned(d)) {
    matrices_.d.in_range = taken.Take(layout_.d.bytes);
  }
  if (layout_.has_receipt() && mark_.bytes == 0) zeros_begin_ = taken.Take(kMarkBytes);
  workspace_begin_ = taken.Take(workspace_bytes_);
  copies_begin_ = taken.end().value_or(0);
  for (const OperandRole role : kOperandRoles) {
    const ByteRange& range = layout_[role];
    const JobPlace& place = request.places[role];
    Matrix& matrix = matrices_[role];
    matrix.bytes = range.bytes;
    if (range.bytes == 0) continue;
    if (place.is_staged() && staged_inputs_ != nullptr) {
      matrix.at = staged_inputs_ + range.offset;
      continue;
    }
    if (place.block == 0) {
      matrix.in_range = place.is_staged() ? range.offset : taken.Take(range.bytes);
      continue;
    }
    ASSIGN_OR_RETURN(matrix.at, blocks.Find(place.block, place.offset, range.bytes));
    // A kernel writes D while it still reads operands.
    const bool is_written = d != nullptr && Overlap(matrix.at, range.bytes, d, layout_.d.bytes);
    if (!IsAligned(matrix.at) || is_written) matrix.in_range = taken.Take(range.bytes);
  }
  if (!taken.end()) return absl::ResourceExhaustedError("the job takes more than 2^63 bytes");
  bytes_ = *taken.end();
  return absl::OkStatus();
}

absl::Status JobMemory::PlaceParts(const JobRequest& request, absl::Span<const PlacedPart> parts,
                                   const BlockTable& blocks) {
  const JobPlaces& places = request.places;
  d_parts_ = places.d.parts;
  const std::array<std::pair<const Matrix&, int64_t>, 4> counts = {{{matrices_.a, places.a.parts},
                                                                    {matrices_.b, places.b.parts},
                                                                    {matrices_.c, places.c.parts},
                                                                    {matrices_.d, d_parts_}}};
  for (const auto& [matrix, count] : counts) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; ++i) {
      const PlacedPart& part = parts.front();
      parts.remove_prefix(1);
      RETURN_IF_ERROR(CheckRange("parts", bytes, part.bytes, matrix.bytes));
      Part placed = {.in_range = matrix.in_range + bytes, .bytes = part.bytes};
      bytes += part.bytes;
      if (part.block != 0) {
        ASSIGN_OR_RETURN(placed.in_block, blocks.Find(part.block, part.offset, part.bytes));
      }
      const bool is_missing = part.block == 0 && &matrix != &matrices_.d;
      if (is_missing) return absl::InvalidArgumentError(GotWant("part.block", "0", "a block"));
      max_part_bytes_ = std::max(max_part_bytes_, part.bytes);
      parts_.push_back(placed);
    }
    if (count > 0 && bytes != matrix.bytes) {
      return absl::InvalidArgumentError(
          GotWant("parts", Concat(bytes, " bytes"), Concat(matrix.bytes)));
    }
  }
  return absl::OkStatus();
}

std::byte* JobMemory::KeptIn(std::byte* range) const {
  if (mark_.bytes == 0) return range + zeros_begin_;
  const Matrix& d = matrices_.d;
  for (const Part& part : absl::MakeConstSpan(parts_).last(static_cast<size_t>(d_parts_))) {
    if (part.in_range == d.in_range + mark_.offset && part.in_block != nullptr) {
      return part.in_block;
    }
  }
  return d.at + mark_.offset;
}

std::vector<CopiedPart> JobMemory::PartCopies(std::byte* range) const {
  std::vector<CopiedPart> copies;
  copies.reserve(parts_.size());
  for (const Part& part : parts_) {
    const bool is_d = static_cast<int64_t>(copies.size()) >= operand_parts();
    std::byte* const here = range + part.in_range;
    copies.push_back({.from = is_d ? here : part.in_block,
                      .to = is_d ? part.in_block : here,
                      .bytes = part.in_block == nullptr ? 0 : part.bytes});
  }
  return copies;
}

GemmArgs JobMemory::ArgsIn(std::byte* range, const Problem& problem, const Target& target) const {
  PerOperand<absl::Span<const std::byte>> operands;
  for (const OperandRole role : kOperandRoles) {
    const Matrix& matrix = matrices_[role];
    operands[role] = {At(matrix, range), static_cast<size_t>(matrix.bytes)};
  }
  return ArgsAt(problem, target, operands, At(matrices_.d, range),
                absl::MakeSpan(range + workspace_begin_, static_cast<size_t>(workspace_bytes_)));
}

std::vector<MemoryLines> JobMemory::CopiesIn(std::byte* range) const {
  std::vector<MemoryLines> copies;
  for (const OperandRole role : kOperandRoles) {
    const Matrix& matrix = matrices_[role];
    if (matrix.at == nullptr || matrix.in_range < 0) continue;
    copies.push_back({.to = range + matrix.in_range,
                      .to_stride_bytes = matrix.bytes,
                      .from = matrix.at,
                      .from_stride_bytes = matrix.bytes,
                      .line_bytes = matrix.bytes,
                      .lines = 1});
  }
  return copies;
}

// Bytes between the lines in the block do not belong to D.
std::vector<MemoryLines> JobMemory::CopiesOut(std::byte* range, const Problem& problem) const {
  std::vector<MemoryLines> copies;
  const Matrix& d = matrices_.d;
  if (d.at == nullptr || d.in_range < 0 || !problem.has_output()) return copies;
  const MatrixLayout& layout = problem.d;
  const int64_t line_bytes = (layout.line_length() * BitsOf(layout.type) + 7) / 8;
  for (int64_t i = 0; i < problem.batch; ++i) {
    const int64_t at = i * layout.batch_stride_bytes;
    copies.push_back({.to = d.at + at,
                      .to_stride_bytes = layout.line_stride_bytes(),
                      .from = range + d.in_range + at,
                      .from_stride_bytes = layout.line_stride_bytes(),
                      .line_bytes = line_bytes,
                      .lines = layout.lines()});
  }
  return copies;
}

}  // namespace gemmd
