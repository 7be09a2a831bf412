// SPDX-License-Identifier: Apache-2.0
#include "client/load/client_machine.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "client/load/cpu_usage.h"
#include "client/load/endpoint.h"

namespace gemmd {

std::string CpuOf(absl::string_view cpuinfo) {
  for (absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(':');
    if (colon == line.npos) continue;
    return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return "";
}

ClientMachine ThisMachine() {
  std::ostringstream cpuinfo;
  cpuinfo << std::ifstream("/proc/cpuinfo").rdbuf();
  return {.host = HostName(),
          .cpu = CpuOf(cpuinfo.str()),
          .cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)),
          .usable_cores = UsableCores()};
}

}  // namespace gemmd
