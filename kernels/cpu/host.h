// SPDX-License-Identifier: Apache-2.0
//
// The processor that this process runs on, as a target for kernels.
#pragma once

#include <string>
#include <vector>

#include "kernels/select.h"

namespace gemmd {

// Sets how many threads the libraries use for launches made by the calling thread from now on.
void SetThreads(int threads);

// Features of this processor.
Target HostTarget();
bool HasAmx();

// The processor's own name ("AMD EPYC ...").
std::string ProcessorName();

struct LibraryVersion {
  std::string name;
  std::string version;
};
std::vector<LibraryVersion> CpuLibraries();

}  // namespace gemmd
