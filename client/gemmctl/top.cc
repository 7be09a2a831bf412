// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/top.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/gemmctl/command.h"
#include "client/terminal/console.h"
#include "client/terminal/option.h"

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

double PerSecond(int64_t before, int64_t now, double seconds) {
  return seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

// The upper bound of the bucket that contains the `share` quantile of durations.
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
    return PerSecond(was, is, seconds);
  };
  DeviceRates rates;
  rates.products_per_second = per_second(OkOf(before), OkOf(now));
  rates.failures_per_second = per_second(FailuresOf(before), FailuresOf(now));
  rates.operations_per_second = per_second(before.operations(), now.operations());
  rates.bytes_in_per_second = per_second(before.bytes_read(), now.bytes_read());
  rates.bytes_out_per_second = per_second(before.bytes_written(), now.bytes_written());
  // Clamped: the server counts the running product up to now, with another clock than its uptime.
  rates.busy = std::min(per_second(before.busy_ns(), now.busy_ns()) / 1e9, 1.0);
  rates.p50_ns = BoundOf(before.total(), now.total(), 0.5);
  rates.p99_ns = BoundOf(before.total(), now.total(), 0.99);
  return rates;
}

// Sets each rate's share of the computing time of all rates that are `alike`.
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
      return PerSecond(was, is, seconds);
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
  rates.admissions_per_second = PerSecond(before.admissions(), now.admissions(), rates.seconds);
  rates.refusals_per_second = PerSecond(Sum(before.refusals()), Sum(now.refusals()), rates.seconds);
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

void TopHistory::Add(const v1::GetStatisticsResponse& now, const ActivityRates& rates) {
  std::map<std::string, std::deque<double>> devices;
  for (int i = 0; i < now.devices_size(); ++i) {
    const std::string& name = now.devices(i).name();
    std::deque<double> values = std::move(devices_[name]);
    values.push_back(rates.devices[static_cast<size_t>(i)].products_per_second);
    if (values.size() > kMaxViews) values.pop_front();
    devices[name] = std::move(values);
  }
  devices_ = std::move(devices);
}

std::deque<double> TopHistory::Of(const std::string& device) const {
  const auto found = devices_.find(device);
  return found == devices_.end() ? std::deque<double>() : found->second;
}

