// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/catalog.h"
#include "kernels/host_rates.h"

namespace gemmd {
namespace {

using testing::Each;
using testing::Field;
using testing::Gt;
using testing::MatchesRegex;

TEST(HostTest, MeasuresEveryEngineThatRunsHere) {
  SetThreads(1);
  const DeviceProfile profile = MeasureRates(HostTarget());
  std::set<std::string> want;
  for (const Kernel& kernel : Catalog(DeviceKind::kCpu)) {
    if (kernel.available(profile.target).ok()) want.emplace(kernel.engine);
  }
  std::set<std::string> got;
  for (const EngineRate& rate : profile.rates) got.insert(rate.engine);
  EXPECT_EQ(got, want);
  EXPECT_EQ(got.size(), profile.rates.size());
  EXPECT_THAT(profile.rates, Each(Field(&EngineRate::operations_per_second, Gt(0))));
  EXPECT_GT(profile.converted_elements_per_second, 0);
}

TEST(HostTest, NamesItselfAndItsLibraries) {
  EXPECT_FALSE(ProcessorName().empty());
  for (const LibraryVersion& library : CpuLibraries()) {
    EXPECT_FALSE(library.name.empty());
    EXPECT_THAT(library.version, MatchesRegex("[0-9]+\\.[0-9]+.*"));
  }
}

}  // namespace
}  // namespace gemmd
