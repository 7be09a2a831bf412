// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/top_view.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/top_callers.h"
#include "client/terminal/sparkline.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

// The history of a device: two minutes of views of a second.
constexpr size_t kMostBars = 120;
constexpr size_t kLeastBars = 16;
constexpr int kLeastWithHistory = 64;

constexpr size_t kMostKernels = 8;

constexpr size_t kGap = 2;  // Between columns.

std::string FormatPerSecond(double rate) { return absl::StrFormat("%.4g", rate); }
std::string FormatShare(double share) { return absl::StrFormat("%.0f %%", 100 * share); }

std::string FormatFlow(double bytes_per_second) {
  return absl::StrCat(FormatBytes(static_cast<int64_t>(bytes_per_second)), "/s");
}

std::string FormatBound(const std::optional<int64_t>& ns) {
  if (!ns) return "-";
  return *ns == DeviceRates::kBeyondBounds ? "more" : FormatNanoseconds(*ns);
}

// A program need not know what stands for "none" and "beyond": both are null.
nlohmann::ordered_json BoundJson(const std::optional<int64_t>& ns) {
  if (!ns || *ns == DeviceRates::kBeyondBounds) return nullptr;
  return *ns;
}

// A simulator that has nothing to do and had nothing in all views that were seen.
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

FittedTable::Column Number(const char* heading, int rank) {
  return {{heading, Align::kRight}, rank};
}

// Whether the histories of devices have a place beside a table of the columns that always are
// there.
bool HasHistory(const TopOptions& options) {
  return options.columns >= kLeastWithHistory && !options.history.is_empty();
}

// Puts the history of each device behind its line.
std::string WithHistory(const std::string& table, const v1::GetStatisticsResponse& now,
                        const std::vector<int>& shown, const TopOptions& options) {
  const std::vector<std::string> lines = absl::StrSplit(table, '\n', absl::SkipEmpty());
  size_t width = 0;
  for (const std::string& line : lines) width = std::max(width, line.size() + kGap);
  const size_t columns = static_cast<size_t>(options.columns);
  if (width + kLeastBars > columns || shown.size() + 1 != lines.size()) return table;
  const size_t bars = std::min(kMostBars, columns - width);
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
  FittedTable table({{{"device"}},
                     {{"state"}, 5},
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
    const int room = options.columns - static_cast<int>(kGap + kLeastBars);
    text = WithHistory(table.Print(room), now, shown, options);
  }
  const int hidden = now.devices_size() - static_cast<int>(shown.size());
  if (hidden > 0) {
    absl::StrAppend(&text, hidden, " idle simulator", hidden == 1 ? "" : "s",
                    " not shown (--all)\n");
  }
  return text;
}

// Empty where no device has readings.
std::string GpusText(const v1::GetStatisticsResponse& now, int columns) {
  FittedTable table({{{"GPU"}},
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

// Empty where nothing has run since the view before.
std::string KernelsText(const ActivityRates& rates, int columns) {
  if (rates.kernels.empty()) return "";
  FittedTable table({{{"kernel"}},
                     {{"on"}, 1},
                     Number("products/s", 0),
                     Number("of computing", 0),
                     Number("mean", 0)});
  const size_t shown = std::min(rates.kernels.size(), kMostKernels);
  for (size_t i = 0; i < shown; ++i) {
    const KernelRates& kernel = rates.kernels[i];
    table.AddRow({kernel.name, kernel.device_kind, FormatPerSecond(kernel.products_per_second),
                  FormatShare(kernel.share), FormatNanoseconds(kernel.mean_ns)});
  }
  std::string text = absl::StrCat("\n", table.Print(columns));
  const size_t hidden = rates.kernels.size() - shown;
  if (hidden > 0) absl::StrAppend(&text, hidden, " more kernel", hidden == 1 ? "" : "s", "\n");
  return text;
}

// Empty where no products ran as one.
std::string JoinedText(const v1::GetStatisticsResponse& now, int columns) {
  FittedTable table({{{"ran as one"}},
                     Number("launches", 0),
                     Number("stacked", 0),
                     Number("batched", 0),
                     Number("most products at once", 1)});
  bool has_joined = false;
  for (const v1::DeviceStatistics& device : now.devices()) {
    if (device.stacked_products() + device.batched_products() == 0) continue;
    has_joined = true;
    int most = device.launches_by_products_size();
    while (most > 0 && device.launches_by_products(most - 1) == 0) --most;
    const bool is_known = most > 0 && most < device.launches_by_products_size();
    const std::string bound = is_known ? FormatCount(int64_t{1} << (most - 1)) : "more";
    table.AddRow({device.name(), FormatCount(device.launches()),
                  FormatCount(device.stacked_products()), FormatCount(device.batched_products()),
                  bound});
  }
  return has_joined ? absl::StrCat("\n", table.Print(columns)) : "";
}

std::string CopiesText(const v1::GetStatisticsResponse& now, int columns) {
  FittedTable table({{{"memory"}},
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
  FittedTable table({{{"owner"}}, Number("tensors", 0), Number("on the host", 0), {{"of"}, 1}});
  for (const v1::OwnerStatistics& owner : tensors.owners()) {
    table.AddRow({owner.name(), FormatCount(owner.tensors()), FormatBytes(owner.host_bytes()),
                  owner.caller()});
  }
  return table.Print(columns);
}

// Empty where there are no sessions, and never were tensors.
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

std::string NoAnswerText(const std::string& address, const absl::Status& status) {
  return absl::StrCat("gemmd ", address, "   no answer: ", status.message(), "\n");
}

nlohmann::ordered_json NoAnswerJson(const absl::Status& status) {
  return {{"no_answer",
           {{"code", absl::StatusCodeToString(status.code())},
            {"message", std::string(status.message())}}}};
}

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

}  // namespace gemmd
