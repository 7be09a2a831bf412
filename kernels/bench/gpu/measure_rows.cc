// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/measure_rows.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "kernels/bench/gpu/alone.h"
#include "kernels/bench/gpu/issue_ceiling.h"
#include "kernels/bench/gpu/operand_sets.h"
#include "kernels/bench/gpu/output_check.h"
#include "kernels/bench/statistics.h"
#include "kernels/default_recipe.h"
#include "kernels/dequantize.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd::bench {
namespace {

using Bytes = std::vector<std::byte>;

// A library that supports the problem, and its loop over all sets.
struct Rival {
  std::unique_ptr<Opponent> opponent;
  std::unique_ptr<Loop> loop;
  std::optional<AloneTime> alone;
};

// Data shared by rows of one problem.
struct Group {
  OperandSets operands;
  // Operands of the row's own types for libraries, if the row dequantizes its operands.
  std::optional<OperandSets> dequantized;
  std::optional<Rival> cublaslt;
  std::optional<Rival> cusparselt;
};

absl::StatusOr<Rival> MakeRival(Device& device, Library& library, const OperandSets& operands,
                                double alone_seconds) {
  Rival rival;
  ASSIGN_OR_RETURN(rival.opponent, library.Prepare(device, operands));
  Opponent* const multiplier = rival.opponent.get();
  ASSIGN_OR_RETURN(rival.loop, device.MakeLoop(operands.count(), [multiplier](int set) {
    return multiplier->Multiply(set);
  }));
  if (alone_seconds > 0) {
    ASSIGN_OR_RETURN(rival.alone, TimeAlone(device, *rival.loop, alone_seconds));
  }
  return rival;
}

// Absent if the library is missing or does not support the problem.
std::optional<Rival> TryLibrary(
    Device& device, Library* library, const OperandSets& operands, double alone_seconds,
    const std::function<void(const Library&, const absl::Status&)>& refused) {
  if (library == nullptr) return std::nullopt;
  absl::StatusOr<Rival> rival = MakeRival(device, *library, operands, alone_seconds);
  if (rival.ok()) return *std::move(rival);
  refused(*library, rival.status());
  return std::nullopt;
}

// Heap-allocated, because the opponents keep its address.
absl::StatusOr<std::unique_ptr<Group>> MakeGroup(Device& device, const Kernel& kernel,
                                                 const Problem& problem, double alone_seconds,
                                                 const Libraries& libraries,
                                                 const Observer& observer) {
  auto group = std::make_unique<Group>();
  const int64_t min_bytes = 2 * device.facts().l2_bytes + 1;
  ASSIGN_OR_RETURN(group->operands, OperandSets::Make(device, problem, min_bytes));
  const auto refused = [&](const Library& library, const absl::Status& why) {
    observer.refused(kernel, library, why);
  };
  if (Dequantizes(kernel, problem)) {
    ASSIGN_OR_RETURN(Dequantization made, DequantizationOf(problem, kernel.a));
    ASSIGN_OR_RETURN(group->dequantized, OperandSets::Make(device, made.problem, min_bytes));
  }
  const OperandSets& operands = group->dequantized ? *group->dequantized : group->operands;
  if (problem.a.is_sparse()) {
    group->cusparselt = TryLibrary(device, libraries.cusparselt, operands, alone_seconds, refused);
  } else {
    group->cublaslt = TryLibrary(device, libraries.cublaslt, operands, alone_seconds, refused);
  }
  return group;
}

// A row on the operands of a group.
class RowOnDevice {
 public:
  static absl::StatusOr<RowOnDevice> Make(Device& device, const Kernel& kernel,
                                          const OperandSets& operands) {
    RowOnDevice row(device, kernel, operands);
    ASSIGN_OR_RETURN(row.workspace_bytes_, kernel.workspace_bytes(operands.problem()));
    // One per set: data packed by another call would be in the cache.
    for (int set = 0; set < operands.count(); ++set) {
      ASSIGN_OR_RETURN(DeviceBytes workspace, device.Allocate(row.workspace_bytes_));
      row.workspaces_.push_back(std::move(workspace));
    }
    return row;
  }