namespace {

using Align = TextTable::Align;

// Two minutes of history at one view per second.
constexpr size_t kMaxBars = 120;
constexpr size_t kMinBars = 16;
constexpr int kMinWithHistory = 64;

constexpr size_t kMaxRows = 8;  // Kernels, and callers.

constexpr size_t kGap = 2;  // Between columns.

std::string FormatPerSecond(double rate) { return absl::StrFormat("%.4g", rate); }
std::string FormatShare(double share) { return absl::StrFormat("%.0f %%", 100 * share); }

// Says how many rows a table leaves out.
std::string MoreText(size_t hidden, const char* what) {
  return hidden == 0 ? "" : absl::StrCat(hidden, " more ", what, hidden == 1 ? "" : "s", "\n");
}

std::string FormatFlow(double bytes_per_second) {
  return absl::StrCat(FormatBytes(static_cast<int64_t>(bytes_per_second)), "/s");
}

std::string FormatBound(const std::optional<int64_t>& ns) {
  if (!ns) return "-";
  return *ns == DeviceRates::kBeyondBounds ? "more" : FormatNanoseconds(*ns);
}

// "None" and "beyond the last bound" are both null, so that programs need no special values.
nlohmann::ordered_json BoundJson(const std::optional<int64_t>& ns) {
  if (!ns || *ns == DeviceRates::kBeyondBounds) return nullptr;
  return *ns;
}

// A simulator that is idle now and was idle in all views so far.
bool IsIdleSimulator(const v1::DeviceStatistics& device, const DeviceRates& rate,
                     const TopHistory& history) {
  const std::deque<double> seen = history.Of(device.name());
  return absl::StartsWith(device.name(), "sim:") && device.queued_requests() == 0 &&
         rate.busy == 0 && rate.products_per_second == 0 && rate.failures_per_second == 0 &&
         std::all_of(seen.begin(), seen.end(), [](double products) { return products == 0; });
}

// The devices to be shown, as indices, in the order asked for.
std::vector<int> ShownDevices(const v1::GetStatisticsResponse& now, const ActivityRates& rates,
                              const TopOptions& options) {
  std::vector<int> shown;
  for (int i = 0; i < now.devices_size(); ++i) {
    const DeviceRates& rate = rates.devices[static_cast<size_t>(i)];
    if (options.all || !IsIdleSimulator(now.devices(i), rate, options.history)) shown.push_back(i);
  }
  const auto value = [&](int i) -> double {
    const DeviceRates& rate = rates.devices[static_cast<size_t>(i)];
    switch (options.sort) {
      case TopSort::kBusy: return rate.busy;
      case TopSort::kProducts: return rate.products_per_second;
      case TopSort::kWaiting: return static_cast<double>(now.devices(i).queued_requests());
      case TopSort::kServer: break;
    }
    return 0;
  };
  std::stable_sort(shown.begin(), shown.end(), [&](int x, int y) { return value(x) > value(y); });
  return shown;
}

TextTable::Column Number(const char* heading, int rank) { return {heading, Align::kRight, rank}; }

// Whether device histories fit beside a table of the fixed columns.
bool HasHistory(const TopOptions& options) {
  return options.columns >= kMinWithHistory && !options.history.is_empty();
}

// Appends the history of each device to its line.
std::string WithHistory(const std::string& table, const v1::GetStatisticsResponse& now,
                        const std::vector<int>& shown, const TopOptions& options) {
  const std::vector<std::string> lines = absl::StrSplit(table, '\n', absl::SkipEmpty());
  size_t width = 0;
  for (const std::string& line : lines) width = std::max(width, line.size() + kGap);
  const size_t columns = static_cast<size_t>(options.columns);
  if (width + kMinBars > columns || shown.size() + 1 != lines.size()) return table;
  const size_t bars = std::min(kMaxBars, columns - width);
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string padding(width - lines[i].size(), ' ');
    const std::string history =
        i == 0 ? "history" : Sparkline(options.history.Of(now.devices(shown[i - 1]).name()), bars);
    absl::StrAppend(&text, lines[i], padding, history, "\n");
  }
  return text;
}

std::string DevicesText(const v1::GetStatisticsResponse& now, const ActivityRates& rates,
                        const TopOptions& options) {
  TextTable table({{"device"},
                   {"state", Align::kLeft, 5},
                   Number("waiting", 0),
                   Number("bytes waiting", 11),
                   Number("predicted", 6),
                   Number("busy", 0),
                   Number("products/s", 0),
                   Number("failed/s", 7),
                   Number("rate", 2),
                   Number("in", 9),
                   Number("out", 10),
                   Number("p50 <=", 4),
                   Number("p99 <=", 3),
                   Number("restarts", 8)});
  const std::vector<int> shown = ShownDevices(now, rates, options);
  for (const int i : shown) {
    const v1::DeviceStatistics& device = now.devices(i);
    const DeviceRates& rate = rates.devices[static_cast<size_t>(i)];
    table.AddRow({device.name(), device.ready() ? "ready" : "not ready",
                  FormatCount(device.queued_requests()), FormatBytes(device.queued_bytes()),
                  FormatNanoseconds(device.predicted_queue_ns()), FormatShare(rate.busy),
                  FormatPerSecond(rate.products_per_second),
                  FormatPerSecond(rate.failures_per_second), FormatRate(rate.operations_per_second),
                  FormatFlow(rate.bytes_in_per_second), FormatFlow(rate.bytes_out_per_second),
                  FormatBound(rate.p50_ns), FormatBound(rate.p99_ns),
                  FormatCount(device.worker_restarts())});
  }
  std::string text = table.Print(options.columns);
  if (HasHistory(options)) {
    const int room = options.columns - static_cast<int>(kGap + kMinBars);
    text = WithHistory(table.Print(room), now, shown, options);
  }
  const int hidden = now.devices_size() - static_cast<int>(shown.size());
  if (hidden > 0) {
    absl::StrAppend(&text, hidden, " idle simulator", hidden == 1 ? "" : "s",
                    " not shown (--all)\n");
  }
  return text;
}

