// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gemmd {

// What `work` returns, a status or a value or one; where it finds no memory, ResourceExhausted with
// the message.
template <typename Work>
auto OrNoMemory(std::string_view message, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::string_view(message.data(), message.size()));
  }
}

}  // namespace gemmd
