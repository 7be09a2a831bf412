// SPDX-License-Identifier: Apache-2.0
//
// Elements of a D that a GPU computes again: random rows and columns of random products, whose
// matrices are in blocks or in host memory, against the D of the simulator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/matrix/text.h"
#include "kernels/verify/sub_product.h"
#include "server/device/job.h"
#include "tests/kernels/product_case.h"
#include "tests/kernels/verify_figures.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

using Bytes = std::vector<std::byte>;

constexpr std::string_view kKernels[] = {
    "mma.m16n8k16.f32.bf16.bf16.f32", "mma.m16n8k16.f32.f16.f16.f32",
    "mma.m16n8k8.f32.tf32.tf32.f32",  "mma.m16n8k32.s32.s8.u8.s32",
    "mma.m16n8k32.f32.e4m3.e5m2.f32", "mma.m8n8k4.f64",
    "mma.m16n8k64.s32.s4.s4.s32",     "mma.m16n8k256.s32.b1.b1.s32.and.popc",
};

// Ascending numbers below `extent`, at least one.
std::vector<int64_t> SomeOf(int64_t extent, RandomSource& random) {
  std::vector<int64_t> some;
  for (int64_t i = 0; i < extent; ++i) {
    if (random.Between(0, 3) == 0) some.push_back(i);
  }
  if (some.empty()) some.push_back(random.Between(0, extent - 1));
  return some;
}

Product AnyProduct(const Kernel& kernel, bool is_sparse, RandomSource& random) {
  const auto order = [&] { return random.Flip() ? Order::kRowMajor : Order::kColumnMajor; };
  Layouts layouts;
  if (!is_sparse) {
    layouts = {.a = order(), .b = order(), .c = order(), .d = order()};
    layouts.padding = random.Flip() ? 0 : 8 * random.Between(0, 2);
    layouts.batch = random.Between(1, 3);
    layouts.batch_gap = random.Flip() ? 0 : 16;
    layouts.broadcasts_a = random.Flip();
    layouts.broadcasts_b = random.Flip();
  }
  Problem problem =
      MakeProblem(kernel, random.Between(1, 40), random.Between(1, 40),
                  is_sparse ? 4 * random.Between(1, 20) : random.Between(1, 80), layouts);
  const bool is_float = IsFloat(problem.d.type);
  if (random.Flip()) {
    problem.beta = 0.5;
    problem.c = MakeLayout(problem.d.type, layouts.c, problem.m, problem.n, layouts);
  }
  if (random.Flip() && is_float) {
    problem.bias_axis = random.Flip() ? BiasAxis::kRows : BiasAxis::kColumns;
    problem.bias_type = problem.d.type;
  }
  if (random.Flip() && is_float && BitsOf(problem.a.type) == 8) {
    problem.a_scale = random.Flip() ? ScaleKind::kVector : ScaleKind::kTensor;
    problem.b_scale = random.Flip() ? ScaleKind::kVector : ScaleKind::kNone;
  }
  if (random.Flip() && is_float) problem.activation = Activation::kGeluTanh;
  return FillCase(problem, Pattern::kRandom, random);
}

Bytes BytesOfFloats(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

PerOperand<Bytes> OperandsOf(const Product& product) {
  PerOperand<Bytes> operands;
  operands.a = product.a;
  operands.b = product.b;
  operands.c = product.c;
  operands.bias = product.bias;
  operands.a_scale = product.a_factors.empty() ? BytesOfFloats(product.a_scale) : product.a_factors;
  operands.b_scale = product.b_factors.empty() ? BytesOfFloats(product.b_scale) : product.b_factors;
  return operands;
}

// A product, the simulator's D, and an order to compute a part of it again.
struct Recomputing {
  Product product;
  Bytes d;
  Problem sub;
  std::vector<int64_t> rows;
  std::vector<int64_t> columns;
  DeviceMemory::Recomputation order;

  Bytes Crossed(const Bytes& whole) const {
    Bytes crossed(static_cast<size_t>(sub.batch * sub.d.batch_stride_bytes));
    GatherElements(verify::GatherOfD(product.problem, sub, {rows.data(), columns.data()},
                                     whole.data(), crossed.data()));
    return crossed;
  }
};

class OrderMaker {
 public:
  using BlockOf = std::function<DeviceBlock(const Bytes&, int64_t offset)>;

  OrderMaker(BlockOf block_of, RandomSource& random)
      : block_of_(std::move(block_of)), random_(random) {}

  Recomputing Make(const Kernel& simulated, Product product) {
    Recomputing made;
    made.product = std::move(product);
    const Problem& problem = made.product.problem;
    made.d = RunKernel(simulated, made.product, TargetOf(simulated)).value();
    made.rows = SomeOf(problem.m, random_);
    made.columns = SomeOf(problem.n, random_);
    const auto rows = static_cast<int64_t>(made.rows.size());
    const auto columns = static_cast<int64_t>(made.columns.size());
    made.sub = verify::SubProblemOf(problem, rows, columns).value();
    made.order.task = {.problem = problem, .rows = rows, .columns = columns, .places = {}};
    for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
      if (made.order.kernel != nullptr) break;
      const bool is_alike = ShareInstruction(kernel, simulated) && kernel.supports(made.sub).ok();
      if (is_alike) made.order.kernel = &kernel;
    }
    made.order.numbers = made.rows;
    made.order.numbers.insert(made.order.numbers.end(), made.columns.begin(), made.columns.end());
    const PerOperand<Bytes> operands = OperandsOf(made.product);
    for (const OperandRole role : kOperandRoles) {
      if (operands[role].empty()) continue;
      random_.Flip() ? Stage(operands[role], role, made) : Keep(operands[role], role, made);
    }
    const int64_t offset = random_.Between(0, 300);
    made.order.task.places.d = {.block = block_of_(made.d, offset), .offset = offset};
    return made;
  }

 private:
  void Stage(const Bytes& operand, OperandRole role, Recomputing& made) {
    Bytes& to = made.order.operands[role];
    to.resize(static_cast<size_t>(OperandBytes(made.sub, role).value()));
    for (const ElementGather& gather :
         verify::GathersOf(made.product.problem, made.sub, role,
                           {made.rows.data(), made.columns.data()}, operand.data(), to.data())) {
      GatherElements(gather);
    }
  }
  void Keep(const Bytes& operand, OperandRole role, Recomputing& made) {
    const int64_t offset = random_.Between(0, 300);
    made.order.task.places[role] = {.block = block_of_(operand, offset), .offset = offset};
  }

  const BlockOf block_of_;
  RandomSource& random_;
};

