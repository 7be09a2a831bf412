// SPDX-License-Identifier: Apache-2.0
//
// Gathers on a GPU copy what gathers on the host copy.
#include "kernels/cuda/device/operands/gather.h"

#include <deque>
#include <memory>
#include <vector>

#include "tests/gpu/gpu_fixture.h"
#include "tests/kernels/gather_case.h"

namespace gemmd {
namespace {

class GatherTest : public GpuTest {};

TEST_F(GatherTest, SeveralAtOnceCopyTheNamedElements) {
  RandomSource random;
  const Stream stream = MakeStream();
  for (int repeat = 0; repeat < 300; ++repeat) {
    std::deque<GatherCase> cases;
    std::vector<DeviceCopy> copies;  // From, to, lines and elements of each.
    std::vector<ElementGather> gathers;
    while (cases.size() < kMaxGathers) {
      const auto type = kAllElementTypes[random.Bits() % kAllElementTypes.size()];
      GatherCase& one = cases.emplace_back(type, random);
      copies.emplace_back(one.from);
      copies.emplace_back(one.to);
      copies.push_back(DeviceCopy::Of(one.lines()));
      copies.push_back(DeviceCopy::Of(one.elements()));
      const DeviceCopy* const last = &copies.back();
      ElementGather gather = one.gather;
      gather.from = last[-3].data();
      gather.to = last[-2].data();
      gather.lines = reinterpret_cast<const int64_t*>(last[-1].data());
      gather.elements = reinterpret_cast<const int64_t*>(last[0].data());
      gathers.push_back(gather);
    }
    ExpectDone(GatherOnStream(gathers, stream.get()));
    for (size_t i = 0; i < cases.size(); ++i) {
      cases[i].to = copies[4 * i + 1].Read(stream);
      cases[i].ExpectCopied();
    }
  }
}

}  // namespace
}  // namespace gemmd
