// SPDX-License-Identifier: Apache-2.0
//
// The whole benchmark of rows, on a simulating device.
#include "kernels/bench/gpu/measure_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kernels/bench/simulating_device.h"
#include "tests/testing/status_matchers.h"

namespace gemmd::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::string_view kBf16 = "mma.m16n8k16.f32.bf16.bf16.f32";

const Kernel& Large() { return GpuRow(kBf16, 0); }
const Kernel& Small() { return GpuRow(kBf16, 1); }
const Kernel& Shallow() { return GpuRow("mma.m16n8k8.f32.bf16.bf16.f32"); }
const Kernel& Integer() { return GpuRow("mma.m16n8k32.s32.s8.s8.s32"); }
const Kernel& Sparse() { return GpuRow("mma.sp.m16n8k32.f32.f16.f16.f32"); }

constexpr Shape kShape = {48, 40, 64};

// Multiplies in no time, and counts its calls.
class FakeLibrary : public Library {
 public:
  class Opponent : public bench::Opponent {
   public:
    std::string how() const override { return "best of 1"; }
    absl::Status Multiply(int) override { return absl::OkStatus(); }
  };

  std::string name() const override { return "fake"; }
  std::string version() const override { return "1"; }
  absl::StatusOr<std::unique_ptr<bench::Opponent>> Prepare(Device&,
                                                           const OperandSets& operands) override {
    prepared.push_back(operands.problem());
    if (!refusal.ok()) return refusal;
    return std::make_unique<Opponent>();
  }

  std::vector<Problem> prepared;
  absl::Status refusal;
};

struct Outcome {
  absl::Status status;
  std::vector<std::string> begun;
  std::vector<GpuMeasurement> measurements;
  std::vector<absl::Status> failures;
  std::vector<std::string> refusals;
};

Outcome MeasureOn(Device& device, const std::vector<const Kernel*>& rows,
                  const Libraries& libraries = {}, const Orders& orders = {},
                  const Shape& shape = kShape, double alone_seconds = 0, const Output& output = {},
                  int host_launches = 0) {
  GpuSettings settings;
  settings.host_launches = host_launches;
  settings.output = output;
  settings.orders = orders;
  settings.alone_seconds = alone_seconds;
  settings.turns = {.seconds = 0, .min_samples = 3, .warm_up = 0, .longest_warm_up = 0};
  Outcome outcome;
  const Observer observer = {
      .begins = [&](const Kernel& kernel) { outcome.begun.emplace_back(kernel.name); },
      .done =
          [&](const Kernel&, absl::StatusOr<GpuMeasurement> result) {
            if (result.ok()) {
              outcome.measurements.push_back(*std::move(result));
            } else {
              outcome.failures.push_back(result.status());
            }
          },
      .refused =
          [&](const Kernel& kernel, const Library& library, const absl::Status&) {
            outcome.refusals.push_back(std::string(kernel.name) + " by " + library.name());
          }};
  outcome.status = MeasureRows(device, rows, shape, settings, libraries, observer);
  return outcome;
}

TEST(MeasureRowsTest, TimesAndChecksRows) {
  SimulatingDevice device;
  device.seconds_per_call = 2e-3;
  const Outcome outcome = MeasureOn(device, {&Large(), &Integer()});
  ASSERT_THAT(outcome.status, IsOk());
  ASSERT_THAT(outcome.measurements, SizeIs(2));
  const GpuMeasurement& m = outcome.measurements[0];
  EXPECT_EQ(m.kernel, Large().name);
  EXPECT_EQ(m.instruction, kBf16);
  EXPECT_EQ(m.types, "bf16 x bf16 into f32");
  EXPECT_EQ(m.orders, "rcr");
  EXPECT_TRUE(m.is_right()) << m.problem;
  EXPECT_EQ(m.compared, 48 * 40);
  EXPECT_DOUBLE_EQ(m.seconds, 2e-3);
  EXPECT_DOUBLE_EQ(m.rate(), kShape.operations() / 2e-3);
  EXPECT_DOUBLE_EQ(m.spread, 0);
  EXPECT_EQ(m.samples, 3);
  EXPECT_EQ(m.sm_clock_mhz, 1980);
  EXPECT_EQ(m.ceiling, 630e12);
  EXPECT_FALSE(m.is_integer);
  EXPECT_FALSE(m.cublaslt || m.cusparselt || m.kernel_seconds);
  EXPECT_TRUE(outcome.measurements[1].is_integer);
}

