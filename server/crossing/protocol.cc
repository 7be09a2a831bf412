// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/protocol.h"

#include <string>

#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

template <typename Enum>
absl::Status CheckEnumerator(std::string_view field, Enum value, Enum last) {
  if (value <= last) return absl::OkStatus();
  return absl::InvalidArgumentError(
      GotWant(field, Concat("unknown value ", int(value)), Concat("at most ", int(last))));
}

absl::Status CheckEnumerators(std::string_view field, const MatrixLayout& layout) {
  RETURN_IF_ERROR(CheckEnumerator(Concat(field, ".type"), layout.type, kAllElementTypes.back()));
  RETURN_IF_ERROR(CheckEnumerator(Concat(field, ".order"), layout.order, Order::kColumnMajor));
  return CheckEnumerator(Concat(field, ".sparsity"), layout.sparsity, Sparsity::k2To4);
}

absl::Status CheckEnumerators(const Problem& problem) {
  for (const OperandRole role : kMatrixRoles) {
    RETURN_IF_ERROR(CheckEnumerators(NameOf(role), LayoutOf(problem, role)));
  }
  RETURN_IF_ERROR(CheckEnumerators("d", problem.d));
  const ElementType last_type = kAllElementTypes.back();
  RETURN_IF_ERROR(CheckEnumerator("accumulation_type", problem.accumulation, last_type));
  RETURN_IF_ERROR(CheckEnumerator("bias.type", problem.bias_type, last_type));
  RETURN_IF_ERROR(CheckEnumerator("bias.axis", problem.bias_axis, BiasAxis::kColumns));
  RETURN_IF_ERROR(CheckEnumerator("bit_operation", problem.bit_operation, BitOperation::kXor));
  RETURN_IF_ERROR(CheckEnumerator("a.scale", problem.a_scale, ScaleKind::kBlocks));
  RETURN_IF_ERROR(CheckEnumerator("b.scale", problem.b_scale, ScaleKind::kBlocks));
  constexpr FactorType kLastFactor = FactorType::kUe4m3;
  RETURN_IF_ERROR(CheckEnumerator("a.scale.blocks.type", problem.a_blocks.type, kLastFactor));
  RETURN_IF_ERROR(CheckEnumerator("b.scale.blocks.type", problem.b_blocks.type, kLastFactor));
  return CheckEnumerator("activation", problem.activation, Activation::kSilu);
}

absl::Status CheckSlot(uint32_t slot) {
  if (slot < kMaxInFlight) return absl::OkStatus();
  return absl::InvalidArgumentError(
      GotWant("slot", Concat(slot), Concat("less than ", kMaxInFlight)));
}

absl::Status CheckCountsOfParts(const JobPlaces& places) {
  for (const JobPlace& place : {places.a, places.b, places.c, places.d}) {
    const bool is_known = place.parts == 0 || place.block == 0;
    if (is_known && place.parts >= 0 && place.parts <= kMaxParts) continue;
    return absl::InvalidArgumentError(
        GotWant("parts", Concat(place.parts), Concat("0 to ", kMaxParts, ", in no other block")));
  }
  for (const JobPlace& place : {places.bias, places.a_scale, places.b_scale}) {
    if (place.parts == 0) continue;
    return absl::InvalidArgumentError(GotWant("parts of a vector", Concat(place.parts), "0"));
  }
  return absl::OkStatus();
}

absl::Status CheckProblem(const Problem& problem) {
  RETURN_IF_ERROR(CheckEnumerators(problem));
  return Validate(problem);
}

// OK if the GPU kernel exists and supports the problem.
absl::Status CheckKernel(uint32_t number, const Problem& problem) {
  const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
  if (number < kernels.size()) return kernels[number].supports(problem);
  return absl::InvalidArgumentError(
      GotWant("kernel", Concat("number ", number), Concat("less than ", kernels.size())));
}

}  // namespace

void RecordStatus::Set(const absl::Status& status) {
  code = status.raw_code();
  message.Set({status.message().data(), status.message().size()});
}

absl::Status RecordStatus::get() const {
  if (code == 0) return absl::OkStatus();
  const bool is_known =
      code > 0 && code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(is_known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      std::string(message.view()));
}

uint64_t CatalogFingerprint(DeviceKind kind) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a.
  const auto add = [&hash](uint8_t byte) { hash = (hash ^ byte) * 1099511628211u; };
  for (const Kernel& kernel : Catalog(kind)) {
    for (const char c : kernel.name) add(static_cast<uint8_t>(c));
    add(0);
  }
  return hash;
}

absl::Status CheckRange(std::string_view of, int64_t offset, int64_t bytes, int64_t all_bytes) {
  if (offset >= 0 && bytes >= 0 && offset <= all_bytes && bytes <= all_bytes - offset) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(GotWant(of, Concat(bytes, " bytes from ", offset, " on"),
                                            Concat("a range of its ", all_bytes)));
}

absl::Status CheckJob(const JobRequest& request, int64_t staging_bytes) {
  RETURN_IF_ERROR(CheckSlot(request.slot));
  RETURN_IF_ERROR(CheckProblem(request.problem));
  RETURN_IF_ERROR(CheckKernel(request.kernel, request.problem));
  RETURN_IF_ERROR(CheckCountsOfParts(request.places));
  ASSIGN_OR_RETURN(const JobLayout layout, LayOutJob(request.problem, request.places));
  RETURN_IF_ERROR(
      CheckRange("staging", request.staged_inputs, layout.staged_in_bytes(), staging_bytes));
  return CheckRange("staging", request.staged_d, layout.staged_out_bytes(), staging_bytes);
}

