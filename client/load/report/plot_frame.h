// SPDX-License-Identifier: Apache-2.0
//
// Where the values of a plot lie in its drawing, in units that the page scales.
#pragma once

#include <algorithm>
#include <cmath>

#include "client/load/report/svg_plot.h"

namespace gemmd {

// The margins hold the labels of the axes, which a page on a phone writes in larger letters.
struct PlotFrame {
  static constexpr double kWidth = 720;
  static constexpr double kHeight = 380;
  static constexpr double kLeft = 112;
  static constexpr double kRight = 672;
  static constexpr double kTop = 14;
  static constexpr double kBottom = 314;

  static double X(const PlotAxis& axis, double value) {
    return kLeft + Share(axis, value) * (kRight - kLeft);
  }
  static double Y(const PlotAxis& axis, double value) {
    return kBottom - Share(axis, value) * (kBottom - kTop);
  }

 private:
  // The place of a value on the axis, 0 to 1.
  static double Share(const PlotAxis& axis, double value) {
    const double share = axis.is_logarithmic ? std::log(std::max(value, axis.from) / axis.from) /
                                                   std::log(axis.to / axis.from)
                                             : (value - axis.from) / (axis.to - axis.from);
    return std::clamp(share, 0.0, 1.0);
  }
};

}  // namespace gemmd
