// SPDX-License-Identifier: Apache-2.0
//
// What the log and the audit log tell of products.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "server/scheduling/product.h"
#include "server/scheduling/scheduler.h"

namespace gemmd {

// A message was refused before it was read.
void LogRefusal(const Arrival& arrival, const absl::Status& status);

// A product was refused, perhaps before it was known what it is: its message has so many bytes.
void LogRefusal(const Arrival& arrival, int64_t bytes, const absl::Status& status);

// A product that was let in, and how it ended.
struct EndedProduct {
  const Arrival& arrival;
  const Problem& problem;
  std::string_view kernel;
  std::string_view device;
  const absl::Status& status;
  const JobResult& result;
  ProductTiming timing;  // As far as the stages are known where the status is not OK.
};
void LogProduct(const EndedProduct& product);

}  // namespace gemmd
