// SPDX-License-Identifier: Apache-2.0
//
// What a plot tells where the pointer rests, or a finger: the values of all curves there. The style
// sheet shows and hides it (classes at, hit and tip), without a script.
#pragma once

#include <string>

#include "client/load/report/svg_plot.h"

namespace gemmd {

// Columns that together cover the plot, each with its values, as elements of SVG.
std::string PlotTips(const Plot& plot);

}  // namespace gemmd
