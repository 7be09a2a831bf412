// SPDX-License-Identifier: Apache-2.0
//
// All tensors of a .safetensors file at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/gemmctl/convert_report.h"
#include "client/gemmctl/convert_tensor.h"
#include "client/matrix/safetensors.h"

namespace gemmd {

struct FileConversion {
  std::vector<ConversionReport> reports = {};  // One for each tensor that was converted.
  int64_t copied = 0;
};

// Writes `path` with every tensor of `input`: those of float types converted, with factors or 2:4
// forms only matrices, all others as they are. One tensor is in memory at a time.
// Errors: InvalidArgument, naming the tensor; Internal where the file cannot be written. There is
// no file then.
absl::StatusOr<FileConversion> ConvertFile(const MappedSafetensors& input,
                                           const TensorConversion& conversion,
                                           const std::string& path);

// Writes `path` with one tensor. Errors: as ConvertFile.
absl::StatusOr<ConversionReport> ConvertToFile(const SourceTensor& input,
                                               const TensorConversion& conversion,
                                               const std::string& path);

}  // namespace gemmd
