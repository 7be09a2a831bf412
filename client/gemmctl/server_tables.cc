// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/server_tables.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/text_table.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

std::string ProductText(const v1::MultiplyRequest& request) {
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  return absl::StrCat(batch == 1 ? "" : absl::StrCat(batch, " of "), request.m(), " x ",
                      request.n(), " x ", request.k(), ", ", ElementTypeName(request.a().type()),
                      request.a().sparsity() == v1::SPARSITY_NONE ? "" : " 2:4", " x ",
                      ElementTypeName(request.b().type()));
}

}  // namespace

std::string ExplanationTable(const v1::MultiplyRequest& request,
                             const v1::ExplainResponse& explanation) {
  std::string text = absl::StrCat(
      "device   ", explanation.device(), "\n", "product  ", ProductText(request), ", ",
      FormatCount(explanation.operations()), " operations\n", "bytes    ",
      FormatBytes(explanation.bytes_read()), " read, ", FormatBytes(explanation.bytes_written()),
      " written, ", FormatBytes(explanation.workspace_bytes()), " of workspace\n\n");
  if (explanation.candidates().empty()) {
    text += "No kernel can run it.\n";
  } else {
    TextTable candidates(
        {{"kernel"}, {"predicted", Align::kRight}, {"rate", Align::kRight}, {"why"}});
    for (const v1::Candidate& candidate : explanation.candidates()) {
      candidates.AddRow({candidate.kernel(), FormatNanoseconds(candidate.predicted_ns()),
                         FormatOperationRate(explanation.operations(), candidate.predicted_ns()),
                         candidate.reason()});
    }
    text += candidates.Print();
  }
  if (explanation.refusals().empty()) return text;
  TextTable refusals({{"refused"}, {"why"}});
  for (const v1::Refusal& refusal : explanation.refusals())
    refusals.AddRow({refusal.kernel(), refusal.reason()});
  return absl::StrCat(text, "\n", refusals.Print());
}

std::string DeviceTable(const v1::ListDevicesResponse& devices) {
  TextTable table({{"device"},
                   {"kind"},
                   {"ready"},
                   {"threads", Align::kRight},
                   {"memory", Align::kRight},
                   {"waiting", Align::kRight},
                   {"bytes waiting", Align::kRight},
                   {"completed", Align::kRight},
                   {"description"}});
  TextTable rates({{"device"}, {"engine"}, {"measured rate", Align::kRight}});
  bool has_rates = false;
  for (const v1::Device& device : devices.devices()) {
    table.AddRow({device.name(), device.kind(), device.ready() ? "yes" : "no",
                  absl::StrCat(device.threads()), FormatBytes(device.memory_bytes()),
                  FormatCount(device.queued_requests()), FormatBytes(device.queued_bytes()),
                  FormatCount(device.completed_requests()), device.description()});
    for (const v1::Rate& rate : device.rates()) {
      rates.AddRow({device.name(), rate.engine(), FormatRate(rate.operations_per_second())});
      has_rates = true;
    }
  }
  return has_rates ? absl::StrCat(table.Print(), "\n", rates.Print()) : table.Print();
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
