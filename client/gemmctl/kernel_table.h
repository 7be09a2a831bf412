// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a catalogue as tables: for people, and for the README.
#pragma once

#include <string>

#include "gemmd/v1/registry.pb.h"

namespace gemmd {

// The kernels that some device runs or, where `device` is given, that this one runs. With
// `is_complete` those of the device's kind, or all, whether they run or not.
v1::ListKernelsResponse SelectKernels(const v1::ListKernelsResponse& kernels,
                                      const v1::Device* device, bool is_complete);

// Columns: kernel, A, B, accumulation, computed in, provider, how. Nothing in it depends on the
// machine that the server runs on.
std::string KernelTableMarkdown(const v1::ListKernelsResponse& kernels);

// The same with the devices that run each kernel, without `how`. Unless `is_complete`, kernels of
// wgmma that differ in N alone share a line.
std::string KernelTable(const v1::ListKernelsResponse& kernels, bool is_complete);

}  // namespace gemmd
