// SPDX-License-Identifier: Apache-2.0
//
// Products that run as one have the bits that they have alone, and products that differ do not run
// as one.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <string>

#include "server/product/scheduler.h"
#include "tests/server/product/joinable_product.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

using Shape = JoinableProduct::Shape;

constexpr std::string_view kHalves = "mma.m16n8k16.f32.f16.f16.f32";
constexpr std::string_view kByteKernel = "mma.m16n8k32.s32.s8.s8.s32";

class JoiningTest : public testing::TestWithParam<std::string_view> {
 protected:
  JoinableProduct& Add(Shape shape, const std::vector<std::byte>* b = nullptr) {
    return products_.emplace_back(random_, kernel_, shape, b);
  }

  std::vector<std::byte> RandomB(int64_t elements) {
    return RandomBytes(random_, elements * BitsOf(kernel_.b) / 8);
  }

  std::vector<const Job*> jobs() const {
    std::vector<const Job*> jobs;
    for (const JoinableProduct& product : products_) jobs.push_back(&product.job);
    return jobs;
  }

  void ExpectTheSameBits(Joining joining) {
    for (const Job* const job : jobs()) {
      const JoinKeys keys = JoinKeysOf(*job);
      const JoinKeys first = JoinKeysOf(products_.front().job);
      const bool is_stack = joining == Joining::kStacked;
      ASSERT_NE(is_stack ? keys.stacked : keys.batched, JoinKey());
      ASSERT_EQ(is_stack ? keys.stacked : keys.batched, is_stack ? first.stacked : first.batched);
    }
    const absl::StatusOr<std::unique_ptr<JoinedJob>> joined = JoinedJob::Of(joining, 1, jobs());
    ASSERT_TRUE(joined.ok()) << joined.status();
    ASSERT_TRUE((*joined)->Gather().ok());
    const std::vector<std::byte> d = ResultOf((*joined)->job(), std::byte{0xa5});
    absl::Span<const std::byte> left = d;
    for (size_t i = 0; i < products_.size(); ++i) {
      const std::vector<std::byte> alone = ResultOf(products_[i].job, std::byte{0x5a});
      ASSERT_GE(left.size(), alone.size());
      const absl::StatusOr<HeldBytes> part = CopyOfPart(left.first(alone.size()));
      ASSERT_TRUE(part.ok());
      EXPECT_EQ(part->bytes(), absl::MakeConstSpan(alone)) << i;
      left.remove_prefix(alone.size());
    }
    EXPECT_TRUE(left.empty());
  }

  RandomSource random_;
  const Kernel& kernel_ = SimulatedKernel(GetParam());
  std::deque<JoinableProduct> products_;
};

TEST_P(JoiningTest, StackedProductsHaveTheirOwnBits) {
  const std::vector<std::byte> b = RandomB(24 * 40);
  for (const int64_t m : {1, 17, 3, 64, 8}) Add({.m = m, .n = 24, .k = 40}, &b);
  ExpectTheSameBits(Joining::kStacked);
}

TEST_P(JoiningTest, StackedProductsHaveTheirOwnEpilogues) {
  const std::vector<std::byte> b = RandomB(24 * 40);
  const std::vector<std::byte> bias = RandomBytes(random_, 24 * 4);
  for (const int64_t m : {5, 1, 16}) Add({.m = m, .n = 24, .k = 40}, &b).AddEpilogue(bias);
  ExpectTheSameBits(Joining::kStacked);
}

TEST_P(JoiningTest, BatchedProductsHaveTheirOwnBits) {
  const std::vector<std::byte> bias = RandomBytes(random_, 9 * 4);
  for (const int64_t batch : {1, 3, 1, 2}) {
    Add({.m = 18, .n = 9, .k = 33, .batch = batch}).AddEpilogue(bias);
  }
  ExpectTheSameBits(Joining::kBatched);
}