absl::Status CheckRecomputeRequest(const RecomputeRequest& request, int64_t staging_bytes) {
  RETURN_IF_ERROR(CheckSlot(request.slot));
  RETURN_IF_ERROR(CheckProblem(request.task.problem));
  RETURN_IF_ERROR(CheckCountsOfParts(request.task.places));
  if (CountParts(request.task.places) > 0) {
    return absl::InvalidArgumentError(GotWant("parts", "some", "none of elements that are read"));
  }
  ASSIGN_OR_RETURN(const RecomputeLayout layout, LayOutRecompute(request.task));
  RETURN_IF_ERROR(CheckKernel(request.kernel, layout.sub));
  RETURN_IF_ERROR(CheckRange("staging", request.staged_in, layout.in_bytes(), staging_bytes));
  return CheckRange("staging", request.staged_out, layout.out_bytes(), staging_bytes);
}

absl::Status CheckMemoryRequest(const MemoryRequest& request, int64_t staging_bytes) {
  RETURN_IF_ERROR(CheckSlot(request.slot));
  RETURN_IF_ERROR(CheckEnumerator("action", request.action, MemoryAction::kRead));
  if (request.block == 0) return absl::InvalidArgumentError(GotWant("block", "0", "a number"));
  switch (request.action) {
    case MemoryAction::kAllocate:
      if (request.bytes > 0) return absl::OkStatus();
      return absl::InvalidArgumentError(GotWant("bytes", Concat(request.bytes), "1 or more"));
    case MemoryAction::kFree: return absl::OkStatus();
    case MemoryAction::kWrite:
    case MemoryAction::kRead: break;
  }
  return CheckRange("staging", request.staged, request.bytes, staging_bytes);
}

absl::Status CheckCompressRequest(const CompressRequest& request, int64_t staging_bytes) {
  RETURN_IF_ERROR(CheckSlot(request.slot));
  RETURN_IF_ERROR(CheckEnumerators("tensor", request.task.dense));
  RETURN_IF_ERROR(CheckEnumerators("mask", request.task.mask));
  RETURN_IF_ERROR(BytesOf(request.task).status());
  return CheckRange("staging", request.staged, sizeof(BadGroup), staging_bytes);
}

absl::Status CheckLaunch(const LaunchRequest& request, size_t kernels, int64_t shared_bytes) {
  if (request.kernel >= kernels) {
    return absl::InvalidArgumentError(
        GotWant("kernel", Concat("number ", request.kernel), Concat("less than ", kernels)));
  }
  RETURN_IF_ERROR(CheckSlot(request.slot));
  const auto check = [shared_bytes](const ByteRange& range) {
    return CheckRange("shared memory", range.offset, range.bytes, shared_bytes);
  };
  for (const OperandRole role : kOperandRoles) RETURN_IF_ERROR(check(request.operands[role]));
  RETURN_IF_ERROR(check(request.a_form));
  RETURN_IF_ERROR(check(request.b_form));
  return check(request.d);
}

absl::StatusOr<RecordKind> KindOf(const Packet& packet) {
  RecordHeader header;
  if (packet.size < sizeof(header)) {
    return absl::InvalidArgumentError(
        GotWant("record", Concat(packet.size, " bytes"), Concat("at least ", sizeof(header))));
  }
  std::memcpy(&header, packet.bytes.data(), sizeof(header));
  if (header.protocol != kWorkerProtocol) {
    return absl::InvalidArgumentError(
        GotWant("record.protocol", Concat(header.protocol), Concat(kWorkerProtocol)));
  }
  return header.kind;
}

absl::Status RefuseRecord(const Packet& packet, RecordKind want, size_t want_bytes) {
  const absl::StatusOr<RecordKind> kind = KindOf(packet);
  return absl::InvalidArgumentError(GotWant(
      "record", Concat("kind ", kind.ok() ? uint32_t(*kind) : 0, ", ", packet.size, " bytes"),
      Concat("kind ", uint32_t(want), ", ", want_bytes, " bytes")));
}

absl::Status AppendRates(const RatesPart& part, size_t kernels, GpuRates& rates) {
  const size_t first = rates.kernel_rates.size();
  const size_t max_count = std::min(RatesPart::kMaxRates, kernels - first);
  if (part.kernels != kernels || part.first != first || part.count == 0 || part.count > max_count) {
    return absl::InvalidArgumentError(
        GotWant("rates", Concat(part.count, " from ", part.first, " of ", part.kernels, " kernels"),
                Concat("1 to ", max_count, " from ", first, " of ", kernels)));
  }
  rates.kernel_rates.insert(rates.kernel_rates.end(), part.kernel_rates.begin(),
                            part.kernel_rates.begin() + part.count);
  rates.memory_bytes_per_second = part.memory_bytes_per_second;
  rates.copied_bytes_per_second = part.copied_bytes_per_second;
  return absl::OkStatus();
}

}  // namespace gemmd
