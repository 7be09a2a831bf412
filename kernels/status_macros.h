// SPDX-License-Identifier: Apache-2.0
//
// The two macros of this tree: both leave the function with a status that is not OK. Names and
// meaning are Abseil's own, whose 2022 release does not ship them.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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