TEST_P(JoiningTest, ManySmallShapes) {
  for (int64_t m = 1; m <= 17; m += 4) {
    for (int64_t n = 1; n <= 9; n += 4) {
      for (const int64_t k : {1, 16, 35}) {
        products_.clear();
        const std::vector<std::byte> b = RandomB(k * n);
        Add({.m = m, .n = n, .k = k}, &b);
        Add({.m = m, .n = n, .k = k}, &b);
        ExpectTheSameBits(Joining::kStacked);
        // One matrix for all is one matrix of the batch.
        ExpectTheSameBits(Joining::kBatched);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, JoiningTest, testing::Values(kHalves, kByteKernel),
                         [](const auto& one) { return one.param == kHalves ? "f16" : "s8"; });

// Each difference prevents two products from running as one.
TEST(JoinKeysTest, EveryDifferenceCounts) {
  RandomSource random;
  const Kernel& kernel = SimulatedKernel(kHalves);
  const std::vector<std::byte> b = RandomBytes(random, 2 * 8 * 16);
  const std::vector<std::byte> bias = RandomBytes(random, 8 * 4);
  const std::vector<std::byte> other_bias = RandomBytes(random, 8 * 4);
  const Shape shape = {.m = 4, .n = 8, .k = 16};
  const auto keys_of = [&](const std::function<void(JoinableProduct&)>& change) {
    JoinableProduct product(random, kernel, shape, &b);
    change(product);
    return JoinKeysOf(product.job);
  };
  const JoinKeys plain = keys_of([](JoinableProduct&) {});
  EXPECT_NE(plain.stacked, JoinKey());
  EXPECT_NE(plain.batched, JoinKey());
  EXPECT_EQ(keys_of([](JoinableProduct&) {}).stacked.hash(), plain.stacked.hash());
  JoinableProduct low(random, kernel, shape, &b);
  EXPECT_NE(JoinKeysOf(low.job, Priority::kLow).stacked, plain.stacked);
  EXPECT_NE(JoinKeysOf(low.job, Priority::kLow).batched, plain.batched);
  const std::vector<std::function<void(JoinableProduct&)>> changes = {
      [](JoinableProduct& one) { one.job.problem.alpha = 2; },
      [](JoinableProduct& one) { one.job.problem.activation = Activation::kRelu; },
      [](JoinableProduct& one) { one.job.problem.accumulation = ElementType::kF16; },
      [](JoinableProduct& one) { one.job.problem.a_scale = ScaleKind::kTensor; },
      [](JoinableProduct& one) { one.job.problem.b_scale = ScaleKind::kTensor; },
      [](JoinableProduct& one) { one.job.problem.d.type = ElementType::kTf32; },
      [](JoinableProduct& one) { one.job.problem.b.order = Order::kRowMajor; },
      [&](JoinableProduct& one) {
        one.job.kernel = &SimulatedKernel("mma.m16n8k8.f32.f16.f16.f32");
      },
      [&](JoinableProduct& one) { one.AddEpilogue(bias); },
      [&](JoinableProduct& one) { one.AddEpilogue(other_bias); },
  };
  std::vector<JoinKeys> all = {plain};
  for (const auto& change : changes) all.push_back(keys_of(change));
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(all[i].stacked, all[j].stacked) << i << " " << j;
      EXPECT_NE(all[i].batched, all[j].batched) << i << " " << j;
    }
  }
}

// Factors of blocks of a resident B are those of all products.
TEST(JoinKeysTest, ProductsOfAResidentBWithFactorsAreStacked) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const Kernel& kernel = SimulatedKernel(kHalves);
  const std::vector<std::byte> b = RandomBytes(random, 24 * 40);
  std::vector<std::byte> factors(24 * 3);
  for (std::byte& factor : factors) factor = static_cast<std::byte>(random.Between(120, 134));
  SourcePieces pieces;
  std::deque<JoinableProduct> products;
  std::vector<const Job*> jobs;
  for (const int64_t m : {1, 9, 4}) {
    Job& job = products.emplace_back(random, kernel, Shape{.m = m, .n = 24, .k = 40}, &b).job;
    job.problem.b = *TightLayout("b", ElementType::kE4m3, Order::kColumnMajor, 40, 24);
    job.problem.b_scale = ScaleKind::kBlocks;
    job.problem.b_blocks = {.type = FactorType::kUe8m0, .lines = 1, .depth = 16};
    job.b_scale = pieces.Add(Piece(factors));
    job.b.is_resident = job.b_scale.is_resident = true;
    job.workspace_bytes = kernel.workspace_bytes(job.problem).value();
    jobs.push_back(&job);
  }
  const JoinKeys first = JoinKeysOf(*jobs.front());
  ASSERT_NE(first.stacked, JoinKey());
  for (const Job* const job : jobs) {
    EXPECT_EQ(JoinKeysOf(*job).stacked, first.stacked);
    EXPECT_EQ(JoinKeysOf(*job).batched, JoinKey());
  }
  const absl::StatusOr<std::unique_ptr<JoinedJob>> joined =
      JoinedJob::Of(Joining::kStacked, 1, jobs);
  ASSERT_TRUE(joined.ok()) << joined.status();
  ASSERT_TRUE((*joined)->Gather().ok());
  std::vector<std::byte> alone;
  for (const Job* const job : jobs) {
    const std::vector<std::byte> d = ResultOf(*job, std::byte{0x5a});
    alone.insert(alone.end(), d.begin(), d.end());
  }
  EXPECT_TRUE(ResultOf((*joined)->job(), std::byte{0xa5}) == alone);

  Job other = *jobs.front();
  other.b_scale.is_resident = false;  // They came with the product.
  EXPECT_EQ(JoinKeysOf(other).stacked, JoinKey());
  other = *jobs.front();
  other.problem.b_blocks.lines = 2;
  EXPECT_NE(JoinKeysOf(other).stacked, first.stacked);
  const std::vector<std::byte> others = factors;
  other = *jobs.front();
  other.b_scale = pieces.Add(Piece(others));
  other.b_scale.is_resident = true;
  EXPECT_NE(JoinKeysOf(other).stacked, first.stacked);
}

