// SPDX-License-Identifier: Apache-2.0
//
// The fuzzer's (tests/fuzz) properties of .npy files, which the unit tests check with seeded
// mutations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gemmd {

// The first byte selects the hint, the rest is the file. A file that is read must survive a round
// trip, or the process aborts; any other must be refused, without a crash.
void FuzzNpy(const uint8_t* data, size_t size);

}  // namespace gemmd
