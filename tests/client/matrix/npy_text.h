// SPDX-License-Identifier: Apache-2.0
//
// .npy files in memory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/matrix/npy.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// Prefix, length field and text of a header, byte for byte, whether valid or not.
std::string RawNpyHeader(int major_version, absl::string_view dict);

// A whole file of format 1.0 with a header for the arguments, whatever the data is.
std::string NpyFileText(absl::string_view descr, absl::string_view shape, absl::string_view data,
                        bool fortran = false);

// Reads the text as a stream of unknown length.
absl::StatusOr<NpyArray> ReadNpyText(absl::string_view text,
                                     v1::ElementType hint = v1::ELEMENT_TYPE_UNSPECIFIED);

std::string WriteNpyText(const NpyArray& array);

}  // namespace gemmd