// Products that could not run as one without other bits, other bytes or another product's error.
TEST(JoinKeysTest, SomeRunAlone) {
  RandomSource random;
  const Kernel& kernel = SimulatedKernel(kHalves);
  const std::vector<std::function<void(Job&)>> changes = {
      [](Job& job) { job.problem.alpha = 0; },
      [](Job& job) { job.problem.a.sparsity = Sparsity::k2To4; },
      [](Job& job) { job.problem.a_scale = ScaleKind::kBlocks; },
      [](Job& job) { job.problem.b_scale = ScaleKind::kBlocks; },
      [](Job& job) { job.d.block = 1; },
      [](Job& job) { job.d = {.memory = reinterpret_cast<std::byte*>(&job), .is_new = true}; },
      [](Job& job) {
        job.d.memory = reinterpret_cast<std::byte*>(&job);
        job.problem.d.leading_dimension += 1;
      },
      [](Job& job) { job.problem.batch = 0; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    JoinableProduct product(random, kernel, {});
    changes[i](product.job);
    EXPECT_EQ(JoinKeysOf(product.job).stacked, JoinKey()) << i;
    EXPECT_EQ(JoinKeysOf(product.job).batched, JoinKey()) << i;
  }
  static Kernel varying = kernel;
  varying.batch_invariant = false;
  JoinableProduct product(random, kernel, {});
  product.job.kernel = &varying;
  EXPECT_EQ(JoinKeysOf(product.job).stacked, JoinKey());
  product.job.may_vary = product.job.b.is_resident = true;  // Only libraries on `cpu`.
  EXPECT_EQ(JoinKeysOf(product.job).stacked, JoinKey());
}

// A kernel of `cpu` whose bits depend on m can be stacked for requests that allow it, if they share
// B.
TEST(JoinKeysTest, FloatsOnCpuAreStackedWhereTheirBitsMayVary) {
  RandomSource random;
  int varying = 0;
  for (const Kernel& kernel : Catalog(DeviceKind::kCpu)) {
    if (kernel.a != ElementType::kF32 || kernel.b != ElementType::kF32) continue;
    ASSERT_TRUE(MayVaryJoined(kernel)) << kernel.name;
    ++varying;
    JoinableProduct product(random, kernel, {});
    product.job.b.is_resident = true;
    EXPECT_EQ(JoinKeysOf(product.job).stacked, JoinKey()) << kernel.name;
    product.job.may_vary = true;
    EXPECT_NE(JoinKeysOf(product.job).stacked, JoinKey()) << kernel.name;
    EXPECT_EQ(JoinKeysOf(product.job).batched, JoinKey()) << kernel.name;
    product.job.b.is_resident = false;  // No other product has the bytes of its message.
    EXPECT_EQ(JoinKeysOf(product.job).stacked, JoinKey()) << kernel.name;
    product.job.b.is_resident = true;
    product.job.problem.a.order = Order::kColumnMajor;  // Its rows cannot be appended to others.
    EXPECT_EQ(JoinKeysOf(product.job).stacked, JoinKey()) << kernel.name;
  }
  EXPECT_GT(varying, 0);
}

// A device gathers tensors in its own memory, but not the bytes of requests.
TEST(JoinKeysTest, TensorsJoinNoBytesOfRequests) {
  RandomSource random;
  JoinableProduct product(random, SimulatedKernel(kHalves), {});
  const JoinKeys sent = JoinKeysOf(product.job);
  std::byte d = {};
  const std::vector<std::function<void(Job&)>> changes = {
      [](Job& job) { job.a.is_resident = true; },
      [](Job& job) { job.b.is_resident = true; },
      [&](Job& job) { job.d.memory = &d; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Job job = product.job;
    changes[i](job);
    EXPECT_NE(JoinKeysOf(job).stacked, JoinKey()) << i;
    EXPECT_NE(JoinKeysOf(job).stacked, sent.stacked) << i;
    EXPECT_NE(JoinKeysOf(job).batched, sent.batched) << i;
  }
}

TEST(OverwrittenPlacesTest, ThoseThatOverlapAreTheSame) {
  std::vector<std::byte> memory(100);
  OverwrittenPlaces places;
  const auto add = [&](size_t begin, int64_t bytes) {
    Job job;
    job.d.memory = memory.data() + begin;
    job.d_bytes = bytes;
    return places.Add(job);
  };
  EXPECT_TRUE(add(40, 20));
  EXPECT_TRUE(add(40, 20));
  EXPECT_TRUE(add(60, 10));
  EXPECT_TRUE(add(30, 10));
  EXPECT_FALSE(add(40, 10));
  EXPECT_FALSE(add(59, 1));
  EXPECT_FALSE(add(69, 5));
  EXPECT_FALSE(add(20, 11));
  EXPECT_FALSE(add(10, 80));
  EXPECT_TRUE(add(10, 20));
  EXPECT_TRUE(places.Add(Job())) << "the device gives the memory of D";
}

TEST(JoinKeysTest, GapsAndOtherOrdersAreNotStacked) {
  RandomSource random;
  const std::vector<std::function<void(Problem&)>> changes = {
      [](Problem& problem) { problem.a.order = Order::kColumnMajor; },
      [](Problem& problem) { problem.a.leading_dimension += 1; },
      [](Problem& problem) { problem.d.order = Order::kColumnMajor; },
      [](Problem& problem) { problem.d.leading_dimension += 1; },
      [](Problem& problem) { problem.bias_axis = BiasAxis::kRows; },
      [](Problem& problem) { problem.a_scale = ScaleKind::kVector; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    JoinableProduct product(random, SimulatedKernel(kHalves), {});
    changes[i](product.job.problem);
    EXPECT_EQ(JoinKeysOf(product.job).stacked, JoinKey()) << i;
  }
}

// Blocks of a device: one for all, or none.
TEST(JoinKeysTest, AreThoseOfTheSameBlock) {
  RandomSource random;
  const auto keys_of = [&](DeviceBlock block, int64_t offset) {
    JoinableProduct product(random, SimulatedKernel(kHalves), {});
    product.job.b = {.pieces = {}, .block = block, .offset = offset, .bytes = product.job.b.bytes};
    return JoinKeysOf(product.job);
  };
  EXPECT_NE(keys_of(1, 0).stacked, JoinKey());
  EXPECT_EQ(keys_of(1, 0).stacked, keys_of(1, 0).stacked);
  EXPECT_EQ(keys_of(1, 0).batched, keys_of(1, 0).batched);
  EXPECT_NE(keys_of(1, 0).stacked, keys_of(2, 0).stacked);
  EXPECT_NE(keys_of(1, 0).batched, keys_of(2, 0).batched);
  EXPECT_NE(keys_of(1, 0).stacked, keys_of(1, 256).stacked);
  EXPECT_NE(keys_of(1, 0).batched, keys_of(1, 256).batched);
}

}  // namespace
}  // namespace gemmd
