// SPDX-License-Identifier: Apache-2.0
//
// Host devices that all tests of a process share, because measuring the rates of another one takes
// half a second. Code that destroys its devices gets a ScriptedDevice over one of them.
#pragma once

#include "kernels/cpu/host.h"
#include "tests/server/device/local_device.h"

namespace gemmd {

// `cpu`, on one thread.
inline LocalDevice& SharedHost() {
  static LocalDevice host(HostTarget(), 1);
  return host;
}

// `sim:sm_90`, on two threads.
inline LocalDevice& SharedSimulator() {
  static LocalDevice simulator({.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90}, 2);
  return simulator;
}

}  // namespace gemmd
