// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/row_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/select.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

int64_t Place(const MatrixLayout& layout, int64_t row, int64_t column) {
  return layout.order == Order::kRowMajor ? row * layout.leading_dimension + column
                                          : column * layout.leading_dimension + row;
}

// A product of s8 matrices; `extra` is added to the last element of D.
void Compute(const GemmArgs& args, int32_t extra) {
  const Problem& problem = args.problem;
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      int32_t sum = i == problem.m - 1 && j == problem.n - 1 ? extra : 0;
      for (int64_t l = 0; l < problem.k; ++l) {
        sum += static_cast<int8_t>(args.a[Place(problem.a, i, l)]) *
               static_cast<int8_t>(args.b[Place(problem.b, l, j)]);
      }
      std::memcpy(args.d + 4 * Place(problem.d, i, j), &sum, sizeof(sum));
    }
  }
}

absl::Status Everywhere(const Kernel&, const Target&) { return absl::OkStatus(); }
absl::Status Nowhere(const Kernel&, const Target&) { return absl::FailedPreconditionError(""); }
absl::Status Anything(const Kernel&, const Problem&) { return absl::OkStatus(); }
absl::Status OnlyVectors(const Kernel&, const Problem& problem) {
  return problem.n == 1 ? absl::OkStatus() : absl::UnimplementedError("n: got more, want 1");
}
absl::StatusOr<int64_t> NoWorkspace(const Kernel&, const Problem&) { return 0; }

absl::Status BeRight(const Kernel&, const GemmArgs& args) {
  Compute(args, 0);
  return absl::OkStatus();
}
absl::Status BeWrong(const Kernel&, const GemmArgs& args) {
  Compute(args, args.problem.k == 95 ? 1 : 0);
  return absl::OkStatus();
}
absl::Status Fail(const Kernel&, const GemmArgs&) { return absl::InternalError("cannot"); }
absl::Status DieBySignal(const Kernel&, const GemmArgs&) {
  signal(SIGILL, SIG_DFL);
  raise(SIGILL);
  return absl::OkStatus();
}
absl::Status Exit(const Kernel&, const GemmArgs&) { _exit(3); }
absl::Status LackMemory(const Kernel&, const GemmArgs&) {
  return absl::ResourceExhaustedError("no memory");
}
absl::Status ThrowForMemory(const Kernel&, const GemmArgs&) { throw std::bad_alloc(); }

constexpr KernelFamily kRight = {Everywhere, Anything, NoWorkspace, BeRight};
constexpr KernelFamily kWrong = {Everywhere, Anything, NoWorkspace, BeWrong};
constexpr KernelFamily kAbsent = {Nowhere, Anything, NoWorkspace, BeWrong};
constexpr KernelFamily kVectors = {Everywhere, OnlyVectors, NoWorkspace, BeWrong};
constexpr KernelFamily kFailing = {Everywhere, Anything, NoWorkspace, Fail};
constexpr KernelFamily kDying = {Everywhere, Anything, NoWorkspace, DieBySignal};
constexpr KernelFamily kExiting = {Everywhere, Anything, NoWorkspace, Exit};
constexpr KernelFamily kShort = {Everywhere, Anything, NoWorkspace, LackMemory};
constexpr KernelFamily kThrowing = {Everywhere, Anything, NoWorkspace, ThrowForMemory};

Kernel RowOf(const char* name, const KernelFamily& family) {
  return {.name = name,
          .device_kind = DeviceKind::kCpu,
          .provider = "test",
          .engine = "test",
          .how = "",
          .a = ElementType::kS8,
          .b = ElementType::kS8,
          .recipe = {.a_compute = ElementType::kS8,
                     .b_compute = ElementType::kS8,
                     .accumulation = ElementType::kS32,
                     .exact = true,
                     .flushes_subnormals = false},
          .deterministic = true,
          .batch_invariant = true,
          .family = &family};
}

std::vector<std::pair<std::string, std::string>> FaultsOf(const std::vector<Kernel>& rows) {
  std::vector<std::pair<std::string, std::string>> faults;
  for (const RowFault& fault : FindFaultyRows(rows, Target{}, 1)) {
    faults.emplace_back(fault.kernel->name, fault.reason);
  }
  return faults;
}

TEST(RowCheckTest, FindsEveryRowThatIsWrongOrEndsTheProcess) {
  EXPECT_THAT(FaultsOf({RowOf("right", kRight), RowOf("wrong", kWrong), RowOf("absent", kAbsent),
                        RowOf("dying", kDying), RowOf("failing", kFailing),
                        RowOf("exiting", kExiting), RowOf("vectors", kVectors),
                        RowOf("right too", kRight), RowOf("dying too", kDying)}),
              ElementsAre(Pair("wrong", "33 x 17 x 95: got a wrong product"),
                          Pair("dying", HasSubstr("129 x 65 x 63: got signal 4")),
                          Pair("failing", "129 x 65 x 63: cannot"),
                          Pair("exiting", "129 x 65 x 63: got exit code 3"),
                          Pair("dying too", HasSubstr("129 x 65 x 63: got signal 4"))));
}

TEST(RowCheckTest, MemoryThatIsShortIsNoFaultOfARow) {
  EXPECT_THAT(FaultsOf({RowOf("short", kShort), RowOf("throwing", kThrowing)}), IsEmpty());
}

// Not in a separate process: earlier tests have used OpenMP in this one.
TEST(RowCheckTest, TheRowsOfTheLibrariesAreRightHere) {
  const Target target = HostTarget();
  for (const int threads : {1, 3}) {
    SetThreads(threads);
    for (const Kernel& kernel : Catalog(DeviceKind::kCpu)) {
      if (!kernel.available(target).ok()) continue;
      EXPECT_THAT(CheckRow(kernel, target), IsOk()) << kernel.name;
    }
  }
}

TEST(RowCheckTest, AFaultyRowIsOutAndSelectionSaysWhy) {
  const Kernel& faulty = **FindKernel("onednn.f32.f32.f32");
  const Kernel& right = **FindKernel("openblas.f32.f32.f32");
  const std::vector<RowFault> faults = {{&faulty, "129 x 65 x 63: got a wrong product"}};
  DeviceProfile profile;
  profile.target = HostTarget();
  profile.target.faulty_rows = faults;
  EXPECT_THAT(right.available(profile.target), IsOk());
  Problem problem;
  problem.m = problem.n = problem.k = 2;
  problem.a = problem.b = problem.d =
      TightLayout("x", ElementType::kF32, Order::kRowMajor, 2, 2).value();
  const Selection selection = Select(Catalog(DeviceKind::kCpu), problem, {}, profile);
  ASSERT_FALSE(selection.candidates.empty());
  EXPECT_EQ(selection.candidates.front().kernel, &right);
  std::string reason;
  for (const Refusal& refusal : selection.refusals) {
    if (refusal.kernel == &faulty) reason = refusal.reason;
  }
  EXPECT_EQ(reason,
            "kernel: got one that failed its check at the start (129 x 65 x 63: got a wrong "
            "product), want one that is right on this processor");
}

}  // namespace
}  // namespace gemmd