class RecomputeTest : public testing::Test {
 protected:
  static WorkerDeviceOptions Options() {
    WorkerDeviceOptions options = QuickOptions();
    options.tensor_limit_bytes = 8 << 20;
    return options;
  }

  DeviceMemory& memory() { return *rig_.device().memory(); }

  DeviceBlock BlockOf(const Bytes& bytes, int64_t offset) {
    std::promise<absl::StatusOr<DeviceBlock>> made;
    memory().Allocate(static_cast<int64_t>(bytes.size()) + offset + 1,
                      [&](absl::StatusOr<DeviceBlock> got) { made.set_value(std::move(got)); });
    const absl::StatusOr<DeviceBlock> block = Awaited(made.get_future(), "a block");
    EXPECT_THAT(block, IsOk());
    std::promise<absl::Status> written;
    memory().Write(*block, offset, {bytes},
                   [&](absl::Status status) { written.set_value(std::move(status)); });
    EXPECT_THAT(Awaited(written.get_future(), "a write"), IsOk());
    return *block;
  }

  absl::StatusOr<DeviceMemory::Recomputed> Recompute(const DeviceMemory::Recomputation& order) {
    std::promise<absl::StatusOr<DeviceMemory::Recomputed>> done;
    memory().Recompute(order, [&](absl::StatusOr<DeviceMemory::Recomputed> got) {
      done.set_value(std::move(got));
    });
    return Awaited(done.get_future(), "elements");
  }

  void ExpectSame(const Recomputing& made) {
    SCOPED_TRACE(Describe(made.product.problem));
    ASSERT_NE(made.order.kernel, nullptr);
    const absl::StatusOr<DeviceMemory::Recomputed> got = Recompute(made.order);
    ASSERT_THAT(got, IsOk());
    EXPECT_EQ(got->found, made.Crossed(made.d));
    EXPECT_EQ(got->computed, got->found);
  }

  RandomSource random_;
  WorkerRig rig_{Options()};
  OrderMaker maker_{[this](const Bytes& bytes, int64_t at) { return BlockOf(bytes, at); }, random_};
};

TEST_F(RecomputeTest, GivesTheBitsOfTheWhole) {
  SCOPED_TRACE(random_.trace());
  for (const std::string_view name : kKernels) {
    const Kernel& simulated = KernelNamed(name);
    for (int64_t i = 0; i < RandomSource::Cases(6); ++i) {
      ExpectSame(maker_.Make(simulated, AnyProduct(simulated, false, random_)));
    }
  }
  EXPECT_EQ(rig_.device().condition().staging_used_bytes, 0);
}

TEST_F(RecomputeTest, GathersValuesAndIndicesOfSparseRows) {
  SCOPED_TRACE(random_.trace());
  for (const std::string_view name :
       {"mma.sp.m16n8k32.f32.bf16.bf16.f32", "mma.sp.m16n8k64.s32.s8.s8.s32"}) {
    const Kernel& simulated = KernelNamed(name);
    for (int64_t i = 0; i < RandomSource::Cases(6); ++i) {
      Product dense = AnyProduct(simulated, true, random_);
      ExpectSame(maker_.Make(simulated, WithSparseA(dense)));
    }
  }
}

