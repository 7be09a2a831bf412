// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/plot_tips.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/load/report/plot_frame.h"
#include "client/terminal/markup.h"

namespace gemmd {
namespace {

using Frame = PlotFrame;

// Columns that are narrower could not be hit, and would make the page large.
constexpr double kLeastWidth = 6;
// More lines would hide the curves.
constexpr size_t kMostLines = 10;

std::vector<double> ColumnsOf(const Plot& plot) {
  std::vector<double> all;
  for (const PlotSeries& series : plot.series) {
    for (const PlotPoint& point : series.points) all.push_back(Frame::X(plot.x, point.x));
  }
  std::sort(all.begin(), all.end());
  std::vector<double> columns;
  for (const double x : all) {
    if (columns.empty() || x >= columns.back() + kLeastWidth) columns.push_back(x);
  }
  return columns;
}

// The nearest value of each curve that has one in the column.
std::string Lines(const Plot& plot, double column, double from, double to) {
  std::string html;
  size_t lines = 0;
  for (const PlotSeries& series : plot.series) {
    const PlotPoint* nearest = nullptr;
    double distance = 0;
    for (const PlotPoint& point : series.points) {
      const double x = Frame::X(plot.x, point.x);
      if (x < from || x > to) continue;
      if (nearest != nullptr && std::fabs(x - column) >= distance) continue;
      nearest = &point;
      distance = std::fabs(x - column);
    }
    if (nearest == nullptr) continue;
    if (++lines > kMostLines) return html + "<div>...</div>";
    absl::StrAppendFormat(&html, "<div><i class=\"b%d\"></i>%s</div>", series.color,
                          EscapedMarkup(absl::StrCat(series.name, ": ", nearest->what)));
  }
  return html;
}

}  // namespace

std::string PlotTips(const Plot& plot) {
  const std::vector<double> columns = ColumnsOf(plot);
  constexpr double kMiddle = (Frame::kLeft + Frame::kRight) / 2;
  std::string svg;
  for (size_t i = 0; i < columns.size(); ++i) {
    const double from = i == 0 ? Frame::kLeft : (columns[i - 1] + columns[i]) / 2;
    const double to = i + 1 == columns.size() ? Frame::kRight : (columns[i] + columns[i + 1]) / 2;
    // The box is in the other half, so that it does not hide what it tells of.
    absl::StrAppendFormat(
        &svg,
        "<g class=\"at\"><rect class=\"hit\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
        "<foreignObject class=\"tip%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">"
        "<div>%s</div></foreignObject></g>\n",
        from, Frame::kTop, to - from, Frame::kBottom - Frame::kTop,
        columns[i] < kMiddle ? " end" : "", columns[i] < kMiddle ? kMiddle : Frame::kLeft,
        Frame::kTop, Frame::kRight - kMiddle, Frame::kBottom - Frame::kTop,
        Lines(plot, columns[i], from, to));
  }
  return svg;
}

}  // namespace gemmd
