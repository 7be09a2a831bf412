// SPDX-License-Identifier: Apache-2.0
//
// Factors of blocks from the command line: --blocks-a says what they are, --scale-a where.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/matrix/npy.h"
#include "client/terminal/console.h"
#include "gemmd/product.h"

namespace gemmd {

struct BlockFile {
  BlockScaleView form = {};  // Without its bytes.
  NpyArray factors = {};

  // Valid while this is there, unchanged.
  BlockScaleView view() const;
};

// Reads factors: `form` is "f32:1x128", `path` a .npy file of two dimensions, or of three with a
// matrix of factors for each matrix of the batch.
// Errors: InvalidArgument, naming the flags, for another form or array; as ReadArray.
absl::StatusOr<BlockFile> ReadBlocks(const std::string& form_flag, const std::string& form,
                                     const std::string& path_flag, const std::string& path,
                                     const Console& console);

}  // namespace gemmd