// The chip's default sums are those of wgmma, sixteen products at a time like mma.m16n8k16;
// integers have the same bits with any instruction.
TEST(MeasureRowsTest, SaysWhichRowsHaveTheDefaultRecipe) {
  SimulatingDevice device;
  const Outcome outcome = MeasureOn(device, {&Large(), &Shallow(), &Integer()});
  ASSERT_THAT(outcome.measurements, SizeIs(3));
  for (const GpuMeasurement& m : outcome.measurements) {
    EXPECT_EQ(m.has_default_recipe, m.kernel != Shallow().name) << m.kernel;
  }
}

// A and B of all sets together exceed two caches of 10 000 bytes.
TEST(MeasureRowsTest, OperandsDoNotStayInTheCache) {
  SimulatingDevice device;
  const Outcome outcome = MeasureOn(device, {&Large()});
  const int64_t bytes_of_a_set = 48 * 64 * 2 + 64 * 40 * 2;
  EXPECT_EQ(outcome.measurements[0].operand_sets, 20'000 / bytes_of_a_set + 1);
  EXPECT_EQ(device.allocated_bytes, 0);
}

TEST(MeasureRowsTest, FindsAWrongBit) {
  SimulatingDevice device;
  device.spoil = [](int, const Problem&, std::byte* d) { d[4 * 40 + 8] ^= std::byte{1}; };
  const Outcome outcome = MeasureOn(device, {&Large()});
  ASSERT_THAT(outcome.measurements, SizeIs(1));
  EXPECT_FALSE(outcome.measurements[0].is_right());
  EXPECT_EQ(outcome.measurements[0].mismatches, 1);
  EXPECT_THAT(outcome.measurements[0].problem, HasSubstr("d[1][2]"));
}

TEST(MeasureRowsTest, FindsBitsThatChangeLater) {
  SimulatingDevice device;
  device.spoil = [](int launch, const Problem&, std::byte* d) {
    if (launch > 0) d[0] ^= std::byte{1};
  };
  const Outcome outcome = MeasureOn(device, {&Large()});
  ASSERT_THAT(outcome.measurements, SizeIs(1));
  EXPECT_FALSE(outcome.measurements[0].is_right());
  EXPECT_EQ(outcome.measurements[0].problem, "d: another run gave other bits");
}

TEST(MeasureRowsTest, RowsOfOneProblemShareTheLibrarysSearch) {
  SimulatingDevice device;
  FakeLibrary library;
  const Outcome outcome =
      MeasureOn(device, {&Large(), &Integer(), &Small(), &Shallow()}, {.cublaslt = &library});
  EXPECT_THAT(library.prepared, SizeIs(2));
  ASSERT_THAT(outcome.measurements, SizeIs(4));
  EXPECT_EQ(outcome.measurements[1].kernel,
            Small().name);  // Timed beside the first row, whose problem it shares.
  for (const GpuMeasurement& m : outcome.measurements) {
    ASSERT_TRUE(m.cublaslt);
    EXPECT_EQ(m.cublaslt->how, "best of 1");
    EXPECT_DOUBLE_EQ(m.cublaslt->ratio, 1);
  }
}

TEST(MeasureRowsTest, ASparseRowHasTheSparseLibraryBesideIt) {
  SimulatingDevice device;
  FakeLibrary dense;
  FakeLibrary sparse;
  const Outcome outcome =
      MeasureOn(device, {&Sparse(), &Large()}, {.cublaslt = &dense, .cusparselt = &sparse});
  ASSERT_THAT(outcome.measurements, SizeIs(2));
  const GpuMeasurement& m = outcome.measurements[0];
  EXPECT_TRUE(m.is_sparse);
  EXPECT_TRUE(m.is_right()) << m.problem;
  EXPECT_TRUE(m.cusparselt && !m.cublaslt);
  EXPECT_TRUE(outcome.measurements[1].cublaslt && !outcome.measurements[1].cusparselt);
  EXPECT_THAT(sparse.prepared, SizeIs(1));
  EXPECT_THAT(dense.prepared, SizeIs(1));
}

TEST(MeasureRowsTest, GoesOnWithoutALibraryThatRefuses) {
  SimulatingDevice device;
  FakeLibrary library;
  library.refusal = absl::UnimplementedError("no such product");
  const Outcome outcome = MeasureOn(device, {&Large(), &Small()}, {.cublaslt = &library});
  ASSERT_THAT(outcome.measurements, SizeIs(2));
  EXPECT_FALSE(outcome.measurements[0].cublaslt);
  EXPECT_THAT(outcome.refusals, ElementsAre(std::string(Large().name) + " by fake"));
}

TEST(MeasureRowsTest, TimesTheKernelAloneWhereSomethingIsPacked) {
  SimulatingDevice device;
  device.seconds_per_call = 3e-3;
  device.seconds_per_last_kernel = 2e-3;
  const Outcome outcome = MeasureOn(device, {&Sparse()});
  ASSERT_THAT(outcome.measurements, SizeIs(1));
  EXPECT_DOUBLE_EQ(outcome.measurements[0].seconds, 3e-3);
  EXPECT_DOUBLE_EQ(outcome.measurements[0].kernel_seconds.value(), 2e-3);
}

TEST(MeasureRowsTest, ARowThatFailsDoesNotStopTheOthers) {
  SimulatingDevice device;
  device.refuse = [](const Kernel& kernel) -> absl::Status {
    if (kernel.name != Large().name) return absl::OkStatus();
    return absl::FailedPreconditionError("no code");
  };
  const Outcome outcome = MeasureOn(device, {&Large(), &Small()});
  EXPECT_THAT(outcome.status, IsOk());
  EXPECT_THAT(outcome.failures,
              ElementsAre(StatusIs(absl::StatusCode::kFailedPrecondition, "no code")));
  EXPECT_THAT(outcome.measurements, SizeIs(1));
}

TEST(MeasureRowsTest, StopsWhereTheDeviceIsLost) {
  SimulatingDevice device;
  device.refuse = [](const Kernel&) { return absl::InternalError("lost"); };
  const Outcome outcome = MeasureOn(device, {&Large(), &Small()});
  EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kInternal, "lost"));
  EXPECT_THAT(outcome.failures, SizeIs(1));
}