  absl::Status Launch(int set) const {
    const auto index = static_cast<size_t>(set);
    return device_.Launch(
        kernel_, {.problem = operands_.problem(),
                  .target = device_.facts().target,
                  .a = operands_.a(set),
                  .b = operands_.b(set),
                  .c = nullptr,
                  .bias = operands_.bias(),
                  .a_scale = {},
                  .b_scale = {},
                  .d = operands_.d(set),
                  .workspace = {workspaces_[index].get(), static_cast<size_t>(workspace_bytes_)},
                  .a_factors = operands_.a_factors(),
                  .b_factors = operands_.b_factors()});
  }

  const Kernel& kernel() const { return kernel_; }

  // D of the first set, from poisoned memory.
  absl::StatusOr<Bytes> Multiply() const {
    const MatrixLayout& layout = operands_.problem().d;
    const int64_t bytes = BytesOf(layout) * operands_.problem().batch;
    RETURN_IF_ERROR(device_.Fill(operands_.d(0), PoisonOf(layout.type), bytes));
    RETURN_IF_ERROR(Launch(0));
    RETURN_IF_ERROR(device_.Wait());
    Bytes d(static_cast<size_t>(bytes));
    RETURN_IF_ERROR(device_.Read(d.data(), operands_.d(0), bytes));
    return d;
  }

  // Launches each set once, so that every workspace is packed before a kernel is timed alone.
  absl::Status LaunchAll() const {
    for (int set = 0; set < operands_.count(); ++set) RETURN_IF_ERROR(Launch(set));
    return device_.Wait();
  }

