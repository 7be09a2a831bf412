// SPDX-License-Identifier: Apache-2.0
//
// Whether this is a build with AddressSanitizer or ThreadSanitizer, which are ten times slower: in
// such a build, large tests omit cases that repeat the same accesses with other numbers. The
// release build runs all cases.
#pragma once

namespace gemmd {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace gemmd
