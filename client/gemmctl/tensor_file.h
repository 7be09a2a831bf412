// SPDX-License-Identifier: Apache-2.0
//
// Tensors of .safetensors files as gemmctl reads and makes them. In a file, the elements of a
// tensor follow each other without gaps; here, each line of a matrix begins on a byte.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/gemmctl/convert_tensor.h"
#include "client/matrix/safetensors.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// Whether a path is of such a file, as its end says.
bool IsTensorFile(const std::string& path);

// The tensor, whose bytes lie in the file or, where elements are narrower than a byte, in `own`.
// `hint` is the type that its bits are taken for, of the width that the file says; unspecified: the
// file's. Errors: InvalidArgument, with the name, where it has no element type.
absl::StatusOr<SourceTensor> TensorOf(const MappedSafetensors& file, const SafetensorsEntry& entry,
                                      v1::ElementType hint, std::string& own);

// The entries of a tensor that PlanConversion plans: its elements, or its 2:4 form as U8, and its
// factors, F32, as NAME_scale. Offsets begin at 0.
// Errors: InvalidArgument for a type that such a file cannot name.
absl::StatusOr<std::vector<SafetensorsEntry>> EntriesFor(const std::string& name,
                                                         const NpyArray& planned,
                                                         const TensorConversion& conversion);

// What a reader of a 2:4 form has to know, as keys and values of the file's metadata.
std::vector<std::pair<std::string, std::string>> MetadataFor(const std::string& name,
                                                             const NpyArray& planned);

// The bytes of those entries, one after the other.
std::string BytesFor(const ConvertedTensor& tensor);

}  // namespace gemmd
