// SPDX-License-Identifier: Apache-2.0
//
// What the log and the audit log tell of products.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "server/scheduling/product.h"

namespace gemmd {

// A message was refused before it was read.
void LogRefusal(const Arrival& arrival, const absl::Status& status);

// A product was refused, perhaps before it was known what it is: its message has so many bytes.
void LogRefusal(const Arrival& arrival, int64_t bytes, const absl::Status& status);

// A product that was let in has ended.
void LogProduct(const Product& product);

}  // namespace gemmd
