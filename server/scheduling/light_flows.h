// SPDX-License-Identifier: Apache-2.0
//
// Whose products are light: how much work a device may have ahead of time depends on who could come
// while it has it.
//
// Knows no clock and no lock.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "server/scheduling/flow.h"

namespace gemmd {

// Remembers the two flows with the least products, so that there is another one for each flow.
class LightFlows {
 public:
  // For so long a flow counts that sends nothing.
  static constexpr int64_t kMemoryNs = 10'000'000'000;

  // A job of the flow has come, which is predicted to take so long.
  void Add(const FlowId& flow, int64_t predicted_ns, int64_t now_ns);

  // The least time that a job of another flow was predicted to take of late; the largest number
  // where there was none.
  int64_t LeastOfOthers(const FlowId& flow, int64_t now_ns) const;

 private:
  struct Entry {
    std::string caller;
    uint64_t connection = 0;
    int64_t least_ns = std::numeric_limits<int64_t>::max();
    int64_t until_ns = std::numeric_limits<int64_t>::min();

    bool IsOver(int64_t now_ns) const { return until_ns <= now_ns; }
    bool IsOf(const FlowId& flow) const {
      return caller == flow.caller && connection == flow.connection;
    }
  };

  std::array<Entry, 2> entries_;
};

}  // namespace gemmd
