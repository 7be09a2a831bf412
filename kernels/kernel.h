// SPDX-License-Identifier: Apache-2.0
//
// Kernel: one row of the catalogue. Plain constant data with function pointers; it owns nothing.
//
// The arithmetic contract of every row: the accumulators are those of `recipe`. Each element then
// goes through these steps in this order, each rounded on its own (no fused multiply-add), in the
// epilogue's type (f64 if the accumulation type is f64 or s32, otherwise f32):
//   x = accumulator; x *= a_scale[i] * b_scale[j] (if scaled); x *= alpha; x += beta * C[i][j]
//   (if beta is not 0); x += bias; x = activation(x); D[i][j] = Encode(x).
// If k or alpha is 0 there is no product: x starts as 0, and A, B, scales and alpha have no part.
// Activations are defined in activation.h, operation by operation. If no step applies, the
// accumulator is stored unchanged in a D of its type (s32 and f64). Any other NaN is stored as
// Encode's one NaN, because processors differ in the bits of the NaNs that they make.
// Factors of blocks are a part of the accumulators (BlockScaling), not of the epilogue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/matrix/abort.h"
#include "kernels/matrix/element.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/instruction.h"
#include "kernels/problem.h"

namespace gemmd {

enum class DeviceKind : uint8_t { kCpu, kSim, kCuda };
std::string_view NameOf(DeviceKind kind);

struct RowFault;  // kernels/cpu/row_check.h

// The properties of a device that kernels depend on.
struct Target {
  DeviceKind kind = DeviceKind::kCpu;
  bool has_avx512_vnni = false;       // Exact 8-bit dot products in oneDNN.
  bool has_avx512_core = false;       // bf16 in oneDNN.
  mma::Chip chip = mma::Chip::kSm90;  // The chip that a simulator simulates, or a GPU's own.
  int multiprocessors = 0;            // GPUs only.
  // Rows of libraries that failed their check on this processor. Borrowed.
  absl::Span<const RowFault> faulty_rows = {};
};

// How a kernel applies block factors (block_scale.h).
enum class BlockScaling : uint8_t {
  kNone,  // Does not support block factors.
  // k is divided into parts at the end of each block of A or B. In ascending k, starting from zero,
  // the products of each part are summed, and the sums are added to a total: every product and
  // addition rounds to f32, and each part adds f32(f64(sum) * (f64(factor of A) * f64(factor of
  // B))) to the total. The factor is 1 if an operand has none. This specifies the arithmetic
  // completely: its bits are the same on every processor.
  kParts,
  // The instruction applies factors itself (mma ... block_scale); missing factors are 1.
  kInstruction,
  // Every promoted sum (Recipe::promotion_k) is multiplied by its factor when it is added: total =
  // fma(sum, f32(factor of A * factor of B), total), rounded once to f32. A missing factor is 1.
  // Blocks have a multiple of promotion_k elements along k.
  kPromotions,
};

// The arithmetic of a kernel as data, in addition to the instruction.
struct Recipe {
  ElementType a_compute;     // Operands are widened into these, exactly,
  ElementType b_compute;     //   except tf32, whose low 13 bits are cleared first.
  ElementType accumulation;  // The type of the accumulators.
  bool exact;                // Accumulators are exact (s32: modulo 2^32).
  bool flushes_subnormals;   // Subnormal operands and results may count as zero.
  BlockScaling block_scaling = BlockScaling::kNone;
  // If not 0, the instruction's sums start from zero after every promotion_k elements of k, and
  // each is added, in ascending k, to a total in f32, rounded to nearest even.
  int promotion_k = 0;
  // Operands are f32, and the instruction multiplies the two f16 into which each element is split,
  // as split_float.h says. a_compute and b_compute are f32.
  bool splits_f32 = false;

  // How many times longer than predicted a product may take, depending on its values: split f32
  // with sums that must be computed in f64 (split_float.h) take up to 16 times as long.
  int64_t times_for_data() const { return splits_f32 ? 16 : 1; }