// Empty if no device has readings.
std::string GpusText(const v1::GetStatisticsResponse& now, int columns) {
  TextTable table({{"GPU"},
                   Number("kernels", 0),
                   Number("power", 0),
                   Number("memory", 0),
                   Number("SM clock", 2),
                   Number("temperature", 3),
                   Number("ECC errors", 1)});
  bool has_gpus = false;
  for (const v1::DeviceStatistics& device : now.devices()) {
    if (!device.has_gpu()) continue;
    has_gpus = true;
    const v1::GpuReading& gpu = device.gpu();
    table.AddRow(
        {device.name(), gpu.has_utilization() ? FormatShare(gpu.utilization()) : "-",
         gpu.has_power_watts()
             ? absl::StrFormat("%.0f of %.0f W", gpu.power_watts(), gpu.power_limit_watts())
             : "-",
         gpu.has_memory_used_bytes() ? absl::StrCat(FormatBytes(gpu.memory_used_bytes()), " of ",
                                                    FormatBytes(gpu.memory_bytes()))
                                     : "-",
         gpu.has_sm_clock_hertz()
             ? absl::StrFormat("%.3f GHz", static_cast<double>(gpu.sm_clock_hertz()) / 1e9)
             : "-",
         gpu.has_temperature_celsius() ? absl::StrFormat("%.0f C", gpu.temperature_celsius()) : "-",
         gpu.has_ecc_uncorrected_errors() ? FormatCount(gpu.ecc_uncorrected_errors()) : "-"});
  }
  return has_gpus ? absl::StrCat("\n", table.Print(columns)) : "";
}

// Empty if nothing has run since the previous view.
std::string KernelsText(const ActivityRates& rates, int columns) {
  if (rates.kernels.empty()) return "";
  TextTable table({{"kernel"},
                   {"on", Align::kLeft, 1},
                   Number("products/s", 0),
                   Number("of computing", 0),
                   Number("mean", 0)});
  const size_t shown = std::min(rates.kernels.size(), kMaxRows);
  for (size_t i = 0; i < shown; ++i) {
    const KernelRates& kernel = rates.kernels[i];
    table.AddRow({kernel.name, kernel.device_kind, FormatPerSecond(kernel.products_per_second),
                  FormatShare(kernel.share), FormatNanoseconds(kernel.mean_ns)});
  }
  return absl::StrCat("\n", table.Print(columns), MoreText(rates.kernels.size() - shown, "kernel"));
}

// Empty if no products were joined.
std::string JoinedText(const v1::GetStatisticsResponse& now, int columns) {
  TextTable table({{{"ran as one"}},
                   Number("launches", 0),
                   Number("stacked", 0),
                   Number("batched", 0),
                   Number("most products at once", 1)});
  bool has_joined = false;
  for (const v1::DeviceStatistics& device : now.devices()) {
    if (device.stacked_products() + device.batched_products() == 0) continue;
    has_joined = true;
    int max_products = device.launches_by_products_size();
    while (max_products > 0 && device.launches_by_products(max_products - 1) == 0) --max_products;
    const bool is_known = max_products > 0 && max_products < device.launches_by_products_size();
    const std::string bound = is_known ? FormatCount(int64_t{1} << (max_products - 1)) : "more";
    table.AddRow({device.name(), FormatCount(device.launches()),
                  FormatCount(device.stacked_products()), FormatCount(device.batched_products()),
                  bound});
  }
  return has_joined ? absl::StrCat("\n", table.Print(columns)) : "";
}

std::string CopiesText(const v1::GetStatisticsResponse& now, int columns) {
  TextTable table({{"memory"},
                   Number("tensors", 0),
                   Number("found", 0),
                   Number("brought", 1),
                   Number("evicted", 0)});
  bool has_copies = false;
  for (const v1::DeviceStatistics& device : now.devices()) {
    if (device.tensor_bytes() + device.tensor_hits() + device.tensors_brought() == 0) continue;
    has_copies = true;
    table.AddRow({device.name(), FormatBytes(device.tensor_bytes()),
                  FormatCount(device.tensor_hits()), FormatCount(device.tensors_brought()),
                  FormatCount(device.tensors_evicted())});
  }
  return has_copies ? table.Print(columns) : "";
}

std::string OwnersText(const v1::TensorStatistics& tensors, int columns) {
  if (tensors.owners().empty()) return "";
  TextTable table(
      {{"owner"}, Number("tensors", 0), Number("on the host", 0), {"of", Align::kLeft, 1}});
  for (const v1::OwnerStatistics& owner : tensors.owners()) {
    table.AddRow({owner.name(), FormatCount(owner.tensors()), FormatBytes(owner.host_bytes()),
                  owner.caller()});
  }
  return table.Print(columns);
}

