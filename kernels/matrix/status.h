// SPDX-License-Identifier: Apache-2.0
//
// Macros that return early with a non-OK status. Their names and meaning are Abseil's, whose 2022
// release lacks them.
#pragma once

#include <new>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#define GEMMD_CONCAT_INNER(a, b) a##b
#define GEMMD_CONCAT(a, b) GEMMD_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                           \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)

#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_INNER(GEMMD_CONCAT(status_or_, __LINE__), declaration, expression)

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration takes none.
#define ASSIGN_OR_RETURN_INNER(holder, declaration, expression) \
  auto holder = (expression);                                   \
  if (!holder.ok()) return std::move(holder).status();          \
  declaration = *std::move(holder)
// NOLINTEND(bugprone-macro-parentheses)

namespace gemmd {

// Returns the result of `work` (absl::Status or absl::StatusOr), or ResourceExhausted with the
// message if memory runs out.
template <typename Work>
auto OrNoMemory(std::string_view message, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::string_view(message.data(), message.size()));
  }
}

}  // namespace gemmd
