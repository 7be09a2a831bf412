// SPDX-License-Identifier: Apache-2.0
//
// Choice of a kernel, with invented kernels and profiles.
#include "kernels/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/row_table.h"
#include "kernels/kernel.h"
#include "kernels/mma/chip.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::Status Everywhere(const Kernel&, const Target&) { return absl::OkStatus(); }
absl::Status Nowhere(const Kernel&, const Target&) {
  return absl::FailedPreconditionError("device: got none, want one");
}
absl::Status Fine(const Kernel&, const Problem&) { return absl::OkStatus(); }
absl::Status WrongType(const Kernel&, const Problem&) {
  return absl::UnimplementedError("a.type: got f32, want s8");
}
absl::Status WrongDepth(const Kernel&, const Problem&) {
  return absl::UnimplementedError("k: got 1, want 2");
}
absl::StatusOr<int64_t> NoWorkspace(const Kernel&, const Problem&) { return 0; }
absl::Status DoNothing(const Kernel&, const GemmArgs&) { return absl::OkStatus(); }

constexpr KernelFamily kAble = {Everywhere, Fine, NoWorkspace, DoNothing};
constexpr KernelFamily kElsewhere = {Nowhere, Fine, NoWorkspace, DoNothing};
constexpr KernelFamily kOfAnotherType = {Everywhere, WrongType, NoWorkspace, DoNothing};
constexpr KernelFamily kOfAnotherDepth = {Everywhere, WrongDepth, NoWorkspace, DoNothing};

Kernel MakeKernel(std::string_view name, std::string_view engine) {
  return {.name = name,
          .device_kind = DeviceKind::kCpu,
          .provider = "Test",
          .engine = engine,
          .how = "not at all",
          .a = ElementType::kF32,
          .b = ElementType::kF32,
          .recipe = {.a_compute = ElementType::kF32,
                     .b_compute = ElementType::kF32,
                     .accumulation = ElementType::kF32,
                     .exact = false,
                     .flushes_subnormals = false},
          .deterministic = true,
          .batch_invariant = true,
          .family = &kAble};
}

// 1000 x 1000 x 1000 of f32: 2e9 operations.
Problem Cube() {
  Problem problem;
  problem.m = problem.n = problem.k = 1000;
  problem.a = problem.b = problem.d =
      TightLayout("a", ElementType::kF32, Order::kRowMajor, 1000, 1000).value();
  return problem;
}

DeviceProfile Rates(double x, double y, double z) {
  DeviceProfile profile;
  profile.rates = {{"x", x}, {"y", y}, {"z", z}};
  return profile;
}

std::vector<std::string> Names(const std::vector<Candidate>& candidates) {
  std::vector<std::string> names;
  names.reserve(candidates.size());
  for (const Candidate& candidate : candidates) names.emplace_back(candidate.kernel->name);
  return names;
}

class SelectTest : public testing::Test {
 protected:
  Selection SelectAt(const DeviceProfile& profile) {
    return Select(catalog_, Cube(), constraints_, profile);
  }

  std::vector<Kernel> catalog_ = {MakeKernel("one", "x"), MakeKernel("two", "y"),
                                  MakeKernel("three", "z")};
  Constraints constraints_;
};

// The rows of the CPU first expand A into a dense matrix: a million elements at 1e9 a second. The
// simulators' rows read it as it is.
TEST(PredictionTest, ExpandingASparseOperandTakesTimeOnTheCpu) {
  const DeviceProfile profile;
  Problem problem = Cube();
  Problem sparse = problem;
  sparse.a = TightSparseLayout("a", ElementType::kF32, 1000, 1000).value();
  const Kernel& on_cpu = **FindKernel("openblas.f32.f32.f32");
  EXPECT_EQ(Predict(on_cpu, sparse, profile).kernel_ns,
            Predict(on_cpu, problem, profile).kernel_ns + 1000000);
  const Kernel& simulated = *Catalog(DeviceKind::kSim).begin();
  EXPECT_EQ(Predict(simulated, sparse, profile).kernel_ns,
            Predict(simulated, problem, profile).kernel_ns);
}

TEST_F(SelectTest, TheFastestComesFirst) {
  const Selection selection = SelectAt(Rates(100e9, 400e9, 200e9));
  EXPECT_THAT(Names(selection.candidates), ElementsAre("two", "three", "one"));
  EXPECT_EQ(selection.candidates[0].predicted_ns, 5000000);
  EXPECT_EQ(selection.candidates[0].reason, "y measured at 400 Gop/s");
  EXPECT_TRUE(selection.refusals.empty());
}

