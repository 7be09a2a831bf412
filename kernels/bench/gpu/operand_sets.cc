// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/operand_sets.h"

#include <algorithm>
#include <utility>

#include "kernels/bench/problem.h"
#include "kernels/matrix/status.h"

namespace gemmd::bench {
namespace {

constexpr int64_t kMaxSets = 1024;  // For tiny operands. One graph holds a call for each.

// Libraries read factors of blocks in lines that are padded to a multiple of four.
constexpr int64_t kRoomOfFactors = 4;

absl::StatusOr<DeviceBytes> Upload(Device& device, const std::vector<std::byte>& bytes,
                                   int64_t room = 1) {
  const auto size = static_cast<int64_t>(bytes.size());
  ASSIGN_OR_RETURN(DeviceBytes copy, device.Allocate(size * room));
  RETURN_IF_ERROR(device.Write(copy.get(), bytes.data(), size));
  return copy;
}

}  // namespace

absl::StatusOr<OperandSets> OperandSets::Make(Device& device, const Problem& problem,
                                              int64_t min_bytes) {
  RETURN_IF_ERROR(CheckMemory(problem, 1));
  ASSIGN_OR_RETURN(Operands host, DrawOperands(problem, 0));
  return Make(device, problem, std::move(host), min_bytes);
}

absl::StatusOr<OperandSets> OperandSets::Make(Device& device, const Problem& problem, Operands host,
                                              int64_t min_bytes) {
  OperandSets sets;
  sets.problem_ = problem;
  sets.host_ = std::move(host);
  if (!sets.host_.bias.empty()) {
    ASSIGN_OR_RETURN(sets.bias_, Upload(device, sets.host_.bias));
  }
  if (!sets.host_.a_factors.empty()) {
    ASSIGN_OR_RETURN(sets.a_factors_, Upload(device, sets.host_.a_factors, kRoomOfFactors));
  }
  if (!sets.host_.b_factors.empty()) {
    ASSIGN_OR_RETURN(sets.b_factors_, Upload(device, sets.host_.b_factors, kRoomOfFactors));
  }
  const auto bytes = static_cast<int64_t>(sets.host_.a.size() + sets.host_.b.size());
  const int64_t count =
      std::clamp<int64_t>((min_bytes + bytes - 1) / std::max<int64_t>(1, bytes), 2, kMaxSets);
  for (int64_t i = 0; i < count; ++i) {
    Set set;
    ASSIGN_OR_RETURN(set.a, Upload(device, sets.host_.a));
    ASSIGN_OR_RETURN(set.b, Upload(device, sets.host_.b));
    ASSIGN_OR_RETURN(set.d, device.Allocate(BytesOf(problem.d) * problem.batch));
    sets.sets_.push_back(std::move(set));
  }
  return sets;
}

}  // namespace gemmd::bench