// Empty if there are no sessions and never were any tensors.
std::string TensorsText(const v1::GetStatisticsResponse& now, int columns) {
  const v1::TensorStatistics& tensors = now.tensors();
  if (tensors.sessions() + tensors.uploads_complete() + tensors.expired() == 0) return "";
  const std::vector<std::string> parts = {
      absl::StrCat("tensors  ", FormatCount(tensors.tensors()), " of ",
                   FormatCount(tensors.sessions()), " sessions,"),
      absl::StrCat(FormatBytes(tensors.host_bytes()), " of ", FormatBytes(tensors.max_host_bytes()),
                   " on the host;"),
      absl::StrCat("uploads: ", FormatCount(tensors.uploads()), " now,"),
      absl::StrCat(FormatCount(tensors.uploads_complete()), " complete,"),
      absl::StrCat(FormatCount(tensors.uploads_known()), " known;"),
      absl::StrCat(FormatCount(tensors.expired()), " expired,"),
      absl::StrCat(FormatCount(tensors.lost()), " lost")};
  return absl::StrCat("\n", FlowText(parts, " ", columns), CopiesText(now, columns),
                      OwnersText(tensors, columns));
}

}  // namespace

std::string CallersText(const std::vector<CallerRates>& callers, int columns) {
  if (callers.empty()) return "";
  TextTable table({{"caller"},
                   Number("products/s", 0),
                   Number("failed/s", 2),
                   Number("refused/s", 0),
                   Number("of computing", 0),
                   Number("tensors", 1)});
  const size_t shown = std::min(callers.size(), kMaxRows);
  for (size_t i = 0; i < shown; ++i) {
    const CallerRates& caller = callers[i];
    table.AddRow({caller.rule, FormatPerSecond(caller.products_per_second),
                  FormatPerSecond(caller.failures_per_second),
                  FormatPerSecond(caller.refusals_per_second), FormatShare(caller.share),
                  FormatBytes(caller.tensor_bytes)});
  }
  return absl::StrCat("\n", table.Print(columns), MoreText(callers.size() - shown, "caller"));
}

namespace {

nlohmann::ordered_json CallersJson(const std::vector<CallerRates>& callers) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const CallerRates& caller : callers) {
    json.push_back({{"rule", caller.rule},
                    {"products_per_second", caller.products_per_second},
                    {"failures_per_second", caller.failures_per_second},
                    {"refusals_per_second", caller.refusals_per_second},
                    {"computing", caller.computing},
                    {"share_of_computing", caller.share},
                    {"tensor_bytes", caller.tensor_bytes}});
  }
  return json;
}

}  // namespace

std::string TopText(const std::string& address, const v1::GetStatisticsResponse& now,
                    const ActivityRates& rates, const TopOptions& options) {
  const std::vector<std::string> heading = {
      absl::StrCat("gemmd ", address),
      now.draining() ? "draining" : "serving",
      absl::StrCat("up ", FormatNanoseconds(now.uptime_ns())),
      absl::StrFormat("admitted %s of %s, %s of %s", FormatCount(now.admitted_requests()),
                      FormatCount(now.max_admitted_requests()), FormatBytes(now.admitted_bytes()),
                      FormatBytes(now.max_admitted_bytes())),
      absl::StrCat(FormatPerSecond(rates.admissions_per_second), "/s admitted"),
      absl::StrCat(FormatPerSecond(rates.refusals_per_second), "/s refused")};
  const int columns = options.columns;
  return CutText(absl::StrCat(FlowText(heading, "   ", columns), "\n",
                              DevicesText(now, rates, options), GpusText(now, columns),
                              KernelsText(rates, columns), CallersText(rates.callers, columns),
                              JoinedText(now, columns), TensorsText(now, columns)),
                 columns, options.lines);
}

namespace {

// The view shown while the server cannot be reached.
std::string NoAnswerText(const std::string& address, const absl::Status& status) {
  return absl::StrCat("gemmd ", address, "   no answer: ", status.message(), "\n");
}

nlohmann::ordered_json NoAnswerJson(const absl::Status& status) {
  return {{"no_answer",
           {{"code", absl::StatusCodeToString(status.code())},
            {"message", std::string(status.message())}}}};
}

}  // namespace

