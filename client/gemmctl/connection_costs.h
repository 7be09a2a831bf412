// SPDX-License-Identifier: Apache-2.0
//
// What the connection of a command cost beside its product.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gemmd/client.h"

namespace gemmd {

// What comes beside a product, told by calls that compute nothing.
struct ConnectionCosts {
  // What the first call took longer than the next one: the connection, and the session if any.
  int64_t connect_ns = 0;
  int64_t empty_call_ns = 0;  // A call on the connection that is there.
};

// Calls twice. `start`: when whoever made the client began to. Nothing where a call fails with
// another error than DeadlineExceeded: the product's call then tries again, and says why.
absl::StatusOr<std::optional<ConnectionCosts>> MeasureConnection(Client& client, absl::Time start);

// "connect  1.20 ms, and 310 us for an empty call".
std::string ConnectionText(const ConnectionCosts& costs);

}  // namespace gemmd