  bool operator==(const Recipe&) const = default;
};

// Memory for the data that a launch derives from one operand (Kernel::derived). It outlives the
// launch, so that the next launch can reuse it. 64-byte aligned.
struct OperandForm {
  std::byte* bytes = nullptr;  // Null: use that part of the workspace.
  bool is_made = false;        // If false, this launch fills it, if it succeeds.
};

// The operands of one launch. Everything is borrowed and outlives the launch.
//
// Matrices have the problem's layouts and need no alignment. `d` must not overlap inputs.
struct GemmArgs {
  const Problem& problem;
  Target target;                    // The device that it runs on.
  const std::byte* a;               // Null if A is empty or not read.
  const std::byte* b;               // Null if B is empty or not read.
  const std::byte* c;               // Null if beta is 0.
  const std::byte* bias;            // m or n packed elements; null if there is no bias.
  absl::Span<const float> a_scale;  // Empty, 1 or m values.
  absl::Span<const float> b_scale;  // Empty, 1 or n values.
  std::byte* d;                     // All of D is written; padding between lines is not.
  // At least workspace_bytes(problem), 64-byte aligned; on GPUs, less the parts stored in forms.
  absl::Span<std::byte> workspace;
  // Set by any thread once D is no longer needed. Null: the launch is never aborted.
  AbortFlag abort = nullptr;
  AbortWord abort_word = {};  // Used by GPU kernels instead of `abort`.
  // Used only if Kernel::derived returns bytes.
  OperandForm a_form = {};
  OperandForm b_form = {};
  // Block factors, as described by the problem's a_blocks and b_blocks; null if there are none.
  const std::byte* a_factors = nullptr;
  const std::byte* b_factors = nullptr;
};

// Whether the launch should end now, with AbortedLaunch(). Host kernels check between tiles, panels
// and matrices of a batch, at least every few milliseconds.
inline bool IsAborted(const GemmArgs& args) { return IsSet(args.abort); }

// Cancelled: the written parts of D are meaningless.
absl::Status AbortedLaunch();

// The part of the workspace with data that a launch derives from one operand only, such as its
// packed lines. These bytes are valid as long as the operand does not change. Empty if the operand
// is read in place.
struct DerivedOperand {
  int64_t offset = 0;
  int64_t bytes = 0;
  // Launches that derive the same bytes from the same operand have the same number, even with other
  // kernels of the same kind of device.
  uint32_t form = 0;
};

struct DeviceProfile;  // kernels/device_profile.h
struct Kernel;

// Seconds that an engine takes at `rate` operations a second, plus the conversion of elements that
// the engine does not read or write directly.
double EngineSeconds(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile,
                     double rate);
// A cube of the kernel's types that takes milliseconds: 384 on `cpu`, 128 elsewhere.
absl::StatusOr<Problem> SampleCube(const Kernel& kernel, const Target& target);
// For families that derive nothing from a single operand.
absl::StatusOr<DerivedOperand> DeriveNothing(const Kernel& kernel, const Problem& problem,
                                             mma::Operand operand);

// The functions of a kernel family; see Kernel for the contracts.
struct KernelFamily {
  absl::Status (*available)(const Kernel& kernel, const Target& target);
  absl::Status (*supports)(const Kernel& kernel, const Problem& problem);
  absl::StatusOr<int64_t> (*workspace_bytes)(const Kernel& kernel, const Problem& problem);
  absl::Status (*launch)(const Kernel& kernel, const GemmArgs& args);
  double (*predicted_seconds)(const Kernel& kernel, const Problem& problem,
                              const DeviceProfile& profile, double rate) = EngineSeconds;
  absl::StatusOr<Problem> (*sample)(const Kernel& kernel, const Target& target) = SampleCube;
  absl::StatusOr<DerivedOperand> (*derived)(const Kernel& kernel, const Problem& problem,
                                            mma::Operand operand) = DeriveNothing;
};

struct Kernel {
  std::string_view name;  // Derived from the row, never typed.
  DeviceKind device_kind;
  std::string_view provider;  // "oneDNN"
  std::string_view engine;    // What does the multiplying and has one measured rate: "onednn.bf16".
  std::string_view how;       // A one-sentence description.
  ElementType a;
  ElementType b;
  Recipe recipe;
  bool deterministic;
  bool batch_invariant;
  const KernelFamily* family;
  const void* row = nullptr;  // In the family's own table; only the family knows its type.
  const mma::Instruction* instruction = nullptr;
  size_t position = 0;  // The index in Catalog(device_kind).

