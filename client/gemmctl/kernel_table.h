// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a catalogue as a table.
#pragma once

#include <string>

#include "gemmd/v1/registry.pb.h"

namespace gemmd {

// The kernels that some device runs or, where `device` is given, that this one runs. With
// `is_complete`, the kernels for the device's kind, or all of them, whether they run or not.
v1::ListKernelsResponse SelectKernels(const v1::ListKernelsResponse& kernels,
                                      const v1::Device* device, bool is_complete);

// Types, provider and the devices that run each kernel. Unless `is_complete`, kernels of wgmma that
// differ in N alone share a line.
std::string KernelTable(const v1::ListKernelsResponse& kernels, bool is_complete);

}  // namespace gemmd
