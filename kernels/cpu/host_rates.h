// SPDX-License-Identifier: Apache-2.0
//
// How fast the kernels of this host are.
#pragma once

#include "kernels/device_profile.h"

namespace gemmd {

// The rate of every engine that the target has, measured with a small product on the calling thread
// alone and multiplied by the number of threads that SetThreads gave it. Takes some ten
// milliseconds for each engine.
DeviceProfile MeasureRates(const Target& target);

}  // namespace gemmd
