// SPDX-License-Identifier: Apache-2.0
//
// How answers are checked before they are given: what was asked for, and what came of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "kernels/verify/sampled.h"

namespace gemmd {

enum class VerifyMode : uint8_t { kNone, kSampled, kChecksum, kDuplicate };
inline constexpr size_t kVerifyModes = 4;
std::string_view NameOf(VerifyMode mode);  // "sampled"

struct VerifyRule {
  VerifyMode mode = VerifyMode::kNone;
  double rate = verify::kDefaultRate;  // For kSampled: above 0 and at most 1.
};

// "none", "sampled", "sampled:0.001", "checksum", "duplicate".
// Errors: InvalidArgument, with `field` in front.
absl::StatusOr<VerifyRule> ParseVerifyRule(std::string_view field, std::string_view text);

// What the server does where a product asks for nothing, and where it finds a wrong answer.
struct VerifyOptions {
  VerifyRule rule;
  bool retry = false;  // Computes it again elsewhere instead of refusing.
  int threads = 0;     // That check. 0: a quarter of the processors, at least one.
};

enum class VerifyEnd : uint8_t { kPassed, kFailed, kNotVerified };
inline constexpr size_t kVerifyEnds = 3;
std::string_view NameOf(VerifyEnd end);  // "not_verified"

// What the check of an answer that was given came to.
struct AnswerVerification {
  VerifyMode mode = VerifyMode::kNone;
  VerifyEnd end = VerifyEnd::kNotVerified;  // Never kFailed.
  std::string_view reason;                  // For kNotVerified.
  int64_t elements_checked = 0;
  double miss_probability = 1;
  double cost = 0;
  double least_error = 0;
  int64_t verify_ns = 0;
  std::string_view kernel = {};  // For kDuplicate: those that computed it once more.
  std::string_view device = {};
  int wrong_answers = 0;  // That this product had before this one.
};

// Whether a product can be checked so by its kernel, and the bytes and the operations that this
// takes beside it. Errors: Unimplemented; ResourceExhausted where the check would take too long.
struct VerifyNeeds {
  int64_t bytes = 0;
};
absl::StatusOr<VerifyNeeds> NeedsOf(const VerifyRule& rule, const Kernel& kernel,
                                    const Problem& problem);

}  // namespace gemmd
