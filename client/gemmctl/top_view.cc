// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/top_view.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/gemmctl/message_json.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

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

std::string DevicesText(const v1::GetStatisticsResponse& now, const ActivityRates& rates) {
  TextTable table({{"device"},
                   {"state"},
                   {"waiting", Align::kRight},
                   {"bytes waiting", Align::kRight},
                   {"predicted", Align::kRight},
                   {"busy", Align::kRight},
                   {"products/s", Align::kRight},
                   {"failed/s", Align::kRight},
                   {"rate", Align::kRight},
                   {"in", Align::kRight},
                   {"out", Align::kRight},
                   {"p50 <=", Align::kRight},
                   {"p99 <=", Align::kRight},
                   {"restarts", Align::kRight}});
  for (int i = 0; i < now.devices_size(); ++i) {
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
  return table.Print();
}

// Empty where no device has readings.
std::string GpusText(const v1::GetStatisticsResponse& now) {
  TextTable table({{"GPU"},
                   {"kernels", Align::kRight},
                   {"power", Align::kRight},
                   {"memory", Align::kRight},
                   {"SM clock", Align::kRight},
                   {"temperature", Align::kRight},
                   {"ECC errors", Align::kRight}});
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
  return has_gpus ? absl::StrCat("\n", table.Print()) : "";
}

// Empty where no products ran as one.
std::string JoinedText(const v1::GetStatisticsResponse& now) {
  TextTable table({{"ran as one"},
                   {"launches", Align::kRight},
                   {"stacked", Align::kRight},
                   {"batched", Align::kRight},
                   {"most products at once", Align::kRight}});
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
  return has_joined ? absl::StrCat("\n", table.Print()) : "";
}

std::string CopiesText(const v1::GetStatisticsResponse& now) {
  TextTable table({{"memory"},
                   {"tensors", Align::kRight},
                   {"found", Align::kRight},
                   {"brought", Align::kRight},
                   {"evicted", Align::kRight}});
  bool has_copies = false;
  for (const v1::DeviceStatistics& device : now.devices()) {
    if (device.tensor_bytes() + device.tensor_hits() + device.tensors_brought() == 0) continue;
    has_copies = true;
    table.AddRow({device.name(), FormatBytes(device.tensor_bytes()),
                  FormatCount(device.tensor_hits()), FormatCount(device.tensors_brought()),
                  FormatCount(device.tensors_evicted())});
  }
  return has_copies ? table.Print() : "";
}

std::string OwnersText(const v1::TensorStatistics& tensors) {
  if (tensors.owners().empty()) return "";
  TextTable table({{"owner"}, {"tensors", Align::kRight}, {"on the host", Align::kRight}});
  for (const v1::OwnerStatistics& owner : tensors.owners()) {
    table.AddRow({owner.name(), FormatCount(owner.tensors()), FormatBytes(owner.host_bytes())});
  }
  return table.Print();
}

// Empty where there are no sessions, and never were tensors.
std::string TensorsText(const v1::GetStatisticsResponse& now) {
  const v1::TensorStatistics& tensors = now.tensors();
  if (tensors.sessions() + tensors.uploads_complete() + tensors.expired() == 0) return "";
  return absl::StrCat(
      "\ntensors  ", FormatCount(tensors.tensors()), " of ", FormatCount(tensors.sessions()),
      " sessions, ", FormatBytes(tensors.host_bytes()), " of ",
      FormatBytes(tensors.max_host_bytes()),
      " on the host; uploads: ", FormatCount(tensors.uploads()), " now, ",
      FormatCount(tensors.uploads_complete()), " complete, ", FormatCount(tensors.uploads_known()),
      " known; ", FormatCount(tensors.expired()), " expired, ", FormatCount(tensors.lost()),
      " lost\n", CopiesText(now), OwnersText(tensors));
}

}  // namespace

std::string TopText(const std::string& address, const v1::GetStatisticsResponse& now,
                    const ActivityRates& rates) {
  return absl::StrFormat(
      "gemmd %s   %s   up %s   admitted %s of %s, %s of %s   %s/s admitted   %s/s refused\n\n%s",
      address, now.draining() ? "draining" : "serving", FormatNanoseconds(now.uptime_ns()),
      FormatCount(now.admitted_requests()), FormatCount(now.max_admitted_requests()),
      FormatBytes(now.admitted_bytes()), FormatBytes(now.max_admitted_bytes()),
      FormatPerSecond(rates.admissions_per_second), FormatPerSecond(rates.refusals_per_second),
      absl::StrCat(DevicesText(now, rates), GpusText(now), JoinedText(now), TensorsText(now)));
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
  return json;
}

}  // namespace gemmd
