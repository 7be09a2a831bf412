// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/server_tables.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

// What computes: "8 threads", "132 SMs, 1.98 GHz".
std::string ProcessorsOf(const v1::Device& device) {
  if (device.multiprocessors() == 0) return absl::StrCat(device.threads(), " threads");
  return absl::StrFormat("%d SMs, %.3g GHz", device.multiprocessors(),
                         static_cast<double>(device.clock_khz()) / 1e6);
}

}  // namespace

std::string DeviceTable(const v1::ListDevicesResponse& devices) {
  TextTable table({{"device"},
                   {"kind"},
                   {"chip"},
                   {"arithmetic"},
                   {"ready"},
                   {"processors", Align::kRight},
                   {"memory", Align::kRight},
                   {"waiting", Align::kRight},
                   {"bytes waiting", Align::kRight},
                   {"completed", Align::kRight},
                   {"description"}});
  TextTable rates({{"device"}, {"engine"}, {"measured rate", Align::kRight}});
  bool has_rates = false;
  for (const v1::Device& device : devices.devices()) {
    table.AddRow({device.name(), device.kind(), OrDash(device.chip()), OrDash(device.arithmetic()),
                  device.ready() ? "yes" : "no", ProcessorsOf(device),
                  FormatBytes(device.memory_bytes()), FormatCount(device.queued_requests()),
                  FormatBytes(device.queued_bytes()), FormatCount(device.completed_requests()),
                  device.description()});
    // A GPU has one of each instruction: too many to read, --json has them.
    if (device.multiprocessors() > 0) continue;
    for (const v1::Rate& rate : device.rates()) {
      rates.AddRow({device.name(), rate.engine(), FormatRate(rate.operations_per_second())});
      has_rates = true;
    }
  }
  std::string text = table.Print();
  for (const v1::Device& device : devices.devices()) {
    if (device.not_ready_reason().empty()) continue;
    absl::StrAppend(&text, "\nnot ready: ", device.not_ready_reason(), "\n");
  }
  return has_rates ? absl::StrCat(text, "\n", rates.Print()) : text;
}

std::string ServerInfoText(const v1::GetServerInfoResponse& info) {
  const v1::Limits& limits = info.limits();
  std::vector<std::string> libraries;
  for (const v1::Library& library : info.libraries()) {
    libraries.push_back(absl::StrCat(library.name(), " ", library.version()));
  }
  TextTable table({{"gemmd"}, {info.version()}});
  table.AddRow({"state", info.draining() ? "draining" : "serving"});
  table.AddRow({"uptime", FormatNanoseconds(info.uptime_ns())});
  table.AddRow({"default device", info.default_device()});
  table.AddRow({"features", absl::StrJoin(info.features(), ", ")});
  table.AddRow({"libraries", absl::StrJoin(libraries, ", ")});
  table.AddRow({"longest message", FormatBytes(limits.max_message_bytes())});
  table.AddRow(
      {"queued at most", absl::StrCat(FormatCount(limits.max_queued_requests()), " requests, ",
                                      FormatBytes(limits.max_queued_bytes()))});
  table.AddRow({"calls per connection", FormatCount(limits.max_concurrent_streams())});
  table.AddRow({"unanswered per stream", FormatCount(limits.max_stream_requests())});
  return table.Print();
}

}  // namespace gemmd