TEST(MeasureRowsTest, LeavesOutWhatARowDoesNotTake) {
  SimulatingDevice device;
  const Outcome outcome = MeasureOn(device, {&Sparse(), &Small()}, {},
                                    {Order::kColumnMajor, Order::kRowMajor, Order::kColumnMajor});
  EXPECT_THAT(outcome.failures, ElementsAre(StatusIs(absl::StatusCode::kUnimplemented)));
  ASSERT_THAT(outcome.measurements, SizeIs(1));
  EXPECT_TRUE(outcome.measurements[0].is_right()) << outcome.measurements[0].problem;
  EXPECT_EQ(outcome.measurements[0].orders, "crc");
}

TEST(MeasureRowsTest, ChecksTheMatricesOfABatch) {
  const Shape shape = {.m = 24, .n = 16, .k = 32, .batch = 5};
  SimulatingDevice device;
  FakeLibrary library;
  const Outcome right = MeasureOn(device, {&Large()}, {.cublaslt = &library}, {}, shape);
  ASSERT_THAT(right.measurements, SizeIs(1));
  const GpuMeasurement& m = right.measurements[0];
  EXPECT_TRUE(m.is_right()) << m.problem;
  EXPECT_EQ(m.elements, 5 * 24 * 16);
  EXPECT_EQ(m.compared, 4 * 24 * 16);
  EXPECT_DOUBLE_EQ(m.rate(), 2.0 * 5 * 24 * 16 * 32 / m.seconds);
  EXPECT_EQ(library.prepared.front().batch, 5);

  device.spoil = [](int, const Problem& problem, std::byte* d) {
    d[4 * problem.d.batch_stride_bytes + 8] ^= std::byte{1};
  };
  const Outcome wrong = MeasureOn(device, {&Large()}, {}, {}, shape);
  ASSERT_THAT(wrong.measurements, SizeIs(1));
  EXPECT_EQ(wrong.measurements[0].mismatches, 1);
  EXPECT_THAT(wrong.measurements[0].problem, HasSubstr("matrix 4: d[0][2]"));
}

TEST(MeasureRowsTest, ChecksWhatFollowsTheProduct) {
  const Output output = {.type = ElementType::kBf16,
                         .has_bias = true,
                         .activation = Activation::kRelu,
                         .a_blocks = {},
                         .b_blocks = {}};
  SimulatingDevice device;
  FakeLibrary library;
  const Outcome right =
      MeasureOn(device, {&Large()}, {.cublaslt = &library}, {}, kShape, 0, output);
  ASSERT_THAT(right.measurements, SizeIs(1));
  EXPECT_TRUE(right.measurements[0].is_right()) << right.measurements[0].problem;
  EXPECT_EQ(right.measurements[0].output, "bf16 bias relu");
  const Problem& problem = library.prepared.front();
  EXPECT_EQ(problem.d.type, ElementType::kBf16);
  EXPECT_EQ(problem.bias_axis, BiasAxis::kColumns);
  EXPECT_EQ(problem.activation, Activation::kRelu);

  device.spoil = [](int, const Problem& spoiled, std::byte* d) {
    d[spoiled.d.line_stride_bytes() + 2] ^= std::byte{1};
  };
  const Outcome wrong = MeasureOn(device, {&Large()}, {}, {}, kShape, 0, output);
  ASSERT_THAT(wrong.measurements, SizeIs(1));
  EXPECT_THAT(wrong.measurements[0].problem, HasSubstr("d[1][1]"));
}

