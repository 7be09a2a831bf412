// SPDX-License-Identifier: Apache-2.0
//
// Rows of the catalogue by patterns of their names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

// Whether a pattern with * ? and [] matches the whole name.
bool Matches(const std::string& pattern, std::string_view name);

// The rows that any of the patterns matches, in the catalogue's order.
std::vector<const Kernel*> ChooseRows(absl::Span<const Kernel> catalog,
                                      const std::vector<std::string>& patterns);

// The patterns that match none.
std::vector<std::string> IdlePatterns(absl::Span<const Kernel> catalog,
                                      const std::vector<std::string>& patterns);

}  // namespace gemmd::bench
