// SPDX-License-Identifier: Apache-2.0
//
// Operands of an incident that the server has not kept, from files of whoever sent them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/terminal/console.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/incidents.pb.h"

namespace gemmd {

// Paths of .npy files; empty: none is given.
struct OperandFiles {
  std::string a;
  std::string b;
  std::string c;
  std::string bias;

  bool empty() const { return a.empty() && b.empty() && c.empty() && bias.empty(); }
};

// Puts the bytes of the files into the request, which has everything else. Whether they are the
// incident's is known by their hashes alone: files may have the matrices in either order, as long
// as the bytes are those that the server had. A dense A is compressed where the incident's was.
//
// Errors: InvalidArgument, which begins with the flag, where a file is wanted and not given, given
// and not wanted, or has other bytes; as ReadNpyFile.
absl::Status FillOperands(const OperandFiles& files, const v1::Incident& incident,
                          const Console& console, v1::MultiplyRequest& request);

}  // namespace gemmd