  // The median host time of `launches` launches, each on the next set. Synchronizes every kUnderWay
  // launches, so that none waits for space in the stream.
  absl::StatusOr<double> HostSecondsOfLaunch(int launches) const {
    constexpr int kUnderWay = 64;
    using Clock = std::chrono::steady_clock;
    std::vector<double> seconds;
    for (int i = 0; i < launches; ++i) {
      if (i % kUnderWay == 0) RETURN_IF_ERROR(device_.Wait());
      const Clock::time_point begin = Clock::now();
      RETURN_IF_ERROR(Launch(i % operands_.count()));
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    RETURN_IF_ERROR(device_.Wait());
    return Median(std::move(seconds));
  }

 private:
  RowOnDevice(Device& device, const Kernel& kernel, const OperandSets& operands)
      : device_(device), kernel_(kernel), operands_(operands) {}

  Device& device_;
  const Kernel& kernel_;
  const OperandSets& operands_;
  int64_t workspace_bytes_ = 0;
  std::vector<DeviceBytes> workspaces_;
};

LibraryTime TimeOf(const Rival& rival, const Contender& contender, const Contender& row) {
  return LibraryTimeOf(rival.opponent->how(), contender.seconds, row.seconds);
}

absl::Status Time(Device& device, const RowOnDevice& row, const Group& group,
                  const GpuSettings& settings, GpuMeasurement& m) {
  const int sets = group.operands.count();
  const auto call = [&row](int set) { return row.Launch(set); };
  RETURN_IF_ERROR(row.LaunchAll());
  ASSIGN_OR_RETURN(const std::unique_ptr<Loop> whole, device.MakeLoop(sets, call));
  // A row that splits f32 ends with the kernel for exact sums.
  std::unique_ptr<Loop> alone;
  if (!row.kernel().recipe.splits_f32) {
    ASSIGN_OR_RETURN(alone, device.MakeLastKernelLoop(sets, call));
  }
  std::vector<Contender> contenders = {{whole.get()}};
  const auto add = [&contenders](Loop* loop) {
    contenders.push_back({loop});
    return contenders.size() - 1;
  };
  const size_t alone_index = alone != nullptr ? add(alone.get()) : 0;
  const size_t cublaslt = group.cublaslt ? add(group.cublaslt->loop.get()) : 0;
  const size_t cusparselt = group.cusparselt ? add(group.cusparselt->loop.get()) : 0;
  RETURN_IF_ERROR(TakeTurns(absl::MakeSpan(contenders), settings.turns));

  const Contender& first = contenders.front();
  m.seconds = Median(first.seconds);
  m.spread = Spread(first.seconds);
  m.samples = static_cast<int>(first.seconds.size());
  m.operand_sets = sets;
  m.sm_clock_mhz = static_cast<int>(Median(first.clocks));
  if (alone_index != 0) m.kernel_seconds = Median(contenders[alone_index].seconds);
  if (cublaslt != 0) m.cublaslt = TimeOf(*group.cublaslt, contenders[cublaslt], first);
  if (cusparselt != 0) m.cusparselt = TimeOf(*group.cusparselt, contenders[cusparselt], first);
  if (settings.alone_seconds > 0) {
    ASSIGN_OR_RETURN(m.alone, TimeAlone(device, *whole, settings.alone_seconds));
    if (cublaslt != 0) m.library_alone = group.cublaslt->alone;
    if (cusparselt != 0) m.library_alone = group.cusparselt->alone;
  }
  if (settings.host_launches > 0) {
    ASSIGN_OR_RETURN(m.host_seconds, row.HostSecondsOfLaunch(settings.host_launches));
  }
  return absl::OkStatus();
}

absl::StatusOr<GpuMeasurement> MeasureRow(Device& device, const Kernel& kernel, const Shape& shape,
                                          const Group& group, const GpuSettings& settings) {
  const mma::Instruction& instruction = *kernel.instruction;
  const OperandSets& operands = group.operands;
  const Target& target = device.facts().target;
  GpuMeasurement m;
  m.kernel = kernel.name;
  const Kernel* const simulated = SimulatedKernel(kernel);
  m.instruction =
      simulated != nullptr ? simulated->name : std::string_view(mma::NameOf(instruction).view());
  const Problem& problem = operands.problem();
  m.types = Concat(NameOf(problem.a.type), " x ", NameOf(problem.b.type), " into ",
                   NameOf(problem.accumulation));
  m.shape = shape;
  m.orders = NameOf(settings.orders);
  m.output = NameOf(settings.output);
  m.leading_dimension_offset = settings.leading_dimension_offset;
  m.is_integer = IsInteger(kernel.a);
  m.is_sparse = instruction.is_sparse();
  const Kernel* const recipe = DefaultRecipe(target.chip, problem);
  m.has_default_recipe = recipe != nullptr && GiveSameBits(kernel, *recipe, target.chip);
  m.ceiling = IssueCeilingOf(instruction, target);

  ASSIGN_OR_RETURN(const RowOnDevice row, RowOnDevice::Make(device, kernel, operands));
  ASSIGN_OR_RETURN(const Bytes d, row.Multiply());
  ASSIGN_OR_RETURN(const OutputCheck check,
                   CheckOutput(kernel, target, problem, operands.host(), d));
  m.elements = check.elements;
  m.compared = check.compared;
  m.mismatches = check.mismatches;
  m.problem = check.first;
  RETURN_IF_ERROR(Time(device, row, group, settings, m));
  ASSIGN_OR_RETURN(const Bytes again, row.Multiply());
  if (again != d && m.problem.empty()) m.problem = "d: another run gave other bits";
  return m;
}

// A problem, and the rows that support it.
struct Sharing {
  Problem problem;
  std::vector<const Kernel*> rows;
};

// Groups the rows by problem.
std::vector<Sharing> GroupRows(const std::vector<const Kernel*>& rows, const Shape& shape,
                               const GpuSettings& settings, const Observer& observer) {
  std::vector<Sharing> all;
  for (const Kernel* kernel : rows) {
    const absl::StatusOr<Problem> problem = MakeProblem(
        *kernel, shape, settings.orders, settings.leading_dimension_offset, settings.output);
    if (!problem.ok()) {
      observer.done(*kernel, problem.status());
      continue;
    }
    auto found = std::find_if(all.begin(), all.end(),
                              [&](const Sharing& sharing) { return sharing.problem == *problem; });
    if (found == all.end()) found = all.insert(found, {*problem, {}});
    found->rows.push_back(kernel);
  }
  return all;
}

}  // namespace

absl::Status MeasureRows(Device& device, const std::vector<const Kernel*>& rows, const Shape& shape,
                         const GpuSettings& settings, const Libraries& libraries,
                         const Observer& observer) {
  for (const Sharing& sharing : GroupRows(rows, shape, settings, observer)) {
    observer.begins(*sharing.rows.front());
    const absl::StatusOr<std::unique_ptr<Group>> group =
        MakeGroup(device, *sharing.rows.front(), sharing.problem, settings.alone_seconds, libraries,
                  observer);
    for (const Kernel* kernel : sharing.rows) {
      observer.begins(*kernel);
      absl::StatusOr<GpuMeasurement> result =
          group.ok() ? MeasureRow(device, *kernel, shape, **group, settings) : group.status();
      const absl::Status status = result.status();
      observer.done(*kernel, std::move(result));
      if (absl::IsInternal(status)) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace gemmd::bench
