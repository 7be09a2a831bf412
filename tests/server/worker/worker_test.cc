// SPDX-License-Identifier: Apache-2.0
//
// The worker's own loop, in a thread, with the test as the daemon: records that no daemon sends,
// memory, measurements.
#include "server/worker/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "kernels/kernel.h"
#include "server/worker/gpu_memory.h"
#include "tests/server/worker/fake_gpu_runtime.h"
#include "tests/server/worker/hooked_runtime.h"
#include "tests/server/worker/worker_fixture.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

TEST_F(WorkerTest, EndsWellWithTheFront) { EXPECT_THAT(End(), IsOk()); }

TEST_F(WorkerTest, RefusesJobsThatAreNoneAndGoesOn) {
  EXPECT_THAT(StatusOfJob(JobOfRows(10)), IsOk());
  EXPECT_EQ(staging_.control().started_ids[0], 1u);
  JobRequest request = JobOfRows(10);
  request.problem.k = 2;
  EXPECT_THAT(StatusOfJob(request), StatusIs(absl::StatusCode::kInvalidArgument));
  request = JobOfRows(10);
  request.kernel = 1 << 30;
  EXPECT_THAT(StatusOfJob(request), StatusIs(absl::StatusCode::kInvalidArgument));
  // 2 KiB of A, 256 bytes for B, 4 KiB of D.
  EXPECT_THAT(StatusOfJob(JobOfRows(1024)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "staging: got 4096 bytes from 2304 on, want a range of its 4096"));
  EXPECT_THAT(StatusOfJob(JobOfRows(10)), IsOk());
}