nlohmann::ordered_json TopJson(const v1::GetStatisticsResponse& now, const ActivityRates& rates) {
  nlohmann::ordered_json json = {{"interval_seconds", rates.seconds},
                                 {"admissions_per_second", rates.admissions_per_second},
                                 {"refusals_per_second", rates.refusals_per_second},
                                 {"rates", nlohmann::ordered_json::array()},
                                 {"kernels", nlohmann::ordered_json::array()},
                                 {"callers", CallersJson(rates.callers)},
                                 {"statistics", MessageJson(now)}};
  for (size_t i = 0; i < rates.devices.size(); ++i) {
    const DeviceRates& rate = rates.devices[i];
    json["rates"].push_back({{"device", now.devices(static_cast<int>(i)).name()},
                             {"products_per_second", rate.products_per_second},
                             {"failures_per_second", rate.failures_per_second},
                             {"operations_per_second", rate.operations_per_second},
                             {"bytes_in_per_second", rate.bytes_in_per_second},
                             {"bytes_out_per_second", rate.bytes_out_per_second},
                             {"busy", rate.busy},
                             {"p50_ns", BoundJson(rate.p50_ns)},
                             {"p99_ns", BoundJson(rate.p99_ns)}});
  }
  for (const KernelRates& kernel : rates.kernels) {
    json["kernels"].push_back({{"kernel", kernel.name},
                               {"device_kind", kernel.device_kind},
                               {"products_per_second", kernel.products_per_second},
                               {"computing", kernel.computing},
                               {"share_of_computing", kernel.share},
                               {"mean_ns", kernel.mean_ns}});
  }
  return json;
}

