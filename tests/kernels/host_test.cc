// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/host_rates.h"
#include "kernels/kernel.h"
#include "kernels/select.h"

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

TEST(HostTest, RatesAreTheSameInAnotherProcess) {
  SetThreads(1);
  for (const Target& target :
       {HostTarget(), Target{.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90}}) {
    const DeviceProfile profile = MeasureRates(target);
    std::vector<double> numbers = NumbersOf(profile);
    const DeviceProfile told = ProfileOf(target, numbers).value();
    EXPECT_EQ(NumbersOf(told), numbers);
    EXPECT_EQ(told.rates.size(), profile.rates.size());
    for (const Kernel& kernel : Catalog(target.kind)) {
      const absl::StatusOr<Problem> problem = kernel.sample(target);
      if (!problem.ok() || !kernel.available(target).ok()) continue;
      EXPECT_EQ(Predict(kernel, *problem, told).total_ns(),
                Predict(kernel, *problem, profile).total_ns())
          << kernel.name;
    }
    // One number too few or too many, a missing engine, an invalid number.
    EXPECT_FALSE(ProfileOf(target, absl::MakeConstSpan(numbers).first(numbers.size() - 1)).ok());
    EXPECT_FALSE(ProfileOf(target, {}).ok());
    numbers.push_back(0);
    EXPECT_FALSE(ProfileOf(target, numbers).ok());
    numbers.pop_back();
    for (const double position : {-1.0, 1e9}) {
      std::vector<double> wrong = numbers;
      wrong[wrong.size() - 2] = position;
      EXPECT_FALSE(ProfileOf(target, wrong).ok());
    }
    numbers.front() = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(ProfileOf(target, numbers).ok());
  }
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
