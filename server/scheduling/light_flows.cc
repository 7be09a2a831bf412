// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/light_flows.h"

#include <algorithm>

namespace gemmd {

void LightFlows::Add(const FlowId& flow, int64_t predicted_ns, int64_t now_ns) {
  Entry* place = nullptr;
  for (Entry& entry : entries_) {
    if (entry.IsOver(now_ns)) entry = Entry{};
    if (entry.IsOf(flow) && entry.until_ns > now_ns) place = &entry;
  }
  if (place == nullptr) {
    Entry& heaviest = *std::max_element(
        entries_.begin(), entries_.end(),
        [](const Entry& left, const Entry& right) { return left.least_ns < right.least_ns; });
    if (predicted_ns >= heaviest.least_ns) return;
    heaviest = {.caller = std::string(flow.caller), .connection = flow.connection};
    place = &heaviest;
  }
  // Its larger products do not make the memory of a small one last.
  if (predicted_ns > place->least_ns) return;
  place->least_ns = predicted_ns;
  place->until_ns = now_ns + kMemoryNs;
}

int64_t LightFlows::LeastOfOthers(const FlowId& flow, int64_t now_ns) const {
  int64_t least_ns = std::numeric_limits<int64_t>::max();
  for (const Entry& entry : entries_) {
    if (!entry.IsOf(flow) && !entry.IsOver(now_ns)) {
      least_ns = std::min(least_ns, entry.least_ns);
    }
  }
  return least_ns;
}

}  // namespace gemmd
