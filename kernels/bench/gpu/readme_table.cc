// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/readme_table.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "kernels/bench/statistics.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd::bench {
namespace {

using Measurements = std::vector<const GpuMeasurement*>;

bool IsOfSameProduct(const GpuMeasurement& a, const GpuMeasurement& b) {
  return a.instruction == b.instruction && a.shape == b.shape && a.orders == b.orders &&
         a.leading_dimension_offset == b.leading_dimension_offset;
}

// Of every instruction, shape and layout the fastest kernel, where the first of them stands.
Measurements Fastest(const GpuReport& report) {
  Measurements fastest;
  for (const GpuMeasurement& m : report.measurements) {
    const auto found = std::find_if(fastest.begin(), fastest.end(),
                                    [&m](const auto* other) { return IsOfSameProduct(m, *other); });
    if (found == fastest.end()) {
      fastest.push_back(&m);
    } else if (m.seconds < (*found)->seconds) {
      *found = &m;
    }
  }
  return fastest;
}

bool IsPlainCube(const GpuMeasurement& m) {
  return m.shape.m == m.shape.n && m.shape.n == m.shape.k && m.orders == "rcr" &&
         m.leading_dimension_offset == 0;
}

// Of every instruction its largest cube.
Measurements LargestCubes(const Measurements& fastest) {
  Measurements largest;
  for (const GpuMeasurement* m : fastest) {
    if (!IsPlainCube(*m)) continue;
    const auto found = std::find_if(largest.begin(), largest.end(), [m](const auto* other) {
      return other->instruction == m->instruction;
    });
    if (found == largest.end()) {
      largest.push_back(m);
    } else if (m->shape.m > (*found)->shape.m) {
      *found = m;
    }
  }
  return largest;
}

std::string RateText(double rate) {
  return absl::StrFormat("%.*f", rate < 1e14 ? 1 : 0, rate / 1e12);
}

std::string LibraryText(const GpuMeasurement& m, const std::optional<LibraryTime>& library) {
  if (!library) return "- | -";
  return absl::StrFormat("%s | %.2f", RateText(m.RateOf(*library)), library->ratio);
}

std::string Ceiling(const GpuMeasurement& m) {
  return m.ceiling ? absl::StrFormat("%.0f%%", 100 * m.rate() / *m.ceiling) : "-";
}

std::string Layout(const GpuMeasurement& m) {
  if (m.leading_dimension_offset == 0) return m.orders;
  return Concat(m.orders, ", +", m.leading_dimension_offset);
}

std::string Line(const GpuMeasurement& m) {
  const std::string alone =
      m.kernel_seconds ? RateText(m.shape.operations() / *m.kernel_seconds) : "-";
  return absl::StrFormat("| `%s`%s | %s | %s | %s | %.1f%% | %s | %s | %s | %s |\n", m.kernel,
                         m.is_sparse ? " *" : "", NameOf(m.shape), Layout(m), RateText(m.rate()),
                         100 * m.spread, alone, Ceiling(m), LibraryText(m, m.cublaslt),
                         LibraryText(m, m.cusparselt));
}

std::string Table(const Measurements& measurements) {
  std::string text =
      "| kernel | m x n x k | layout | T/s | spread | kernel alone | of ceiling | cuBLASLt | ratio "
      "| cuSPARSELt | ratio |\n"
      "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const GpuMeasurement* m : measurements) text += Line(*m);
  return text;
}

std::string VersionText(std::string_view library, const std::string& version) {
  return Concat(library, " ", version.empty() ? "not there" : version);
}

std::string Clocks(const GpuReport& report) {
  std::vector<double> clocks;
  for (const GpuMeasurement& m : report.measurements) clocks.push_back(m.sm_clock_mhz);
  return absl::StrFormat("%.0f to %.0f MHz of %d", Quantile(clocks, 0), Quantile(clocks, 1),
                         report.max_sm_clock_mhz);
}

std::string Heading(const GpuReport& report) {
  int64_t compared = 0;
  for (const GpuMeasurement& m : report.measurements) compared += m.compared;
  return Concat("On one ", report.gpu, " (", report.chip, ", ", report.multiprocessors,
                " multiprocessors, ", Clocks(report), "), driver ", report.driver, ", CUDA ",
                report.cuda, ", ", VersionText("cuBLASLt", report.cublaslt), ", ",
                VersionText("cuSPARSELt", report.cusparselt), "; ", report.date, ", commit ",
                report.commit, ":\n`", report.command, "`. ", report.measurements.size(),
                " measurements; ", compared,
                " elements of D were compared with the simulator's, all equal bit for bit.\n\n");
}

// Refuses to publish what is wrong.
absl::Status CheckReport(const GpuReport& report) {
  if (report.measurements.empty()) {
    return absl::InvalidArgumentError("report: got no measurement, want one or more");
  }
  for (const GpuMeasurement& m : report.measurements) {
    if (m.is_right() && m.compared > 0) continue;
    return absl::InvalidArgumentError(Concat("report: ", m.kernel, " at ", NameOf(m.shape), ": ",
                                             m.compared, " elements compared, ", m.mismatches,
                                             " wrong; ", m.problem));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadmeTable(const std::vector<GpuReport>& reports) {
  std::string text;
  for (const GpuReport& report : reports) {
    RETURN_IF_ERROR(CheckReport(report));
    const Measurements fastest = Fastest(report);
    if (!text.empty()) text += "\n";
    text += Heading(report) + Table(LargestCubes(fastest));
    text += Concat("\n<details><summary>", fastest.size(), " products</summary>\n\n",
                   Table(fastest), "\n</details>\n");
  }
  return text;
}

}  // namespace gemmd::bench
