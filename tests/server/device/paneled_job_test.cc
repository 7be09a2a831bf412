// SPDX-License-Identifier: Apache-2.0
//
// Jobs that are larger than the GPU's memory are computed in panels, with the same bits as when
// everything fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/matrix/sparse24.h"
#include "server/device/job.h"
#include "tests/server/worker/small_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

WorkerDeviceOptions TinyMemory(int64_t bytes = 128 << 10) {
  WorkerDeviceOptions options = QuickOptions();
  options.staging_bytes = 96 << 10;
  options.memory_limit_bytes = bytes;
  return options;
}

TEST(PaneledJobTest, GivesTheRightProduct) {
  WorkerRig rig(TinyMemory());
  SmallProduct product(200, 210, 220);
  ExpectRightWhereverItGoes(rig, product);
}

// A job with matrices of random layouts.
class AnyJob {
 public:
  AnyJob(RandomSource& random, const Device& device) {
    constexpr std::array kTypes = {ElementType::kF16,  ElementType::kBf16, ElementType::kS8,
                                   ElementType::kE4m3, ElementType::kS4,   ElementType::kB1};
    const ElementType type = kTypes[static_cast<size_t>(random.Between(0, kTypes.size() - 1))];
    problem_.m = random.Between(1, 150);
    problem_.n = random.Between(1, 150);
    problem_.k = random.Between(1, 150);
    problem_.batch = random.Between(0, 3) == 0 ? random.Between(2, 5) : 1;
    problem_.accumulation = DefaultAccumulation(type, type).value();
    const bool is_sparse = type != ElementType::kB1 && random.Between(0, 3) == 0;
    problem_.a = is_sparse ? TightSparseLayout("a", type, problem_.m, problem_.k).value()
                           : AnyLayout(random, type, problem_.m, problem_.k);
    problem_.b = AnyLayout(random, type, problem_.k, problem_.n);
    problem_.d = AnyLayout(random, problem_.accumulation, problem_.m, problem_.n);
    if (problem_.batch > 1 && random.Flip()) problem_.b.batch_stride_bytes = 0;
    if (random.Flip()) {
      problem_.beta = 2;
      problem_.c = AnyLayout(random, problem_.accumulation, problem_.m, problem_.n);
    }
    if (random.Flip()) {
      problem_.bias_axis = random.Flip() ? BiasAxis::kRows : BiasAxis::kColumns;
      problem_.bias_type = problem_.accumulation;
    }
    if (type == ElementType::kE4m3) {
      problem_.a_scale = problem_.b_scale = ScaleKind::kVector;
      if (!is_sparse && random.Flip()) problem_.a_scale = ScaleKind::kBlocks;
      if (!is_sparse && random.Flip()) problem_.b_scale = ScaleKind::kBlocks;
      problem_.a_blocks = AnyBlocks(random);
      problem_.b_blocks = AnyBlocks(random);
    }
    job_.problem = problem_;
    job_.kernel =
        Choose(Catalog(DeviceKind::kCuda), problem_, Constraints(), device.profile()).value();
    job_.workspace_bytes = job_.kernel->workspace_bytes(problem_).value();
    job_.predicted = Predict(*job_.kernel, problem_, device.profile());
    job_.d_bytes = BytesWritten(problem_);
    const JobLayout layout = LayOutJob(problem_).value();
    job_.a = is_sparse ? Keep(SparseBytes(random)) : Keep(AnyBytes(random, layout.a.bytes));
    job_.b = Keep(AnyBytes(random, layout.b.bytes));
    job_.c = Keep(AnyBytes(random, layout.c.bytes));
    job_.bias = Keep(AnyBytes(random, layout.bias.bytes));
    job_.a_scale = Keep(AnyBytes(random, layout.a_scale.bytes));
    job_.b_scale = Keep(AnyBytes(random, layout.b_scale.bytes));
  }
  AnyJob(const AnyJob&) = delete;
  AnyJob& operator=(const AnyJob&) = delete;

  Job& job() { return job_; }
  std::string text() const { return Describe(problem_); }
  const std::string& a() const { return bytes_[0]; }
  const std::string& b() const { return bytes_[1]; }

  // D, including the gaps between its lines.
  std::string Run(Device& device) {
    std::string d(static_cast<size_t>(job_.d_bytes), 'x');
    Job job = job_;
    job.d.memory = reinterpret_cast<std::byte*>(d.data());
    EXPECT_THAT(Awaited(StartJob(device, job), "the outcome of a job").status, IsOk());
    return d;
  }

