// SPDX-License-Identifier: Apache-2.0
//
// The only file of gemmbench that a new commit compiles anew.
#include "kernels/bench/session.h"

namespace gemmd::bench {

std::string_view BuildCommit() { return GEMMD_COMMIT; }

}  // namespace gemmd::bench
