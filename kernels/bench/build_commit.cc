// SPDX-License-Identifier: Apache-2.0
//
// The only file of gemmbench that is recompiled for each new commit.
#include "kernels/bench/session.h"

namespace gemmd::bench {

std::string_view BuildCommit() { return GEMMD_COMMIT; }

}  // namespace gemmd::bench
