// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/rows.h"
#include "kernels/cuda/rows.h"
#include "kernels/dequantize.h"
#include "kernels/device_profile.h"
#include "kernels/matrix/nearest_names.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/chip.h"
#include "kernels/sim/rows.h"

namespace gemmd {
namespace {

// Elements that are widened before the product or finished after it.
double ConvertedElements(const Kernel& kernel, const Problem& problem) {
  double total = 0;
  if (problem.has_product()) {
    if (kernel.recipe.a_compute != kernel.a) total += ElementsOf(problem.a, problem.batch);
    if (kernel.recipe.b_compute != kernel.b) total += ElementsOf(problem.b, problem.batch);
  }
  const bool is_counted_in_floats =
      kernel.recipe.accumulation == ElementType::kS32 && IsFloat(kernel.recipe.a_compute);
  const bool is_stored_as_it_is =
      problem.is_plain() && !is_counted_in_floats && problem.d.type == kernel.recipe.accumulation;
  if (!is_stored_as_it_is) total += ElementsOf(problem.d, problem.batch);
  return total;
}

}  // namespace

absl::Status AbortedLaunch() { return absl::CancelledError("aborted while it ran"); }

double EngineSeconds(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile,
                     double rate) {
  const double operations = problem.has_product() ? static_cast<double>(Operations(problem)) : 0;
  return operations / rate +
         ConvertedElements(kernel, problem) / profile.converted_elements_per_second;
}

absl::StatusOr<Problem> SampleCube(const Kernel& kernel, const Target& target) {
  const int64_t extent = target.kind == DeviceKind::kCpu ? 384 : 128;
  const ElementType sum = kernel.recipe.accumulation;
  Problem problem;
  problem.m = problem.n = problem.k = extent;
  ASSIGN_OR_RETURN(problem.a, TightLayout("a", kernel.a, Order::kRowMajor, extent, extent));
  ASSIGN_OR_RETURN(problem.b, TightLayout("b", kernel.b, Order::kRowMajor, extent, extent));
  ASSIGN_OR_RETURN(problem.d, TightLayout("d", sum, Order::kRowMajor, extent, extent));
  problem.accumulation = sum;
  if (kernel.instruction != nullptr && kernel.instruction->bit_count == mma::BitCount::kXor) {
    problem.bit_operation = BitOperation::kXor;
  }
  return problem;
}

absl::StatusOr<DerivedOperand> DeriveNothing(const Kernel&, const Problem&, mma::Operand) {
  return DerivedOperand();
}

absl::Status Kernel::supports(const Problem& problem) const {
  return Dequantizes(*this, problem) ? SupportsDequantized(*this, problem)
                                     : family->supports(*this, problem);
}

absl::StatusOr<int64_t> Kernel::workspace_bytes(const Problem& problem) const {
  return Dequantizes(*this, problem) ? DequantizedWorkspaceBytes(*this, problem)
                                     : family->workspace_bytes(*this, problem);
}

double Kernel::predicted_seconds(const Problem& problem, const DeviceProfile& profile,
                                 double rate) const {
  return Dequantizes(*this, problem) ? DequantizedSeconds(*this, problem, profile, rate)
                                     : family->predicted_seconds(*this, problem, profile, rate);
}

absl::StatusOr<DerivedOperand> Kernel::derived(const Problem& problem, mma::Operand operand) const {
  return Dequantizes(*this, problem) ? DequantizedOperand(*this, problem, operand)
                                     : family->derived(*this, problem, operand);
}

absl::Status Kernel::launch(const GemmArgs& args) const {
  const bool is_on_host = device_kind != DeviceKind::kCuda;
  return is_on_host && Dequantizes(*this, args.problem) ? LaunchDequantized(*this, args)
                                                        : family->launch(*this, args);
}

namespace {

std::vector<Kernel> Join(std::initializer_list<absl::Span<const Kernel>> families) {
  std::vector<Kernel> all;
  for (absl::Span<const Kernel> family : families) {
    all.insert(all.end(), family.begin(), family.end());
  }
  std::map<DeviceKind, size_t> kernels_of_kind;
  for (Kernel& kernel : all) kernel.position = kernels_of_kind[kernel.device_kind]++;
  return all;
}

// The kernels of one kind lie together.
std::map<DeviceKind, absl::Span<const Kernel>> CatalogsOfKinds() {
  std::map<DeviceKind, absl::Span<const Kernel>> catalogs;
  const absl::Span<const Kernel> all = Catalog();
  for (size_t first = 0; first < all.size();) {
    const DeviceKind kind = all[first].device_kind;
    size_t count = 1;
    while (first + count < all.size() && all[first + count].device_kind == kind) ++count;
    catalogs[kind] = all.subspan(first, count);
    first += count;
  }
  return catalogs;
}

std::vector<std::string_view> NamesOf(absl::Span<const Kernel> kernels) {
  std::vector<std::string_view> names;
  names.reserve(kernels.size());
  for (const Kernel& kernel : kernels) names.push_back(kernel.name);
  return names;
}

}  // namespace

std::string_view NameOf(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu: return "cpu";
    case DeviceKind::kSim: return "sim";
    case DeviceKind::kCuda: return "cuda";
  }
  return "";
}

absl::Span<const Kernel> Catalog() {
  static const std::vector<Kernel> kernels = Join({CpuKernels(), SimKernels(), CudaKernels()});
  return kernels;
}

absl::Span<const Kernel> Catalog(DeviceKind kind) {
  // Found once: there are a thousand kernels, and each product asks several times.
  static const auto* const catalogs = new std::map(CatalogsOfKinds());  // Never destroyed.
  const auto catalog = catalogs->find(kind);
  return catalog == catalogs->end() ? absl::Span<const Kernel>() : catalog->second;
}