// The row dequantizes its operands; the library multiplies 16-bit ones of the same shape.
TEST(MeasureRowsTest, DequantizesOperands) {
  Output output;
  ASSERT_THAT(ParseQuantized("none,s4:f32:1x16", output), IsOk());
  SimulatingDevice device;
  FakeLibrary library;
  const Outcome outcome =
      MeasureOn(device, {&Large(), &Integer()}, {.cublaslt = &library}, {}, kShape, 0, output);
  ASSERT_THAT(outcome.measurements, SizeIs(1));
  const GpuMeasurement& m = outcome.measurements[0];
  EXPECT_TRUE(m.is_right()) << m.problem;
  EXPECT_EQ(m.types, "bf16 x s4 into f32");
  EXPECT_EQ(m.output, "blocks none by f32 1x16");
  EXPECT_TRUE(m.cublaslt.has_value());
  ASSERT_THAT(library.prepared, SizeIs(1));
  EXPECT_EQ(library.prepared[0].b.type, ElementType::kBf16);
  EXPECT_FALSE(library.prepared[0].has_block_scales());
}

TEST(MeasureRowsTest, LeavesOutABatchOfSparseMatrices) {
  SimulatingDevice device;
  const Outcome outcome =
      MeasureOn(device, {&Sparse()}, {}, {}, {.m = 16, .n = 8, .k = 32, .batch = 2});
  EXPECT_THAT(outcome.failures,
              ElementsAre(StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("batch: got"))));
}

TEST(MeasureRowsTest, TimesRowAndLibraryAlone) {
  SimulatingDevice device;
  device.seconds_per_call = 2e-3;
  device.joules_per_launch = 13;
  FakeLibrary library;
  const Outcome outcome =
      MeasureOn(device, {&Large()}, {.cublaslt = &library}, {}, kShape, /*alone_seconds=*/0.2);
  ASSERT_THAT(outcome.measurements, SizeIs(1));
  const GpuMeasurement& m = outcome.measurements[0];
  ASSERT_EQ(m.operand_sets, 2);
  ASSERT_TRUE(m.alone && m.library_alone);
  EXPECT_DOUBLE_EQ(m.alone->seconds, 2e-3);
  EXPECT_EQ(m.alone->sm_clock_mhz, 1980);
  // A run of 50 ms or more is 26 calls, of which this device makes one.
  EXPECT_DOUBLE_EQ(m.alone->joules.value(), 0.5);
  EXPECT_DOUBLE_EQ(m.library_alone->seconds, 2e-3);
  EXPECT_DOUBLE_EQ(m.library_alone->joules.value(), 0);  // It launches nothing.

  device.joules_per_launch.reset();
  const Outcome silent = MeasureOn(device, {&Large()}, {}, {}, kShape, 0.1);
  ASSERT_THAT(silent.measurements, SizeIs(1));
  EXPECT_FALSE(silent.measurements[0].alone->joules || silent.measurements[0].library_alone);
}

// Few launches are in progress at a time.
TEST(MeasureRowsTest, TimesLaunchesOfTheHost) {
  SimulatingDevice device;
  const Outcome without = MeasureOn(device, {&Large()});
  ASSERT_THAT(without.measurements, SizeIs(1));
  EXPECT_FALSE(without.measurements[0].host_seconds);
  const int launches = device.launches;
  const int waits = device.waits;

  constexpr int kLaunches = 130;
  SimulatingDevice another;
  const Outcome outcome = MeasureOn(another, {&Large()}, {}, {}, kShape, 0, {}, kLaunches);
  ASSERT_THAT(outcome.measurements, SizeIs(1));
  EXPECT_TRUE(outcome.measurements[0].host_seconds);
  EXPECT_EQ(another.launches, launches + kLaunches);
  EXPECT_EQ(another.waits, waits + 4);
}

}  // namespace
}  // namespace gemmd::bench
