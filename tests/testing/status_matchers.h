// SPDX-License-Identifier: Apache-2.0
//
// Matchers for absl::Status and absl::StatusOr, with the names and meaning of those in Abseil,
// which are missing in its 2022 release.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gemmd {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  if (StatusOf(arg).ok()) return true;
  *result_listener << StatusOf(arg).ToString();
  return false;
}

MATCHER_P2(StatusIs, code, message,
           "has code " + absl::StatusCodeToString(code) + " and a message that " +
               ::testing::DescribeMatcher<std::string>(message)) {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code && ::testing::Matches(::testing::Matcher<std::string>(message))(
                                      std::string(status.message()));
}

inline auto StatusIs(absl::StatusCode code) { return StatusIs(code, ::testing::_); }

}  // namespace gemmd
