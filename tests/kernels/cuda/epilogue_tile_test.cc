// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of tiles, its threads one after the other on the host.
#include "kernels/cuda/epilogue_tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/kernels/cuda/epilogue_checks.h"

namespace gemmd {
namespace {

constexpr int kTileRows = 32;
constexpr int kTileColumns = 24;
constexpr int kStride = 27;
constexpr int kThreads = 5;

// A tile as a kernel stages it; elements outside D are NaN or some number.
template <typename Accumulator>
std::vector<Accumulator> Stage(const TileEpilogueCase& test, const StagedTile<Accumulator>& tile) {
  const Problem& problem = test.product.problem;
  std::vector<Accumulator> staged(kTileRows * kStride);
  std::memset(staged.data(), 0xff, staged.size() * sizeof(Accumulator));
  const auto* matrix = reinterpret_cast<const Accumulator*>(test.accumulators.data()) +
                       tile.batch_index * problem.m * problem.n;
  for (int64_t i = 0; i < kTileRows && tile.first_row + i < problem.m; ++i) {
    const int64_t columns = std::min<int64_t>(kTileColumns, problem.n - tile.first_column);
    std::copy_n(matrix + (tile.first_row + i) * problem.n + tile.first_column, columns,
                staged.begin() + i * kStride);
  }
  return staged;
}

template <typename Accumulator>
void ApplyInTiles(const TileEpilogueCase& test, const EpilogueParameters& parameters) {
  const Problem& problem = test.product.problem;
  StagedTile<Accumulator> tile = {.rows = kTileRows, .columns = kTileColumns, .stride = kStride};
  for (tile.batch_index = 0; tile.batch_index < problem.batch; ++tile.batch_index) {
    for (tile.first_row = 0; tile.first_row < problem.m; tile.first_row += kTileRows) {
      for (tile.first_column = 0; tile.first_column < problem.n;
           tile.first_column += kTileColumns) {
        const std::vector<Accumulator> staged = Stage(test, tile);
        tile.data = problem.has_product() ? staged.data() : nullptr;
        for (int thread = 0; thread < kThreads; ++thread) {
          ApplyEpilogueToPart<PortableEncoder>(parameters, tile, thread, kThreads);
        }
      }
    }
  }
}

std::vector<std::byte> EpilogueOnHost(const TileEpilogueCase& test) {
  const Product& product = test.product;
  const int64_t bytes = BytesOf("d", product.problem.d, product.problem.batch)->least;
  std::vector<std::byte> d(static_cast<size_t>(bytes + 2 * kGuardBytes), std::byte{0xff});
  const GemmArgs args = EpilogueArgs(product, d.data() + kGuardBytes);
  const EpilogueParameters parameters = EpilogueOf(args, test.type);
  switch (test.type) {
    case ElementType::kF32: ApplyInTiles<float>(test, parameters); break;
    case ElementType::kF64: ApplyInTiles<double>(test, parameters); break;
    default: ApplyInTiles<int32_t>(test, parameters);
  }
  return d;
}

TEST(EpilogueTileTest, EveryTypeOfCAndD) {
  RandomSource random;
  CheckEveryTypeOfCAndD(EpilogueOnHost, random);
}
TEST(EpilogueTileTest, EveryOption) {
  RandomSource random;
  CheckEveryOption(EpilogueOnHost, random);
}
TEST(EpilogueTileTest, EveryActivation) {
  RandomSource random;
  CheckEveryActivation(EpilogueOnHost, random);
}
TEST(EpilogueTileTest, OddShapes) {
  RandomSource random;
  CheckOddShapes(EpilogueOnHost, random);
}
TEST(EpilogueTileTest, Plain) {
  RandomSource random;
  CheckPlain(EpilogueOnHost, random);
}
TEST(EpilogueTileTest, WithoutProduct) {
  RandomSource random;
  CheckWithoutProduct(EpilogueOnHost, random);
}

}  // namespace
}  // namespace gemmd