absl::StatusOr<const Kernel*> FindKernel(std::string_view name) {
  static const NameIndex index(NamesOf(Catalog()));
  if (const std::optional<size_t> position = index.Find(name)) return &Catalog()[*position];
  return index.Unknown("kernel", name, "a name of the catalogue");
}

namespace {

absl::Status Refuse(std::string_view field, std::string_view got, std::string_view want) {
  return absl::UnimplementedError(GotWant(field, got, want));
}

int Precision(ElementType accumulation) {
  switch (accumulation) {
    case ElementType::kF16: return 1;
    case ElementType::kF32: return 2;
    default: return 3;  // f64, and s32, which only integer rows have.
  }
}

// The portable form of fp4 keeps pairs, but instructions that take fp4 in bytes keep single
// elements.
absl::Status SupportsSparsity(const mma::Instruction& instruction, const Problem& problem) {
  if (!instruction.is_sparse()) {
    if (!problem.a.is_sparse()) return absl::OkStatus();
    return Refuse("a.sparsity", "2:4", "a dense A");
  }
  const std::string_view want = mma::NameOf(mma::SparsityOf(instruction));
  if (!problem.a.is_sparse()) return Refuse("a.sparsity", "none", want);
  const std::string_view got = SparseFormOf(instruction.a)->name();
  return got == want ? absl::OkStatus() : Refuse("a.sparsity", got, want);
}

std::string_view FieldOfBlocks(const Problem& problem) {
  return problem.blocks_of_a() != nullptr ? "a.scale.blocks" : "b.scale.blocks";
}

// One factor of the instruction holds for scale_block() elements along k of one row or column, so
// blocks must be whole multiples of that; they may have any number of rows.
absl::Status FitsInstruction(std::string_view field, const mma::Instruction& instruction,
                             const BlockScale& blocks) {
  const mma::ScaleType type = instruction.scale;
  const bool is_type = (type == mma::ScaleType::kUe8m0 && blocks.type == FactorType::kUe8m0) ||
                       (type == mma::ScaleType::kUe4m3 && blocks.type == FactorType::kUe4m3);
  if (!is_type) return Refuse(Concat(field, ".type"), NameOf(blocks.type), mma::NameOf(type));
  if (blocks.depth % instruction.scale_block() == 0) return absl::OkStatus();
  return Refuse(Concat(field, ".k_per_block"), Concat(blocks.depth),
                Concat("a multiple of ", instruction.scale_block()));
}

absl::Status FitsBlocks(std::string_view field, const Kernel& kernel, const BlockScale* blocks) {
  if (blocks == nullptr) return absl::OkStatus();
  if (kernel.recipe.block_scaling != BlockScaling::kPromotions) {
    return FitsInstruction(field, *kernel.instruction, *blocks);
  }
  // Factors are constant in each promoted sum.
  const int promotion_k = kernel.recipe.promotion_k;
  if (blocks->depth % promotion_k == 0) return absl::OkStatus();
  return Refuse(Concat(field, ".k_per_block"), Concat(blocks->depth),
                Concat("a multiple of ", promotion_k));
}

}  // namespace

absl::Status SupportsTypes(const Kernel& kernel, const Problem& problem) {
  if (problem.a.type != kernel.a) return Refuse("a.type", NameOf(problem.a.type), NameOf(kernel.a));
  if (problem.b.type != kernel.b) return Refuse("b.type", NameOf(problem.b.type), NameOf(kernel.b));
  if (problem.has_block_scales() && kernel.recipe.block_scaling == BlockScaling::kNone) {
    return Refuse(FieldOfBlocks(problem), "factors of blocks",
                  "none: this kernel cannot multiply by them");
  }
  const ElementType accumulation = kernel.recipe.accumulation;
  if (Precision(problem.accumulation) <= Precision(accumulation)) return absl::OkStatus();
  return Refuse("accumulation_type", NameOf(problem.accumulation),
                Concat(NameOf(accumulation), " or less precise"));
}

absl::Status SupportsInstruction(const Kernel& kernel, const Problem& problem) {
  const mma::Instruction& instruction = *kernel.instruction;
  RETURN_IF_ERROR(SupportsTypes(kernel, problem));
  RETURN_IF_ERROR(SupportsSparsity(instruction, problem));
  RETURN_IF_ERROR(FitsBlocks("a.scale.blocks", kernel, problem.blocks_of_a()));
  RETURN_IF_ERROR(FitsBlocks("b.scale.blocks", kernel, problem.blocks_of_b()));
  if (instruction.bit_count == mma::BitCount::kNone) return absl::OkStatus();
  const bool is_xor = instruction.bit_count == mma::BitCount::kXor;
  if (is_xor == (problem.bit_operation == BitOperation::kXor)) return absl::OkStatus();
  return Refuse("bit_operation", is_xor ? "and" : "xor", is_xor ? "xor" : "and");
}

absl::Status AvailableOn(const mma::Instruction& instruction, mma::Chip chip) {
  if (mma::SupportOn(instruction, chip) != mma::Support::kUnavailable) return absl::OkStatus();
  std::string chips;
  for (const mma::Chip other : mma::kAllChips) {
    if (mma::SupportOn(instruction, other) == mma::Support::kUnavailable) continue;
    AppendPart(chips, Concat(chips.empty() ? "" : ", ", mma::NameOf(other)));
  }
  return absl::FailedPreconditionError(GotWant("device", mma::NameOf(chip), chips));
}

}  // namespace gemmd
