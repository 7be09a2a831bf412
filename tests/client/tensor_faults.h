// SPDX-License-Identifier: Apache-2.0
//
// Faults of a Tensors service in tests.
#pragma once

#include <cstdint>
#include <set>

#include "absl/time/time.h"

namespace gemmd {

// Chunks and streams are numbered from 1 over all streams of the server's life.
struct TensorFaults {
  int64_t max_chunk_bytes = int64_t{1} << 20;
  int64_t max_bytes = int64_t{1} << 40;  // For all tensors; more is RESOURCE_EXHAUSTED.
  std::set<int> broken_put_chunks =
      {};  // Uploaded chunks; the stream of each ends with UNAVAILABLE, and the chunk is lost.
  std::set<int> broken_get_chunks = {};  // The same for downloaded chunks.
  std::set<int> broken_puts = {};  // Streams that end with UNAVAILABLE before their first answer.
  std::set<int> broken_sessions = {};  // The same for streams of sessions.
  bool ignores_chunks = false;         // Accepts no chunk; the streams stay open.
  bool sends_wrong_offsets = false;    // In Get.
  bool wants_too_much = false;         // Put asks for bytes outside of the tensor.
  absl::Duration session_delay = {};   // Before a session is opened.
};

}  // namespace gemmd