TEST_F(SelectTest, NoiseDoesNotChangeTheOrderOfTheCatalogue) {
  EXPECT_THAT(Names(SelectAt(Rates(100e9, 109e9, 105e9)).candidates),
              ElementsAre("one", "two", "three"));
  EXPECT_THAT(Names(SelectAt(Rates(100e9, 97e9, 106e9)).candidates),
              ElementsAre("one", "two", "three"));
  EXPECT_THAT(Names(SelectAt(Rates(100e9, 120e9, 105e9)).candidates),
              ElementsAre("two", "one", "three"));
  const Selection selection = SelectAt(Rates(100e9, 109e9, 1e9));
  EXPECT_THAT(selection.candidates[0].reason,
              HasSubstr("within 10 % of two and before it in the catalogue"));
}

TEST_F(SelectTest, TheFirstIsNeverMoreThanTheNoiseFromTheFastest) {
  const Selection selection = SelectAt(Rates(100e9, 109e9, 118e9));
  EXPECT_THAT(Names(selection.candidates), ElementsAre("two", "three", "one"));
}

TEST_F(SelectTest, EnginesWithoutARateCountAsSlow) {
  DeviceProfile profile;
  profile.rates = {{"z", 2e9}};
  const Selection selection = SelectAt(profile);
  EXPECT_THAT(Names(selection.candidates), ElementsAre("three", "one", "two"));
  EXPECT_EQ(selection.candidates[1].predicted_ns, 2000000000);
  EXPECT_EQ(selection.candidates[1].reason, "x has no measured rate, 1 Gop/s assumed");
}

TEST_F(SelectTest, AKernelsOwnRateCountsBeforeItsEngines) {
  DeviceProfile profile = Rates(1e9, 1e9, 1e9);
  profile.kernel_rates = {0, 4e9, 0};
  for (size_t i = 0; i < catalog_.size(); ++i) catalog_[i].position = i;
  const Selection selection = SelectAt(profile);
  EXPECT_THAT(Names(selection.candidates), ElementsAre("two", "one", "three"));
  EXPECT_EQ(selection.candidates[0].predicted_ns, 500000000);
  EXPECT_EQ(selection.candidates[0].reason, "this kernel measured at 4 Gop/s");
  EXPECT_EQ(selection.candidates[1].predicted_ns, 2000000000);
  EXPECT_EQ(selection.candidates[1].reason,
            "this kernel was not measured at the start; x measured at 1 Gop/s");
  EXPECT_TRUE(HasRate(catalog_[1], profile));
  EXPECT_FALSE(HasRate(catalog_[0], profile));
  EXPECT_TRUE(HasRate(catalog_[0], Rates(1e9, 1e9, 1e9)));
}

TEST_F(SelectTest, KernelsThatNothingWasMeasuredOfSaySo) {
  DeviceProfile profile;
  profile.kernel_rates = {0, 0, 0};
  const Selection selection = SelectAt(profile);
  EXPECT_EQ(selection.candidates[0].predicted_ns, 2000000000);
  EXPECT_EQ(selection.candidates[0].reason,
            "this kernel was not measured at the start; x has no measured rate, 1 Gop/s assumed");
  EXPECT_FALSE(HasRate(catalog_[0], profile));
}

TEST_F(SelectTest, ConversionsCost) {
  Problem problem = Cube();
  const DeviceProfile profile = Rates(1e12, 1e12, 1e12);
  EXPECT_EQ(Predict(catalog_[0], problem, profile).kernel_ns, 2000000);
  problem.d.type = ElementType::kF16;
  EXPECT_EQ(Predict(catalog_[0], problem, profile).kernel_ns, 3000000);
  problem.d.type = ElementType::kF32;
  problem.activation = Activation::kRelu;
  EXPECT_EQ(Predict(catalog_[0], problem, profile).kernel_ns, 3000000);
  problem.activation = Activation::kNone;
  Kernel widening = catalog_[0];
  widening.recipe.a_compute = widening.recipe.b_compute = ElementType::kF64;
  EXPECT_EQ(Predict(widening, problem, profile).kernel_ns, 4000000);
  problem.batch = 3;
  problem.a.batch_stride_bytes = 0;  // Widened once.
  EXPECT_EQ(Predict(widening, problem, profile).kernel_ns, 3 * 2000000 + 1000000 + 3 * 1000000);
  problem.alpha = 0;  // No product; D is zeros.
  EXPECT_EQ(Predict(widening, problem, profile).kernel_ns, 3 * 1000000);
}

TEST_F(SelectTest, EveryRefusalHasAReason) {
  catalog_[0].family = &kOfAnotherType;
  catalog_[1].family = &kElsewhere;
  const Selection selection = SelectAt(Rates(1e9, 1e9, 1e9));
  EXPECT_THAT(Names(selection.candidates), ElementsAre("three"));
  ASSERT_EQ(selection.refusals.size(), 2u);
  EXPECT_EQ(selection.refusals[0].kernel->name, "one");
  EXPECT_EQ(selection.refusals[0].reason, "a.type: got f32, want s8");
  EXPECT_EQ(selection.refusals[1].kernel->name, "two");
  EXPECT_EQ(selection.refusals[1].reason, "device: got none, want one");
}