  // OK if the kernel can run on the target; otherwise FailedPrecondition with what is missing.
  absl::Status available(const Target& target) const { return family->available(*this, target); }

  // OK if the kernel can run the (valid) problem; otherwise Unimplemented: field, got, want.
  // For operands of other types that it dequantizes (dequantize.h), too, like all that follows.
  absl::Status supports(const Problem& problem) const;

  // Bytes of scratch memory that a supported problem needs.
  // Errors: ResourceExhausted if they exceed 63 bits.
  absl::StatusOr<int64_t> workspace_bytes(const Problem& problem) const;

  // Seconds that a supported problem should take with its operands on the device, if this kernel
  // does `rate` operations a second when it is busy.
  double predicted_seconds(const Problem& problem, const DeviceProfile& profile, double rate) const;

  // A problem whose time on the target shows the kernel's rate; its operands need no conversion.
  // Errors: Unimplemented if no such problem can be made.
  absl::StatusOr<Problem> sample(const Target& target) const {
    return family->sample(*this, target);
  }

  // The data that a launch of a supported problem derives from only A or only B, and its place in
  // the workspace. Resident tensors keep it between products.
  absl::StatusOr<DerivedOperand> derived(const Problem& problem, mma::Operand operand) const;

  // Computes D. The problem is valid and supported, and args.target is one on which the kernel is
  // available. Blocks until D is written.
  // Errors: Cancelled if it was aborted; Internal if the library failed; FailedPrecondition for a
  // row of a GPU, which kernels/cuda/device/launch.h launches. Threads: any number of launches at
  // once; parallel inside, on the calling thread's OpenMP threads.
  absl::Status launch(const GemmArgs& args) const;
};

// Whether both compute with the same instruction, from operands of the same kind, and promote its
// sums alike. Then they give the same bits, on whatever kinds of devices.
inline bool ShareInstruction(const Kernel& x, const Kernel& y) {
  return x.instruction != nullptr && y.instruction != nullptr && *x.instruction == *y.instruction &&
         x.recipe.promotion_k == y.recipe.promotion_k && x.recipe.splits_f32 == y.recipe.splits_f32;
}

// The catalogue: every kernel of this build, family by family; among equals the preferred one comes
// first. A new family is a new table and one line in kernel.cc; a new kernel is one row of its
// family's table.
absl::Span<const Kernel> Catalog();

// The kernels of one kind of device.
absl::Span<const Kernel> Catalog(DeviceKind kind);

// Errors: NotFound; the message lists the nearest names in the catalogue.
absl::StatusOr<const Kernel*> FindKernel(std::string_view name);

// OK if A and B have the kernel's types, its accumulation is as precise as requested, and it
// supports block factors if there are any. Errors: Unimplemented: field, got, want.
absl::Status SupportsTypes(const Kernel& kernel, const Problem& problem);

// SupportsTypes for a kernel with an instruction, whose sparsity, operation on bits and factors of
// blocks must also be the problem's.
// Errors: Unimplemented: field, got, want.
absl::Status SupportsInstruction(const Kernel& kernel, const Problem& problem);

// OK if the chip has the instruction, in hardware or not.
// Errors: FailedPrecondition; the message names the chips that have it.
absl::Status AvailableOn(const mma::Instruction& instruction, mma::Chip chip);

}  // namespace gemmd
