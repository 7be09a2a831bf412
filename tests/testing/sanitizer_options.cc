// SPDX-License-Identifier: Apache-2.0
//
// Options of the sanitizers, read by their run-time libraries in tests built with one: an
// allocation that is too large returns null, as without sanitizers.
extern "C" {
const char* __asan_default_options();  // NOLINT: the names are the sanitizers'.
const char* __tsan_default_options();  // NOLINT
const char* __asan_default_options() { return "allocator_may_return_null=1"; }
const char* __tsan_default_options() { return "allocator_may_return_null=1"; }
}
