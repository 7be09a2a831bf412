// SPDX-License-Identifier: Apache-2.0
//
// The epilogue on a GPU gives the same bytes as on the CPU and writes nothing outside D.
#include "kernels/cuda/epilogue.h"

#include "kernels/cuda/device/epilogue/epilogue_alone.h"
#include "tests/gpu/epilogue_kernels.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/kernels/cuda/epilogue_checks.h"

namespace gemmd {
namespace {

absl::Span<const float> ScaleOn(const DeviceCopy& copy, size_t size) {
  return {reinterpret_cast<const float*>(copy.data()), size};
}

// Calls launch(args, parameters, accumulators, stream) with everything on the GPU; returns D.
template <typename Launch>
std::vector<std::byte> OnGpu(const TileEpilogueCase& test, const Launch& launch) {
  const Product& product = test.product;
  const Problem& problem = product.problem;
  const int64_t bytes = BytesOf("d", problem.d, problem.batch)->least;
  const Stream stream = MakeStream();
  const DeviceCopy d(
      std::vector<std::byte>(static_cast<size_t>(bytes + 2 * kGuardBytes), std::byte{0xff}));
  const DeviceCopy c(product.c);
  const DeviceCopy bias(product.bias);
  const DeviceCopy accumulators(test.accumulators);
  const DeviceCopy a_scale = DeviceCopy::Of(product.a_scale);
  const DeviceCopy b_scale = DeviceCopy::Of(product.b_scale);
  if (d.data() == nullptr) return {};
  const GemmArgs args = {.problem = problem,
                         .target = {},
                         .a = nullptr,
                         .b = nullptr,
                         .c = c.data(),
                         .bias = bias.data(),
                         .a_scale = ScaleOn(a_scale, product.a_scale.size()),
                         .b_scale = ScaleOn(b_scale, product.b_scale.size()),
                         .d = d.data() + kGuardBytes,
                         .workspace = {}};
  ExpectDone(launch(args, EpilogueOf(args, test.type), accumulators.data(), stream.get()));
  return d.Read(stream);
}

std::vector<std::byte> ThroughTiles(const TileEpilogueCase& test) {
  return OnGpu(test, [&](const GemmArgs& args, const EpilogueParameters& parameters,
                         const std::byte* accumulators, CUstream_st* stream) {
    return LaunchTileEpilogue(parameters, test.type, accumulators, args.problem.batch, stream);
  });
}

// Chooses as kernels do.
std::vector<std::byte> DirectlyWhereItCan(const TileEpilogueCase& test) {
  return OnGpu(test, [&](const GemmArgs& args, const EpilogueParameters& parameters,
                         const std::byte* accumulators, CUstream_st* stream) {
    return parameters.stores_directly ? LaunchDirectEpilogue(parameters, test.type, accumulators,
                                                             args.problem.batch, stream)
                                      : LaunchTileEpilogue(parameters, test.type, accumulators,
                                                           args.problem.batch, stream);
  });
}

std::vector<std::byte> WithoutProduct(const TileEpilogueCase& test) {
  return OnGpu(test, [&](const GemmArgs& args, const EpilogueParameters&, const std::byte*,
                         CUstream_st* stream) {
    return LaunchEpilogueAlone(args, test.type, SumsInMemory(), stream);
  });
}

class EpilogueOnGpuTest : public GpuTest {};

TEST_F(EpilogueOnGpuTest, EveryTypeOfCAndD) {
  RandomSource random;
  CheckEveryTypeOfCAndD(ThroughTiles, random);
}

TEST_F(EpilogueOnGpuTest, EveryOption) {
  RandomSource random;
  CheckEveryOption(ThroughTiles, random);
}

TEST_F(EpilogueOnGpuTest, EveryActivation) {
  RandomSource random;
  CheckEveryActivation(ThroughTiles, random);
}

TEST_F(EpilogueOnGpuTest, OddShapes) {
  RandomSource random;
  CheckOddShapes(ThroughTiles, random);
}

TEST_F(EpilogueOnGpuTest, Plain) {
  RandomSource random;
  CheckPlain(ThroughTiles, random);
}

TEST_F(EpilogueOnGpuTest, PlainDirectly) {
  RandomSource random;
  CheckPlain(DirectlyWhereItCan, random);
}

TEST_F(EpilogueOnGpuTest, WithoutProduct) {
  RandomSource random;
  CheckWithoutProduct(WithoutProduct, random);
}

}  // namespace
}  // namespace gemmd
