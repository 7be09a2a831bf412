// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/top_callers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/terminal/fitted_table.h"
#include "client/terminal/text_table.h"

namespace gemmd {

std::string CallersText(const std::vector<CallerRates>& callers, int columns) {
  constexpr size_t kMostCallers = 8;
  if (callers.empty()) return "";
  const auto number = [](const char* heading, int rank) -> FittedTable::Column {
    return {{heading, TextTable::Align::kRight}, rank};
  };
  const auto per_second = [](double rate) { return absl::StrFormat("%.4g", rate); };
  FittedTable table({{{"caller"}},
                     number("products/s", 0),
                     number("failed/s", 2),
                     number("refused/s", 0),
                     number("of computing", 0),
                     number("tensors", 1)});
  const size_t shown = std::min(callers.size(), kMostCallers);
  for (size_t i = 0; i < shown; ++i) {
    const CallerRates& caller = callers[i];
    table.AddRow({caller.rule, per_second(caller.products_per_second),
                  per_second(caller.failures_per_second), per_second(caller.refusals_per_second),
                  absl::StrFormat("%.0f %%", 100 * caller.share),
                  FormatBytes(caller.tensor_bytes)});
  }
  std::string text = absl::StrCat("\n", table.Print(columns));
  const size_t hidden = callers.size() - shown;
  if (hidden > 0) absl::StrAppend(&text, hidden, " more caller", hidden == 1 ? "" : "s", "\n");
  return text;
}

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

}  // namespace gemmd