TEST_F(SelectTest, ConstraintsRefuse) {
  catalog_[1].deterministic = false;
  catalog_[2].batch_invariant = false;
  constraints_.deterministic = true;
  EXPECT_THAT(Names(SelectAt(Rates(1e9, 9e9, 5e9)).candidates), ElementsAre("three", "one"));
  constraints_.batch_invariant = true;
  const Selection selection = SelectAt(Rates(1e9, 9e9, 5e9));
  EXPECT_THAT(Names(selection.candidates), ElementsAre("one"));
  EXPECT_THAT(selection.refusals[0].reason, HasSubstr("require_deterministic: got"));
  EXPECT_THAT(selection.refusals[1].reason, HasSubstr("require_batch_invariant: got"));
  constraints_ = {.kernel = &catalog_[1]};
  EXPECT_THAT(Names(SelectAt(Rates(1e9, 9e9, 5e9)).candidates), ElementsAre("two"));
  EXPECT_EQ(SelectAt(Rates(1e9, 9e9, 5e9)).refusals[0].reason, "kernel: got one, want two");
}

TEST_F(SelectTest, ChoosesTheFirst) {
  const absl::StatusOr<const Kernel*> kernel =
      Choose(catalog_, Cube(), constraints_, Rates(1e9, 9e9, 5e9));
  ASSERT_THAT(kernel, IsOk());
  EXPECT_EQ((*kernel)->name, "two");
}

TEST_F(SelectTest, ADistrustedKernelIsPassedOverOrItsReasonIsTheAnswer) {
  const DeviceProfile profile = Rates(1e9, 9e9, 5e9);
  const std::vector<DistrustedKernel> distrusted = {
      {&catalog_[1], absl::FailedPreconditionError("kernel: it crashed")},
      {&catalog_[2], absl::UnimplementedError("kernel: it was wrong")}};
  constraints_.distrusted = absl::MakeConstSpan(distrusted).first(1);
  EXPECT_EQ(*Choose(catalog_, Cube(), constraints_, profile), &catalog_[2]);
  const Selection selection = SelectAt(profile);
  EXPECT_THAT(Names(selection.candidates), ElementsAre("three", "one"));
  EXPECT_EQ(selection.refusals[0].reason, "kernel: it crashed");
  constraints_.distrusted = distrusted;
  EXPECT_EQ(*Choose(catalog_, Cube(), constraints_, profile), &catalog_[0]);
  constraints_.kernel = &catalog_[1];
  EXPECT_THAT(Choose(catalog_, Cube(), constraints_, profile),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "two: kernel: it crashed; without the constraints: one"));
  constraints_.kernel = &catalog_[2];
  EXPECT_THAT(Choose(catalog_, Cube(), constraints_, profile),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("three: kernel: it was wrong")));
}

// Choose does not build texts, so it is separate code.
TEST_F(SelectTest, ChooseAgreesWithSelect) {
  for (int rates = 0; rates < 125; ++rates) {
    // Some within 10 % of each other, and some not.
    const auto rate = [](int i) { return 1e9 * (1 + 0.06 * i); };
    const DeviceProfile profile = Rates(rate(rates % 5), rate(rates / 5 % 5), rate(rates / 25));
    const absl::StatusOr<const Kernel*> kernel = Choose(catalog_, Cube(), constraints_, profile);
    ASSERT_THAT(kernel, IsOk());
    EXPECT_EQ(*kernel, Select(catalog_, Cube(), constraints_, profile).candidates[0].kernel);
  }
}

TEST_F(SelectTest, ANamedKernelThatCannotSaysWhyAndWhatCould) {
  catalog_[0].family = &kOfAnotherType;
  constraints_.kernel = catalog_.data();
  EXPECT_THAT(Choose(catalog_, Cube(), constraints_, Rates(1e9, 9e9, 5e9)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "one: a.type: got f32, want s8; without the constraints: two, three"));
}

// One instruction, several kernels of it on a GPU, one on a simulator.
class NamedInstructionTest : public testing::Test {
 protected:
  static constexpr std::string_view kName = "mma.m16n8k16.f32.bf16.bf16.f32";

  NamedInstructionTest() {
    problem_.m = problem_.n = problem_.k = 512;
    problem_.a = problem_.b =
        TightLayout("a", ElementType::kBf16, Order::kRowMajor, 512, 512).value();
    problem_.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, 512, 512).value();
    for (const CudaRow& row : kCudaRows) profile_.kernel_rates.push_back(RateOf(row));
    profile_.target = {.kind = DeviceKind::kCuda, .multiprocessors = 4};
  }

  // The tile of 128x128 is the fastest.
  static double RateOf(const CudaRow& row) {
    return row.tile.m == 128 && row.tile.n == 128 ? 2e12 : 1e12;
  }

  absl::StatusOr<const Kernel*> ChooseFor(std::string_view name) {
    return Choose(Catalog(profile_.target.kind), problem_, {.kernel = *FindKernel(name)}, profile_);
  }

  Problem problem_;
  DeviceProfile profile_;
};