TEST_F(RecomputeTest, GathersFactorsOfBlocks) {
  SCOPED_TRACE(random_.trace());
  const auto scales_sums = [](const Kernel& kernel) {
    return kernel.recipe.block_scaling == BlockScaling::kPromotions;
  };
  const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
  const auto on_gpu = std::find_if(kernels.begin(), kernels.end(), scales_sums);
  ASSERT_NE(on_gpu, kernels.end());
  const absl::Span<const Kernel> simulated_ones = Catalog(DeviceKind::kSim);
  const auto simulated =
      std::find_if(simulated_ones.begin(), simulated_ones.end(),
                   [&](const Kernel& kernel) { return ShareInstruction(kernel, *on_gpu); });
  ASSERT_NE(simulated, simulated_ones.end());
  for (int64_t i = 0; i < RandomSource::Cases(6); ++i) {
    Layouts layouts;
    layouts.batch = random_.Between(1, 3);
    layouts.b = Order::kColumnMajor;
    Problem problem = MakeProblem(*simulated, random_.Between(1, 40), random_.Between(1, 40),
                                  random_.Between(1, 300), layouts);
    problem.a_scale = problem.b_scale = ScaleKind::kBlocks;
    problem.a_blocks = {.lines = random_.Between(1, 4), .depth = 128};
    problem.b_blocks = {.lines = random_.Between(1, 50), .depth = 128};
    problem.a_blocks.per_matrix = random_.Flip();
    ExpectSame(maker_.Make(*simulated, FillCase(problem, Pattern::kRandom, random_)));
  }
}

TEST_F(RecomputeTest, ShowsWhatIsWrong) {
  SCOPED_TRACE(random_.trace());
  const Kernel& simulated = KernelNamed(kKernels[0]);
  Recomputing made = maker_.Make(simulated, AnyProduct(simulated, false, random_));
  Bytes wrong = made.d;
  for (std::byte& byte : wrong) byte ^= std::byte{0x10};
  made.order.task.places.d = {.block = BlockOf(wrong, 8), .offset = 8};
  const absl::StatusOr<DeviceMemory::Recomputed> got = Recompute(made.order);
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->computed, made.Crossed(made.d));
  EXPECT_EQ(got->found, made.Crossed(wrong));
}

TEST_F(RecomputeTest, ReadsNoDThatIsElsewhere) {
  const Kernel& simulated = KernelNamed(kKernels[0]);
  Recomputing made = maker_.Make(simulated, AnyProduct(simulated, false, random_));
  made.order.task.places.d = {};
  const absl::StatusOr<DeviceMemory::Recomputed> got = Recompute(made.order);
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->computed, made.Crossed(made.d));
  EXPECT_THAT(got->found, IsEmpty());
}

TEST_F(RecomputeTest, RefusesWhatIsNotThere) {
  const Kernel& simulated = KernelNamed(kKernels[0]);
  const Recomputing made = maker_.Make(simulated, AnyProduct(simulated, false, random_));
  const int64_t m = made.product.problem.m;
  DeviceMemory::Recomputation order = made.order;
  for (const int64_t row : {m, int64_t{-1}}) {
    order.numbers[0] = row;
    EXPECT_THAT(Recompute(order), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr(Concat("row or column ", row))));
  }
  order = made.order;
  order.task.rows = m + 1;
  EXPECT_THAT(Recompute(order),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(Concat(m + 1, " rows"))));
  order = made.order;
  order.task.places.d.offset += 1 << 20;
  EXPECT_THAT(Recompute(order), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("block")));
  order = made.order;
  order.task.places.d.block += 1000;
  EXPECT_THAT(Recompute(order), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("block")));
  ExpectSame(made);
}

TEST_F(RecomputeTest, KnowsLostBlocks) {
  const Kernel& simulated = KernelNamed(kKernels[0]);
  const Recomputing made = maker_.Make(simulated, AnyProduct(simulated, false, random_));
  const pid_t pid = rig_.device().worker_pid();
  rig_.SetScript("Gather 1 exit\n");
  EXPECT_FALSE(Recompute(made.order).ok());
  ExpectRestarted(rig_, pid);
  EXPECT_THAT(Recompute(made.order),
              StatusIs(absl::StatusCode::kFailedPrecondition, StartsWith("tensor lost")));
}

// A worker that does nothing, or computes nothing, is found out.
TEST_F(RecomputeTest, BelievesNoAnswerWithoutElements) {
  const Kernel& simulated = KernelNamed(kKernels[0]);
  const Recomputing made = maker_.Make(
      simulated,
      FillCase(MakeProblem(simulated, 40, 40, 16, Layouts()), Pattern::kRandom, random_));
  const pid_t pid = rig_.device().worker_pid();
  rig_.SetScript("Launch 1 skip\n");
  EXPECT_FALSE(Recompute(made.order).ok());
  ExpectRestarted(rig_, pid);
}

}  // namespace
}  // namespace gemmd
