// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/activity.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace gemmd {
namespace {

int64_t Sum(const google::protobuf::RepeatedPtrField<v1::Count>& counts) {
  int64_t sum = 0;
  for (const v1::Count& count : counts) sum += count.count();
  return sum;
}

// Counts the failures that the server is to blame for, as deploy's dashboard and alerts do. A
// product that its caller cancelled has not failed.
int64_t FailuresOf(const v1::DeviceStatistics& device) {
  constexpr std::string_view kCodes[] = {"ABORTED", "DATA_LOSS", "INTERNAL", "UNAVAILABLE",
                                         "UNKNOWN"};
  int64_t sum = 0;
  for (const v1::Count& end : device.ends()) {
    if (std::find(std::begin(kCodes), std::end(kCodes), end.name()) != std::end(kCodes)) {
      sum += end.count();
    }
  }
  return sum;
}

int64_t OkOf(const v1::DeviceStatistics& device) {
  for (const v1::Count& end : device.ends()) {
    if (end.name() == "OK") return end.count();
  }
  return 0;
}

// The bound of the bucket that holds the duration that `share` of all do not exceed.
std::optional<int64_t> BoundOf(const v1::DurationHistogram& before,
                               const v1::DurationHistogram& now, double share) {
  std::vector<int64_t> counts(now.counts().begin(), now.counts().end());
  for (int i = 0; i < std::min(before.counts_size(), now.counts_size()); ++i) {
    counts[static_cast<size_t>(i)] -= before.counts(i);
  }
  int64_t all = 0;
  for (const int64_t count : counts) all += count;
  int64_t seen = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    seen += counts[i];
    if (seen == 0 || static_cast<double>(seen) < share * static_cast<double>(all)) continue;
    const int bound = static_cast<int>(i);
    return bound < now.bounds_ns_size() ? now.bounds_ns(bound) : DeviceRates::kBeyondBounds;
  }
  return std::nullopt;
}

DeviceRates RatesOf(const v1::DeviceStatistics& before, const v1::DeviceStatistics& now,
                    double seconds) {
  const auto per_second = [seconds](int64_t was, int64_t is) {
    return seconds > 0 ? static_cast<double>(is - was) / seconds : 0;
  };
  DeviceRates rates;
  rates.products_per_second = per_second(OkOf(before), OkOf(now));
  rates.failures_per_second = per_second(FailuresOf(before), FailuresOf(now));
  rates.operations_per_second = per_second(before.operations(), now.operations());
  rates.bytes_in_per_second = per_second(before.bytes_read(), now.bytes_read());
  rates.bytes_out_per_second = per_second(before.bytes_written(), now.bytes_written());
  // The server counts the running product up to now, by another clock than its uptime.
  rates.busy = std::min(per_second(before.busy_ns(), now.busy_ns()) / 1e9, 1.0);
  rates.p50_ns = BoundOf(before.total(), now.total(), 0.5);
  rates.p99_ns = BoundOf(before.total(), now.total(), 0.99);
  return rates;
}

// Sets the share of each rate in the computing of all that `alike` counts with it.
template <typename Rates, typename Alike>
void SetShares(std::vector<Rates>& all, Alike alike) {
  for (Rates& one : all) {
    double sum = 0;
    for (const Rates& other : all) sum += alike(one, other) ? other.computing : 0;
    one.share = sum > 0 ? one.computing / sum : 0;
  }
}

std::vector<KernelRates> KernelsBetween(const v1::GetStatisticsResponse& before,
                                        const v1::GetStatisticsResponse& now, double seconds) {
  std::vector<KernelRates> kernels;
  for (const v1::KernelStatistics& kernel : now.kernels()) {
    const auto earlier = std::find_if(
        before.kernels().begin(), before.kernels().end(), [&](const v1::KernelStatistics& other) {
          return other.name() == kernel.name() && other.device_kind() == kernel.device_kind();
        });
    const bool is_new = earlier == before.kernels().end();
    const int64_t products = kernel.products() - (is_new ? 0 : earlier->products());
    const int64_t compute_ns = kernel.compute_ns() - (is_new ? 0 : earlier->compute_ns());
    if (products <= 0 || !(seconds > 0)) continue;
    kernels.push_back({.device_kind = kernel.device_kind(),
                       .name = kernel.name(),
                       .products_per_second = static_cast<double>(products) / seconds,
                       .computing = static_cast<double>(compute_ns) / 1e9 / seconds,
                       .mean_ns = compute_ns / products});
  }
  SetShares(kernels, [](const KernelRates& x, const KernelRates& y) {
    return x.device_kind == y.device_kind;
  });
  std::stable_sort(kernels.begin(), kernels.end(), [](const KernelRates& x, const KernelRates& y) {
    return x.computing > y.computing;
  });
  return kernels;
}

std::vector<CallerRates> CallersBetween(const v1::GetStatisticsResponse& before,
                                        const v1::GetStatisticsResponse& now, double seconds) {
  std::vector<CallerRates> callers;
  for (const v1::CallerStatistics& caller : now.callers()) {
    v1::CallerStatistics earlier;
    for (const v1::CallerStatistics& other : before.callers()) {
      if (other.rule() == caller.rule()) earlier = other;
    }
    const auto per_second = [seconds](int64_t was, int64_t is) {
      return seconds > 0 ? static_cast<double>(is - was) / seconds : 0;
    };
    const CallerRates rates = {
        .rule = caller.rule(),
        .products_per_second = per_second(earlier.answered(), caller.answered()),
        .failures_per_second = per_second(earlier.failed(), caller.failed()),
        .refusals_per_second = per_second(earlier.refused(), caller.refused()),
        .computing = per_second(earlier.compute_ns(), caller.compute_ns()) / 1e9,
        .tensor_bytes = caller.tensor_bytes()};
    const double products =
        rates.products_per_second + rates.failures_per_second + rates.refusals_per_second;
    if (products > 0 || rates.tensor_bytes > 0) callers.push_back(rates);
  }
  SetShares(callers, [](const CallerRates&, const CallerRates&) { return true; });
  std::stable_sort(callers.begin(), callers.end(), [](const CallerRates& x, const CallerRates& y) {
    return x.computing > y.computing;
  });
  return callers;
}

}  // namespace

ActivityRates RatesBetween(const v1::GetStatisticsResponse& before,
                           const v1::GetStatisticsResponse& now) {
  const bool has_restarted = now.started_unix_ns() != before.started_unix_ns();
  if (has_restarted && before.started_unix_ns() != 0) return RatesBetween({}, now);
  ActivityRates rates;
  rates.seconds = static_cast<double>(now.uptime_ns() - before.uptime_ns()) / 1e9;
  if (rates.seconds > 0) {
    rates.admissions_per_second =
        static_cast<double>(now.admissions() - before.admissions()) / rates.seconds;
    rates.refusals_per_second =
        static_cast<double>(Sum(now.refusals()) - Sum(before.refusals())) / rates.seconds;
  }
  for (const v1::DeviceStatistics& device : now.devices()) {
    v1::DeviceStatistics earlier;
    for (const v1::DeviceStatistics& other : before.devices()) {
      if (other.name() == device.name()) earlier = other;
    }
    rates.devices.push_back(RatesOf(earlier, device, rates.seconds));
  }
  rates.kernels = KernelsBetween(before, now, rates.seconds);
  rates.callers = CallersBetween(before, now, rates.seconds);
  return rates;
}

}  // namespace gemmd
