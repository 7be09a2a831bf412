// SPDX-License-Identifier: Apache-2.0
//
// What the fuzzer (tests/fuzz) demands of .npy files, over which the unit tests run seeded
// mutations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gemmd {

// The first byte picks the hint, the rest is the file. What is read must be written and read back
// the same, or the process ends; everything else must be refused, not crash.
void FuzzNpy(const uint8_t* data, size_t size);

}  // namespace gemmd
