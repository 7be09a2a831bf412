// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a catalogue as tables: for people, and for the README.
#pragma once

#include <string>

#include "gemmd/v1/registry.pb.h"

namespace gemmd {

// Columns: kernel, A, B, accumulation, computed in, provider, how. Nothing in it depends on the
// machine that the server runs on.
std::string KernelTableMarkdown(const v1::ListKernelsResponse& kernels);

// The same with the devices that run each kernel, without `how`.
std::string KernelTable(const v1::ListKernelsResponse& kernels);

}  // namespace gemmd
