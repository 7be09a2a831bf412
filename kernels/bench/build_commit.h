// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace gemmd::bench {

// The commit that the program was built from, as git describes it; "unknown" where it was not built
// in a repository.
std::string_view BuildCommit();

}  // namespace gemmd::bench
