// SPDX-License-Identifier: Apache-2.0
//
// What rules say of the caller of a product (server/trust).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/scheduling/product_runner.h"

namespace gemmd {

// Errors: ResourceExhausted where the message is longer than the caller's may be.
absl::Status CheckMessage(int64_t bytes, const Arrival& arrival);

// Holds a request to its priority and to the devices that its caller may use.
// Errors: PermissionDenied where there is none.
absl::Status RestrictToGrant(const Grant& grant, const std::vector<ServedDevice>& devices,
                             const ProductRunner& runner, Product& product);

// Counts the product among those of its caller until it is done.
// Errors: as Meter::Enter, with the time after which to try again.
absl::Status EnterMeter(const Identity& identity, Product& product, int64_t now_ns);

// Counts what became of a product for the rule of its caller: it was not let in, or it has ended.
// Several that ran as one share the time that they all took.
void CountRefusal(const Arrival& arrival);
void CountEnd(Product& product);

}  // namespace gemmd