namespace {

constexpr char kTopHelp[] =
    "Shows devices, queues, kernels, owners of tensors, rates and durations of the last interval; "
    "durations are upper bounds of the server's buckets, and busy includes the running product. On "
    "a terminal the view fits its columns and lines, and bars show products per second of the last "
    "minutes.\n\n"
    "Keys: q quits, s sorts by the next of --sort, b, p and w by busy, products and waiting, n as "
    "the server lists them, a shows or hides idle simulators.\n\n"
    "Examples:\n"
    "  gemmctl top\n"
    "  gemmctl top --sort busy --all\n"
    "  gemmctl top --once --interval 5s\n"
    "  gemmctl top --json | jq --unbuffered '.rates[].products_per_second'";

struct TopFlags {
  bool once = false;
  std::string interval = "1s";  // In the form of GlobalFlags::timeout.
  bool all = false;
  std::string sort = "server";
};

// Moves the cursor home and clears the screen: each view replaces the last.
constexpr char kClearTerminal[] = "\x1b[H\x1b[J";

// After this time the server is shown as not answering, until it answers.
constexpr absl::Duration kAnswerLimit = absl::Seconds(5);

// Whether a server that restarts or is temporarily unreachable gives this status.
bool MayAnswerLater(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// By TopSort.
constexpr std::array<std::string_view, 4> kSorts = {"server", "busy", "products", "waiting"};

// The state of a running `top`: answers, the view, and the options that keys change.
class TopWatch {
 public:
  TopWatch(const GlobalFlags& global, const TopFlags& flags, const Console& console)
      : global_(global),
        flags_(flags),
        console_(console),
        is_terminal_(!global.json && SizeOfTerminal(console.out).has_value()),
        is_live_(is_terminal_ && !flags.once) {
    options_.all = flags.all;
    options_.sort =
        static_cast<TopSort>(std::find(kSorts.begin(), kSorts.end(), flags.sort) - kSorts.begin());
  }

  bool is_live() const { return is_live_; }

  // Processes an answer. Returns whether there is something to show.
  bool Take(absl::StatusOr<v1::GetStatisticsResponse> now) {
    const bool is_first = now.ok() && !before_.has_value();
    if (now.ok() && !is_first) {
      rates_ = RatesBetween(*before_, *now);
      options_.history.Add(*now, rates_);
    }
    if (now.ok()) before_ = *now;
    now_ = std::move(now);
    // Rates need two answers.
    has_view_ = !is_first;
    return has_view_;
  }

  // Returns false if nobody reads the output any more.
  bool Show() {
    if (is_live_) console_.Print(kClearTerminal);
    console_.Print(View());
    if (std::fflush(console_.out) != 0) return false;
    if (!flags_.once && !global_.json && !is_live_) console_.Print("\n");
    return true;
  }

  // Handles a key. Returns whether the view changes.
  bool Press(char key) {
    switch (key) {
      case 'a': options_.all = !options_.all; break;
      case 'b': options_.sort = TopSort::kBusy; break;
      case 'p': options_.sort = TopSort::kProducts; break;
      case 'w': options_.sort = TopSort::kWaiting; break;
      case 'n': options_.sort = TopSort::kServer; break;
      case 's':
        options_.sort =
            static_cast<TopSort>((static_cast<size_t>(options_.sort) + 1) % kSorts.size());
        break;
      default: return false;
    }
    return has_view_;
  }

 private:
  std::string View() {
    if (!now_.ok()) {
      return global_.json ? JsonLine(NoAnswerJson(now_.status()))
                          : NoAnswerText(global_.address, now_.status());
    }
    if (global_.json) return JsonLine(TopJson(*now_, rates_));
    if (is_terminal_) {
      // The terminal may have been resized.
      const TerminalSize size = SizeOfTerminal(console_.out).value_or(TerminalSize{80, 24});
      options_.columns = size.columns;
      // The cursor takes the last line.
      if (is_live_) options_.lines = size.lines - 1;
    }
    return TopText(global_.address, *now_, rates_, options_);
  }

  const GlobalFlags& global_;
  const TopFlags& flags_;
  const Console& console_;
  const bool is_terminal_;
  const bool is_live_;  // Each view replaces the last.
  TopOptions options_;
  ActivityRates rates_;
  std::optional<v1::GetStatisticsResponse> before_;
  absl::StatusOr<v1::GetStatisticsResponse> now_;
  bool has_view_ = false;
};

// Waits until the next view is due; redraws after each key. Returns false to stop.
bool WaitForNext(absl::Duration interval, TerminalKeys* keys, TopWatch& watch) {
  if (keys == nullptr) {
    absl::SleepFor(interval);
    return true;
  }
  const absl::Time next = absl::Now() + interval;
  while (true) {
    const std::optional<char> key = keys->Wait(next - absl::Now());
    if (!key.has_value()) return true;
    if (*key == TerminalKeys::kEnd || *key == 'q') return false;
    if (watch.Press(*key) && !watch.Show()) return false;
  }
}

ExitCode RunTop(const GlobalFlags& global, const TopFlags& flags, const Console& console) {
  const auto interval = ParseTimeout(flags.interval, "--interval");
  if (!interval.ok()) return FailLocally(console, interval.status());
  TopWatch watch(global, flags, console);
  // Created before the client, so that the client's threads do not receive the signals.
  const std::unique_ptr<TerminalKeys> keys =
      watch.is_live() ? TerminalKeys::Open(console.in) : nullptr;
  auto client = Connect(global, kAnswerLimit);
  if (!client.ok()) return FailLocally(console, client.status());
  while (true) {
    auto now = client->GetStatistics();
    if (!now.ok() && (flags.once || !MayAnswerLater(now.status()))) {
      return FailCall(console, now.status());
    }
    const bool is_shown = watch.Take(std::move(now));
    // The command also ends when nobody reads its output any more.
    if (is_shown && !watch.Show()) return ExitCode::kUsage;
    if (is_shown && flags.once) return ExitCode::kOk;
    if (!WaitForNext(*interval, keys.get(), watch)) return ExitCode::kOk;
  }
}

}  // namespace

CommandRun AddTop(CLI::App& app) {
  auto flags = std::make_unique<TopFlags>();
  SetFooter(app, kTopHelp);
  AddOption(app, "--interval", flags->interval,
            "Time between two views, and the interval of the rates")
      .ShowDefault()
      .TypeName("TIME");
  AddFlag(app, "--once", flags->once, "Show one view and exit");
  AddFlag(app, "--all", flags->all, "Show idle simulators, too");
  AddChoice(app, "--sort", flags->sort,
            "Order of the devices: by this figure, largest first, or the server's order",
            std::vector<std::string>(kSorts.begin(), kSorts.end()))
      .ShowDefault();
  return RunWith(std::move(flags), RunTop);
}

}  // namespace gemmd
