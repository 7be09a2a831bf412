// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/flow.h"

namespace gemmd {

std::string_view HostOf(std::string_view peer) {
  constexpr std::string_view kUnix = "unix";
  if (peer.starts_with(kUnix)) return kUnix;
  return peer.substr(0, peer.rfind(':'));
}

}  // namespace gemmd
