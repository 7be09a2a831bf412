// SPDX-License-Identifier: Apache-2.0
//
// The entry of libFuzzer for .npy files, which the unit tests run too.
#pragma once

#include <cstddef>
#include <cstdint>

// The first byte picks the hint, the rest is the file. What is read must be written and read back
// the same; everything else must be refused, not crash.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
