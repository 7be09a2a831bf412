// SPDX-License-Identifier: Apache-2.0
//
// Times of name look-ups and rates, which need a clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/host_rates.h"
#include "kernels/matrix/nearest_names.h"
#include "tests/kernels/mistyped_name.h"
#include "tests/testing/timed.h"

namespace gemmd {
namespace {

// The thread's own time, the best of a few runs: a caller of unknown names costs others little.
TEST(NearestNamesTimed, TakesTwoTenthsOfAMillisecond) {
  const std::vector<std::string_view> known = NamesOfTheCatalogue();
  const NameIndex index(known);
  double longest = 0;
  for (const std::string& name : UnknownNames(known)) {
    double best = 1;
    for (int i = 0; i < 20; ++i) {
      const double start = ThreadSeconds();
      EXPECT_FALSE(index.Unknown("kernel", name, "one").ok());
      best = std::min(best, ThreadSeconds() - start);
    }
    longest = std::max(longest, best);
  }
  HoldsTimed("an unknown name of a kernel", 200, 1e6 * longest, "us");
}

TEST(HostTimed, EnginesHaveTheRatesOfAProcessor) {
  SetThreads(1);
  const DeviceProfile profile = MeasureRates(HostTarget());
  double slowest = profile.rates.front().operations_per_second;
  for (const EngineRate& rate : profile.rates) {
    slowest = std::min(slowest, rate.operations_per_second);
  }
  HoldsTimedAtLeast("the slowest engine", 1e8, slowest, "operations/s");
  HoldsTimedAtLeast("conversions", 1e6, profile.converted_elements_per_second, "elements/s");
}

}  // namespace
}  // namespace gemmd