 private:
  static MatrixLayout AnyLayout(RandomSource& random, ElementType type, int64_t rows,
                                int64_t columns) {
    const Order order = random.Flip() ? Order::kRowMajor : Order::kColumnMajor;
    const int64_t gap = random.Flip() ? 0 : random.Between(1, 20);
    MatrixLayout layout =
        TightLayout("x", type, order, rows + (order == Order::kColumnMajor ? gap : 0),
                    columns + (order == Order::kRowMajor ? gap : 0))
            .value();
    layout.rows = rows;
    layout.columns = columns;
    return layout;
  }
  // Blocks of lines that fit any panel, or of all lines: others divide into fewer panels.
  static BlockScale AnyBlocks(RandomSource& random) {
    return {.type = static_cast<FactorType>(random.Between(0, 2)),
            .lines = random.Flip() ? int64_t{1} << random.Between(0, 3) : 200,
            .depth = random.Flip() ? 128 : 256,
            .per_matrix = random.Flip()};
  }
  // Small numbers in every type, f32 included.
  static std::string AnyBytes(RandomSource& random, int64_t count) {
    std::string bytes(static_cast<size_t>(count), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.Bits() & 0x3f);
    return bytes;
  }
  std::string SparseBytes(RandomSource& random) {
    const SparseLayout one = SparseLayoutOf("a", problem_.a.type, problem_.m, problem_.k).value();
    std::string all;
    for (int64_t i = 0; i < problem_.batch; ++i) {
      std::string dense = AnyBytes(random, one.dense_bytes);
      std::string packed(static_cast<size_t>(one.bytes), '\0');
      PruneByMagnitude(one, reinterpret_cast<std::byte*>(dense.data()));
      EXPECT_THAT(Compress("a", one, reinterpret_cast<const std::byte*>(dense.data()),
                           reinterpret_cast<std::byte*>(packed.data())),
                  IsOk());
      all += packed;
    }
    return all;
  }
  // Keeps the bytes as two pieces.
  Source Keep(std::string bytes) {
    std::string& kept = bytes_[kept_++];
    kept = std::move(bytes);
    const Piece whole = PieceOf(kept);
    PieceList pieces;
    for (const Piece& piece : {whole.first(kept.size() / 3), whole.subspan(kept.size() / 3)}) {
      if (!piece.empty()) pieces.push_back(piece);
    }
    return pieces_.Add(std::move(pieces));
  }

  Problem problem_;
  Job job_;
  std::array<std::string, 6> bytes_;
  size_t kept_ = 0;
  SourcePieces pieces_;
};

// Memory that suffices for any of these jobs in panels.
constexpr int64_t kEnoughBytes = 64 << 10;

TEST(PaneledJobTest, GivesTheBitsOfTheWhole) {
  WorkerRig ample;
  WorkerRig tiny(TinyMemory(kEnoughBytes));
  RandomSource random;
  for (int i = 0; i < 60; ++i) {
    AnyJob job(random, ample.device());
    SCOPED_TRACE(job.text());
    EXPECT_TRUE(job.Run(tiny.device()) == job.Run(ample.device()));
  }
  EXPECT_EQ(tiny.device().condition().staging_used_bytes, 0);
}

TEST(PaneledJobTest, APanelIsPredictedItsPartOfTheTime) {
  WorkerRig rig;
  SmallProduct product(32, 8, 8);
  Job whole = product.JobFor(rig.device());
  whole.predicted = {.kernel_ns = 4000, .copy_ns = 400};
  PanelPieces pieces;
  const Panel quarter = {.matrices = {0, 1}, .rows = {8, 8}, .columns = {0, 8}};
  const Job panel = JobOfPanel(whole, {}, quarter, pieces);
  EXPECT_EQ(panel.predicted.kernel_ns, 1000);
  EXPECT_EQ(panel.predicted.copy_ns, 100);
}

// Blocks stay in place, and panels read their parts of them.
class PanelsOfBlocksTest : public testing::Test {
 protected:
  DeviceBlock BlockOf(const std::string& bytes) {
    std::promise<absl::StatusOr<DeviceBlock>> promise;
    rig_.device().memory()->Allocate(
        static_cast<int64_t>(bytes.size()),
        [&](absl::StatusOr<DeviceBlock> block) { promise.set_value(std::move(block)); });
    const DeviceBlock block = Awaited(promise.get_future(), "a block").value();
    std::promise<absl::Status> written;
    rig_.device().memory()->Write(block, 0, {PieceOf(bytes)}, [&](absl::Status status) {
      written.set_value(std::move(status));
    });
    EXPECT_THAT(Awaited(written.get_future(), "a write"), IsOk());
    return block;
  }
  std::string Read(DeviceBlock block, size_t bytes) {
    std::string to(bytes, 'x');
    std::promise<absl::Status> done;
    rig_.device().memory()->Read(block, 0,
                                 absl::MakeSpan(reinterpret_cast<std::byte*>(to.data()), bytes),
                                 [&](absl::Status status) { done.set_value(std::move(status)); });
    EXPECT_THAT(Awaited(done.get_future(), "a read"), IsOk());
    return to;
  }
  static Source In(DeviceBlock block, const Source& source) {
    return {.pieces = {}, .block = block, .offset = 0, .bytes = source.bytes};
  }

  static constexpr int64_t kDeviceBytes = 256 << 10;
  WorkerRig rig_{TinyMemory(kDeviceBytes)};
};

