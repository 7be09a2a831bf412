// SPDX-License-Identifier: Apache-2.0
//
// The machine that the load comes from.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gemmd {

struct ClientMachine {
  std::string host = {};
  std::string cpu = {};     // Empty: the system does not say.
  int cores = 0;            // The machine's.
  double usable_cores = 0;  // By this process.
};
ClientMachine ThisMachine();

// The processor's name in the text of /proc/cpuinfo; empty where there is none.
std::string CpuOf(absl::string_view cpuinfo);

}  // namespace gemmd
