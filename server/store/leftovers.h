// SPDX-License-Identifier: Apache-2.0
//
// What a change of the store leaves behind: it is freed, and told to those who wait, once the
// store's lock is free. Declare it before the lock.
#pragma once

#include <memory>
#include <vector>

#include "server/store/tensor_store.h"

namespace gemmd {

struct TensorStore::Leftovers {
  Leftovers() = default;
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;
  ~Leftovers() {
    for (const auto& upload : uploads) upload->End(NoSuchUpload());
  }

  // The same words whether there never was such an upload, or it has expired.
  static absl::Status NoSuchUpload() {
    return absl::NotFoundError(
        "upload: got an unknown id, want that of an upload of this session whose lease has not "
        "ended");
  }

  std::vector<std::shared_ptr<const Tensor>> tensors;
  std::vector<std::shared_ptr<Upload>> uploads;
  std::vector<std::shared_ptr<Session>> sessions;
};

}  // namespace gemmd