TEST_F(NamedInstructionTest, MeansTheBestKernelOfItOnAGpu) {
  const absl::StatusOr<const Kernel*> kernel = ChooseFor(kName);
  ASSERT_THAT(kernel, IsOk());
  EXPECT_EQ((*kernel)->name.substr(0, (*kernel)->name.rfind("_w")),
            std::string(kName) + "_128x128x64");
}

TEST_F(NamedInstructionTest, AKernelByItsOwnNameIsThatOneAlone) {
  for (const Kernel& wanted : Catalog(DeviceKind::kCuda)) {
    if (*wanted.instruction != *(*FindKernel(kName))->instruction) continue;
    const absl::StatusOr<const Kernel*> kernel = ChooseFor(wanted.name);
    ASSERT_THAT(kernel, IsOk());
    EXPECT_EQ((*kernel)->name, wanted.name);
  }
}

TEST_F(NamedInstructionTest, AKernelOfAGpuMeansItsInstructionOnASimulator) {
  profile_.target = {.kind = DeviceKind::kSim};
  for (const Kernel& wanted : Catalog(DeviceKind::kCuda)) {
    if (*wanted.instruction != *(*FindKernel(kName))->instruction) continue;
    const absl::StatusOr<const Kernel*> kernel = ChooseFor(wanted.name);
    ASSERT_THAT(kernel, IsOk());
    EXPECT_EQ((*kernel)->name, kName);
  }
}

TEST_F(NamedInstructionTest, TellsWhyItCannot) {
  problem_.a.type = ElementType::kF16;
  EXPECT_THAT(ChooseFor(kName),
              StatusIs(absl::StatusCode::kUnimplemented,
                       testing::AllOf(testing::StartsWith(std::string(kName)),
                                      HasSubstr(": a.type: got f16, want bf16"))));
  problem_.a.type = ElementType::kBf16;
  EXPECT_THAT(ChooseFor("onednn.f32.bf16.bf16"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       testing::StartsWith("onednn.f32.bf16.bf16: device: got cuda, want cpu; "
                                           "without the constraints: ")));
  profile_.target = {.kind = DeviceKind::kCpu};
  EXPECT_THAT(ChooseFor(kName),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("device: got cpu, want sim")));
}

TEST_F(SelectTest, NoKernelNamesTheNearest) {
  for (Kernel& kernel : catalog_) kernel.family = &kOfAnotherDepth;
  catalog_[0].a = ElementType::kS8;
  EXPECT_THAT(Choose(catalog_, Cube(), constraints_, Rates(1e9, 9e9, 5e9)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "no kernel runs 1000x1000x1000 f32 <- f32 row, f32 row; "
                       "two: k: got 1, want 2; three: k: got 1, want 2; one: k: got 1, want 2"));
}

// The types of A and of B count double, the type of the sums once.
TEST_F(SelectTest, TheNearestHasTheTypesOfAAndOfB) {
  for (Kernel& kernel : catalog_) kernel.family = &kOfAnotherDepth;
  catalog_[0].b = ElementType::kS8;
  catalog_[1].recipe.accumulation = ElementType::kF64;
  EXPECT_THAT(Choose(catalog_, Cube(), constraints_, Rates(1e9, 9e9, 5e9)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "no kernel runs 1000x1000x1000 f32 <- f32 row, f32 row; "
                       "three: k: got 1, want 2; two: k: got 1, want 2; one: k: got 1, want 2"));
}

TEST_F(SelectTest, CopiesTakeTimeWhereOperandsAreCopied) {
  DeviceProfile profile;
  EXPECT_EQ(Predict(catalog_[0], Cube(), profile).copy_ns, 0);
  profile.copied_bytes_per_second = 1e9;
  EXPECT_EQ(Predict(catalog_[0], Cube(), profile).copy_ns, 3 * 4000000);
  HostCosts costs;
  costs.cleared_bytes_per_second = 1e9;
  profile.host = std::make_shared<const HostCosts>(costs);
  EXPECT_EQ(Predict(catalog_[0], Cube(), profile).copy_ns, 4000000);  // Only D is made.
}

TEST_F(SelectTest, PredictionsOfHugeProblemsDoNotOverflow) {
  Problem problem = Cube();
  problem.batch = int64_t{1} << 31;
  EXPECT_GT(Predict(catalog_[0], problem, Rates(1e-3, 1, 1)).kernel_ns, int64_t{1} << 56);
}

}  // namespace
}  // namespace gemmd