TEST_F(PanelsOfBlocksTest, OneOperandIsThere) {
  WorkerRig ample;
  RandomSource random;
  for (int i = 0; i < 30; ++i) {
    AnyJob job(random, ample.device());
    SCOPED_TRACE(job.text());
    const std::string want = job.Run(ample.device());
    const bool is_a = i % 2 == 0;
    // The largest batches exceed all the memory that tensors may use.
    if ((is_a ? job.a() : job.b()).size() >= size_t{180} << 10) continue;
    const DeviceBlock block = BlockOf(is_a ? job.a() : job.b());
    // Little enough that many jobs need panels, but enough for the smallest panel of any.
    const DeviceMemory& memory = *rig_.device().memory();
    const int64_t free_bytes =
        std::min(memory.capacity_bytes(), kDeviceBytes - kEnoughBytes) - memory.used_bytes();
    const int64_t others = std::min(free_bytes >> 10, int64_t{120}) << 10;
    const DeviceBlock other = BlockOf(std::string(static_cast<size_t>(others), 'o'));
    Source& source = is_a ? job.job().a : job.job().b;
    source = In(block, source);
    EXPECT_TRUE(job.Run(rig_.device()) == want);
    rig_.device().memory()->Free(block);
    rig_.device().memory()->Free(other);
  }
}

TEST_F(PanelsOfBlocksTest, DOverwritesCInItsBlock) {
  for (const int64_t n : {150, 160}) {
    SmallProduct product(180, n, 300);
    Job job = product.JobFor(rig_.device());
    job.problem.c = job.problem.d;
    job.problem.beta = 1;
    const std::string ones(static_cast<size_t>(job.d_bytes), '\0');
    const DeviceBlock block = BlockOf(ones);
    job.c = {.pieces = {}, .block = block, .offset = 0, .bytes = job.d_bytes};
    job.d = {.block = block};
    EXPECT_THAT(Awaited(StartJob(rig_.device(), job), "the outcome of a job").status, IsOk());
    EXPECT_TRUE(Read(block, ones.size()) == product.Expected());
    rig_.device().memory()->Free(block);
  }
}

// 8 rows of A alone take more.
TEST(PaneledJobTest, OneOfWhichNoPanelFitsIsRefused) {
  WorkerRig rig(TinyMemory());
  SmallProduct deep(100, 100, 10'000);
  const auto refused =
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("cuda:0 has 131072 bytes"), HasSubstr("--gpu-memory-bytes"),
                     HasSubstr("want at least"), HasSubstr("for the smallest panel")));
  EXPECT_THAT(rig.device().CheckSize(deep.problem()), refused);
  EXPECT_THAT(deep.Run(rig.device()).status, refused);
  ExpectRightProduct(rig);
}

TEST(PaneledJobTest, EndsBetweenPanelsWhenItIsAborted) {
  WorkerRig rig(TinyMemory());
  const pid_t pid = rig.device().worker_pid();
  // Long enough not to end by itself.
  SmallProduct product(1500, 1500, 200);
  SmallProduct next(20, 30, 40);
  std::future<JobOutcome> outcome = product.Start(rig.device(), 1);
  // Panels in progress let other jobs run between them.
  EXPECT_THAT(next.Run(rig.device()).status, IsOk());
  rig.device().Abort(1);
  EXPECT_THAT(Awaited(std::move(outcome), "the aborted job").status,
              StatusIs(absl::StatusCode::kCancelled));
  ExpectRightProduct(rig);
  EXPECT_EQ(rig.device().worker_pid(), pid);
  EXPECT_EQ(rig.device().condition().staging_used_bytes, 0);
}

TEST(PaneledJobTest, OneWhoseWorkerIsLostBetweenIsAborted) {
  WorkerRig rig(TinyMemory());
  const pid_t pid = rig.device().worker_pid();
  SmallProduct product(200, 210, 220);
  rig.SetScript("Launch 5 exit");
  EXPECT_THAT(product.Run(rig.device()).status, StatusIs(absl::StatusCode::kAborted));
  ExpectRestarted(rig, pid);
  EXPECT_THAT(product.Run(rig.device()).status, IsOk());
  EXPECT_TRUE(product.IsRight());
}

TEST(PaneledJobTest, OneWhoseWorkerIsLostBeforeIsUnavailable) {
  WorkerRig rig(TinyMemory());
  const pid_t pid = rig.device().worker_pid();
  SmallProduct product(200, 210, 220);
  rig.SetScript("Mark 1 exit");
  EXPECT_THAT(product.Run(rig.device()).status,
              testing::AnyOf(StatusIs(absl::StatusCode::kUnavailable),
                             StatusIs(absl::StatusCode::kAborted)));
  ExpectRestarted(rig, pid);
}

TEST(PaneledJobTest, TheDeviceGoesOnlyAfterIt) {
  WorkerRig rig(TinyMemory());
  SmallProduct product(200, 210, 220);
  std::future<JobOutcome> outcome = product.Start(rig.device());
  rig.Stop();
  EXPECT_THAT(Awaited(std::move(outcome), "the outcome of a job").status, IsOk());
  EXPECT_TRUE(product.IsRight());
}

}  // namespace
}  // namespace gemmd
