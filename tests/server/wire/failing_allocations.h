// SPDX-License-Identifier: Apache-2.0
//
// Makes long allocations of the process fail in turn; allocation_test.cc has the allocators.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <string>

namespace gemmd {

inline constexpr size_t kLongAllocation = size_t{64} << 10;

// The number of long allocations until one fails; none fails if it is not positive.
inline std::atomic<int> until_failure{0};

inline bool AllocationFails(size_t bytes) {
  return bytes >= kLongAllocation && until_failure.fetch_sub(1) == 1;
}

struct Failures {
  int refused = 0;
  std::string messages;
};

// Repeats the request until no further allocation fails. Each failure must refuse the request.
template <typename Ask>
Failures FailInTurn(const Ask& ask) {
  Failures failures;
  for (bool has_failed = true; has_failed;) {
    until_failure = failures.refused + 1;
    const grpc::Status status = ask();
    has_failed = until_failure.exchange(0) <= 0;
    EXPECT_EQ(status.error_code(),
              has_failed ? grpc::StatusCode::RESOURCE_EXHAUSTED : grpc::StatusCode::OK)
        << "allocation " << failures.refused + 1 << ": " << status.error_message();
    failures.refused += has_failed ? 1 : 0;
    failures.messages += status.error_message() + "\n";
    if (failures.refused >= 100) {
      ADD_FAILURE() << "no end of allocations";
      break;
    }
  }
  EXPECT_TRUE(ask().ok());
  return failures;
}

}  // namespace gemmd
