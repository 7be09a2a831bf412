// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong in a Tensors service of the tests.
#pragma once

#include <cstdint>
#include <set>

#include "absl/time/time.h"

namespace gemmd {

// Numbers count from 1 over all streams of the server's life.
struct TensorFaults {
  int64_t max_chunk_bytes = int64_t{1} << 20;
  int64_t max_bytes = int64_t{1} << 40;  // For all tensors; more is RESOURCE_EXHAUSTED.
  std::set<int> broken_put_chunks =
      {};  // The stream that brings one ends with UNAVAILABLE, the chunk lost.
  std::set<int> broken_get_chunks = {};  // The same of those that are asked for.
  std::set<int> broken_puts = {};  // Streams that end with UNAVAILABLE before their first answer.
  std::set<int> broken_sessions = {};  // Streams of sessions that end so, too.
  bool ignores_chunks = false;         // Takes no chunk; the streams stay open.
  bool sends_wrong_offsets = false;    // In Get.
  bool wants_too_much = false;         // Put asks for bytes outside of the tensor.
  absl::Duration session_delay = {};   // Before a session is opened.
};

}  // namespace gemmd