// The list of the parts is in the staging area, and may contain anything.
TEST_F(WorkerTest, RefusesPartsThatAreNone) {
  JobRequest request = JobOfRows(10);
  request.places.a.parts = 2;
  const JobLayout layout = LayOutJob(request.problem, request.places).value();
  const auto status_of = [&](const PlacedPart& first, const PlacedPart& second) {
    const std::array<PlacedPart, 2> parts = {first, second};
    std::memcpy(staging_.matrices().data() + layout.parts.offset, parts.data(), sizeof(parts));
    return StatusOfJob(request);
  };
  const auto is_invalid = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status_of({.block = 9, .bytes = 10}, {.block = 9, .bytes = 10}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no block 9")));
  EXPECT_THAT(status_of({.block = 0, .bytes = 10}, {.block = 9, .bytes = 10}), is_invalid);
  EXPECT_THAT(status_of({.block = 9, .bytes = 21}, {}), is_invalid);
  EXPECT_THAT(status_of({.block = 9, .bytes = -1}, {.block = 9, .bytes = 21}), is_invalid);
  request.places.a.parts = kMaxParts + 1;
  EXPECT_THAT(StatusOfJob(request), is_invalid);
  request.places.a = {.block = 1, .offset = 0, .parts = 1};
  EXPECT_THAT(StatusOfJob(request), is_invalid);
  request.places = {};
  request.places.bias.parts = 1;
  EXPECT_THAT(StatusOfJob(request), is_invalid);
  EXPECT_THAT(StatusOfJob(JobOfRows(10)), IsOk());
}

// One job makes the form that a kernel derives from B, and another job finds it, in a block that
// outlives both. A launch in panels does without.
TEST_F(WorkerTest, KeepsWhatIsMadeOfAnOperand) {
  JobRequest request = JobOfRows(600);
  const Kernel& kernel = Catalog(DeviceKind::kCuda)[request.kernel];
  const int64_t bytes = kernel.derived(request.problem, mma::Operand::kB).value().bytes;
  ASSERT_GT(bytes, 0);
  constexpr uint64_t kBlock = 5;
  ASSERT_THAT(
      SendRecord(front_,
                 MemoryRequest{
                     .id = 7, .action = MemoryAction::kAllocate, .block = kBlock, .bytes = bytes}),
      IsOk());
  ASSERT_THAT(Receive<Result>()->status.get(), IsOk());
  request.id = 8;
  request.staged_d = LayOutJob(request.problem).value().input_bytes;
  const auto run = [&](const FormPlace& place) {
    request.places.b_form = place;
    EXPECT_THAT(SendRecord(front_, request), IsOk());
    return Receive<Result>().value();
  };
  const FormPlace place = {.block = kBlock, .bytes = bytes};
  EXPECT_EQ(run({}).made_forms, 0U);
  Result made = run(place);
  EXPECT_THAT(made.status.get(), IsOk());
  EXPECT_EQ(made.made_forms, 1U);
  FormPlace found = place;
  found.is_made = 1;
  EXPECT_THAT(run(found).status.get(), IsOk());

  request.predicted_ns = 30'000'000;
  Result divided = run(place);
  EXPECT_THAT(divided.status.get(), IsOk());
  EXPECT_EQ(divided.made_forms, 0U);
  request.predicted_ns = 0;

  const int64_t b_offset = LayOutJob(request.problem).value().b.offset;
  staging_.matrices()[static_cast<size_t>(b_offset)] ^= std::byte{1};
  EXPECT_THAT(run(found).status.get(), StatusIs(absl::StatusCode::kInternal)) << "of another B";
  EXPECT_THAT(run(place).status.get(), IsOk());
  EXPECT_THAT(run({.block = kBlock, .bytes = bytes - 1}).status.get(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("form")));
  EXPECT_THAT(run({.block = kBlock + 1, .bytes = bytes}).status.get(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

class SmallJobTest : public WorkerTest {
 protected:
  GpuRuntime& runtime() override { return runtime_; }
  int64_t staging_bytes() const override { return 2 << 20; }

  // Read them after the worker has answered.
  std::atomic<int> copies_in_ = 0;
  std::atomic<int> copies_out_ = 0;
  std::atomic<int> other_lanes_ = 0;
  HookedRuntime runtime_{fake_, [this](const GpuCall& call, const HookedRuntime::PassOn& pass_on) {
                           const bool is_out = call.function == "CopyOut";
                           if (call.function == "CopyIn") ++copies_in_;
                           if (is_out) ++copies_out_;
                           if (is_out && call.lane != Lane::kCompute) ++other_lanes_;
                           return pass_on();
                         }};
};

// A and D of f16 and f32 take six bytes per row, B 256.
TEST_F(SmallJobTest, GoesThroughOneLaneWhereItIsAlone) {
  constexpr int64_t kMaxRows = ((1 << 20) - kJobAlignment) / 6 / kJobAlignment * kJobAlignment;
  EXPECT_THAT(StatusOfJob(JobOfRows(kMaxRows)), IsOk());
  EXPECT_EQ(copies_out_, 1);
  EXPECT_EQ(other_lanes_, 0);
  EXPECT_THAT(StatusOfJob(JobOfRows(kMaxRows + kJobAlignment)), IsOk());
  EXPECT_EQ(copies_out_, 2);
  EXPECT_EQ(other_lanes_, 1);
}

// Each size is the first or last of its kind: D too short for a whole mark; A, B and D in place;
// only D in place; nothing in place.
TEST_F(SmallJobTest, IsComputedWhereItIsStaged) {
  struct Case {
    int64_t rows;
    int copies_in;
    int copies_out;
  };
  constexpr int64_t kInputRows = (kMaxReadInPlace - kJobAlignment) / 2;
  constexpr int64_t kRows = kMaxWrittenInPlace / 4;
  for (const Case& one : {Case{3, 1, 1}, Case{4, 0, 0}, Case{kInputRows, 0, 0},
                          Case{kInputRows + 1, 1, 0}, Case{kRows, 1, 0}, Case{kRows + 1, 1, 1}}) {
    SCOPED_TRACE(one.rows);
    const JobRequest request = JobOfRows(one.rows);
    const JobLayout layout = LayOutJob(request.problem).value();
    const absl::Span<std::byte> staged = staging_.matrices();
    std::fill(staged.begin(), staged.end(), std::byte{0});
    const auto fill = [&](const ByteRange& range, uint16_t value) {
      for (int64_t at = range.offset; at < range.offset + range.bytes; at += sizeof(value)) {
        std::memcpy(&staged[static_cast<size_t>(at)], &value, sizeof(value));
      }
    };
    fill(layout.a, 0x3c00);  // 1
    fill(layout.b, 0x4200);  // 3
    copies_in_ = copies_out_ = 0;
    ASSERT_THAT(StatusOfJob(request), IsOk());
    EXPECT_EQ(copies_in_, one.copies_in);
    EXPECT_EQ(copies_out_, one.copies_out);
    std::vector<float> d(static_cast<size_t>(one.rows));
    std::memcpy(d.data(), &staged[static_cast<size_t>(layout.d.offset)], d.size() * sizeof(float));
    EXPECT_THAT(d, testing::Each(3.0F));
  }
}

TEST_F(WorkerTest, EndsAtRecordsThatAreNone) {
  EXPECT_THAT(SendRecord(front_, Result()), IsOk());
  thread_.join();
  EXPECT_THAT(end_, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("record: got kind 5")));
}

TEST_F(WorkerTest, Measures) {
  EXPECT_THAT(SendRecord(front_, MeasureRequest()), IsOk());
  const size_t kernels = Catalog(DeviceKind::kCuda).size();
  GpuRates rates;
  while (rates.kernel_rates.size() < kernels) {
    const absl::StatusOr<RatesPart> part = Receive<RatesPart>();
    ASSERT_THAT(part, IsOk());
    ASSERT_THAT(AppendRates(*part, kernels, rates), IsOk());
  }
  EXPECT_THAT(rates.kernel_rates, testing::Each(1e9));
  EXPECT_EQ(rates.memory_bytes_per_second, 10e9);
  EXPECT_EQ(rates.copied_bytes_per_second, 5e9);
}

TEST(RatesPartTest, OnlyTheNextOneIsTaken) {
  GpuRates rates;
  RatesPart part;
  part.kernels = 300;
  part.count = 256;
  part.kernel_rates[255] = 7;
  RatesPart late = part;
  late.first = 1;
  EXPECT_THAT(AppendRates(late, 300, rates),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "rates: got 256 from 1 of 300 kernels, want 1 to 256 from 0 of 300"));
  EXPECT_THAT(AppendRates(part, 299, rates), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_THAT(AppendRates(part, 300, rates), IsOk());
  EXPECT_EQ(rates.kernel_rates[255], 7);
  part.first = 256;
  part.count = 45;
  EXPECT_THAT(AppendRates(part, 300, rates),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want 1 to 44 from 256")));
  part.count = 0;
  EXPECT_THAT(AppendRates(part, 300, rates), StatusIs(absl::StatusCode::kInvalidArgument));
  part.count = 44;
  EXPECT_THAT(AppendRates(part, 300, rates), IsOk());
  EXPECT_EQ(rates.kernel_rates.size(), 300U);
}

// Its GPU refuses to launch.
class FailedJobTest : public WorkerTest {
 protected:
  GpuRuntime& runtime() override { return runtime_; }

  // Since the last launch. Read it after the worker has answered.
  std::atomic<int> waits_ = 0;
  HookedRuntime runtime_{fake_, [this](const GpuCall& call, const HookedRuntime::PassOn& pass_on) {
                           if (call.function == "Wait") ++waits_;
                           if (call.function != "Launch") return pass_on();
                           waits_ = 0;
                           return absl::InternalError("no launch today");
                         }};
};

// Its copies may still be in progress, and the next job gets the same memory.
TEST_F(FailedJobTest, TheGpuIsWaitedForBeforeTheAnswer) {
  EXPECT_THAT(StatusOfJob(JobOfRows(10)), StatusIs(absl::StatusCode::kInternal, "no launch today"));
  EXPECT_EQ(waits_, 1);
}

// Counts blocks and takes a fixed time for everything.
class CountingRuntime final : public FakeGpuRuntime {
 public:
  absl::StatusOr<std::byte*> RegisterStaging(absl::Span<std::byte> staging) override {
    return staging.data();
  }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    sizes.push_back(bytes);
    if (bytes > available) return absl::ResourceExhaustedError("full");
    ++blocks;
    return &block;
  }
  void Free(std::byte*) override { --blocks; }
  absl::Status CopyIn(Lane, std::byte*, absl::Span<const std::byte>) override {
    return absl::OkStatus();
  }
  absl::Status CopyOut(Lane, absl::Span<std::byte>, const std::byte*) override {
    return absl::OkStatus();
  }
  absl::Status Clear(Lane, std::byte*, int64_t) override { return absl::OkStatus(); }
  absl::Status Launch(Lane, const Kernel& kernel, const GemmArgs& args) override {
    if (kernel.instruction->is_sparse()) return absl::FailedPreconditionError("no code");
    ++launches;
    last_operations = static_cast<double>(Operations(args.problem));
    return args.problem.has_product() ? Validate(args.problem) : absl::InternalError("nothing");
  }
  absl::StatusOr<int64_t> NanosecondsBetween(Moment, Moment) override { return 1000; }

  std::byte block = {};
  std::vector<int64_t> sizes;
  int64_t available = int64_t{1} << 40;
  int blocks = 0;
  int launches = 0;
  double last_operations = 0;
};

// A range of the arena, reserved for as long as this object lives.
class Reserved {
 public:
  Reserved(DeviceArena& arena, int64_t bytes) : arena_(arena), range_(arena.Reserve(bytes)) {}
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() {
    if (range_.ok()) arena_.GiveBack(*range_);
  }
  absl::Status status() const { return range_.status(); }

 private:
  DeviceArena& arena_;
  absl::StatusOr<DeviceArena::Range> range_;
};

TEST(DeviceArenaTest, KeepsItsSlabs) {
  CountingRuntime runtime;
  {
    DeviceArena arena(runtime, 12 * kMebi);
    for (const int64_t bytes : {int64_t{0}, int64_t{100}, 2 * kMebi, int64_t{1}}) {
      EXPECT_THAT(Reserved(arena, bytes).status(), IsOk());
    }
    EXPECT_THAT(Reserved(arena, 2 * kMebi + 1).status(), IsOk());
    EXPECT_EQ(runtime.blocks, 2);
    const Reserved first(arena, 4 * kMebi);
    const Reserved second(arena, 2 * kMebi);
    EXPECT_EQ(runtime.blocks, 2);
    EXPECT_EQ(arena.bytes(), 6 * kMebi);
    const Reserved third(arena, 5 * kMebi + 1);
    EXPECT_THAT(third.status(), IsOk());
    EXPECT_EQ(arena.bytes(), 12 * kMebi);
  }
  EXPECT_EQ(runtime.blocks, 0);
  EXPECT_THAT(runtime.sizes, testing::ElementsAre(2 * kMebi, 4 * kMebi, 6 * kMebi));
}

TEST(DeviceArenaTest, MakesRoomOfWhatNobodyUses) {
  CountingRuntime runtime;
  DeviceArena arena(runtime, 8 * kMebi);
  EXPECT_THAT(Reserved(arena, 2 * kMebi).status(), IsOk());
  EXPECT_THAT(Reserved(arena, 8 * kMebi).status(), IsOk());
  EXPECT_EQ(runtime.blocks, 1);
  const Reserved some(arena, 100);
  EXPECT_THAT(Reserved(arena, 8 * kMebi).status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Reserved(arena, 7 * kMebi).status(), IsOk());
}

TEST(DeviceArenaTest, TakesNoMoreThanItMayAndThanThereIs) {
  CountingRuntime runtime;
  DeviceArena arena(runtime, 8 * kMebi);
  EXPECT_THAT(Reserved(arena, 8 * kMebi + 1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 8388608")));
  EXPECT_THAT(Reserved(arena, 2 * kMebi).status(), IsOk());
  runtime.available = 4 * kMebi;
  EXPECT_THAT(Reserved(arena, 6 * kMebi).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, "full"));
  EXPECT_EQ(runtime.blocks, 0);
  EXPECT_THAT(Reserved(arena, 3 * kMebi).status(), IsOk());
  EXPECT_EQ(runtime.blocks, 1);
}

TEST(GpuRatesTest, MeasuresEveryRowThatTheGpuRuns) {
  CountingRuntime runtime;
  GpuDescription gpu;
  gpu.target = {.kind = DeviceKind::kCuda, .chip = mma::Chip::kSm90, .multiprocessors = 132};
  gpu.free_memory_bytes = int64_t{1} << 34;
  std::vector<std::byte> staging(kMebi);
  GpuRates rates;
  ASSERT_THAT(MeasureGpuRates(runtime, gpu, absl::MakeSpan(staging), rates), IsOk());
  const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
  ASSERT_EQ(rates.kernel_rates.size(), kernels.size());
  int measured = 0;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const bool runs = kernels[i].available(gpu.target).ok() && !kernels[i].instruction->is_sparse();
    EXPECT_EQ(rates.kernel_rates[i] > 0, runs) << kernels[i].name;
    measured += runs ? 1 : 0;
  }
  EXPECT_GT(measured, 100);
  EXPECT_EQ(runtime.launches, 4 * measured);
  EXPECT_DOUBLE_EQ(rates.memory_bytes_per_second, 256.0 * kMebi * 1e6);
  EXPECT_DOUBLE_EQ(rates.copied_bytes_per_second, 1.0 * kMebi * 1e6);
  EXPECT_EQ(runtime.blocks, 0);
  EXPECT_NE(staging[0], staging[1]);
}

}  // namespace
}  // namespace gemmd
