// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "kernels/cpu/host.h"

namespace gemmd::bench {
namespace {

double GigaOperations(const Measurement& measurement, double seconds) {
  return measurement.operations() / seconds / 1e9;
}

}  // namespace

std::string TableHeader() {
  return absl::StrFormat("%-32s %-16s %10s %10s  %-18s %6s %8s  %s\n", "kernel", "m x n x k",
                         "Gop/s", "library", "called as", "ratio", "samples", "check");
}

std::string TableLine(const Measurement& m) {
  return absl::StrFormat("%-32s %-16s %10.1f %10.1f  %-18s %6.3f %8d  %s\n", m.kernel,
                         NameOf(m.shape), GigaOperations(m, m.kernel_seconds),
                         GigaOperations(m, m.library_seconds), m.library_call, m.ratio, m.samples,
                         m.verdict);
}

std::string ToJson(const Environment& environment, const std::vector<Measurement>& measurements) {
  nlohmann::ordered_json json;
  json["processor"] = environment.processor;
  json["threads"] = environment.threads;
  for (const LibraryVersion& library : CpuLibraries()) {
    json["libraries"][library.name] = library.version;
  }
  json["measurements"] = nlohmann::ordered_json::array();
  for (const Measurement& m : measurements) {
    json["measurements"].push_back({{"kernel", m.kernel},
                                    {"m", m.shape.m},
                                    {"n", m.shape.n},
                                    {"k", m.shape.k},
                                    {"kernel_seconds", m.kernel_seconds},
                                    {"library_call", m.library_call},
                                    {"library_seconds", m.library_seconds},
                                    {"kernel_gops", GigaOperations(m, m.kernel_seconds)},
                                    {"library_gops", GigaOperations(m, m.library_seconds)},
                                    {"ratio", m.ratio},
                                    {"samples", m.samples},
                                    {"check", m.verdict}});
  }
  return json.dump(2) + "\n";
}

}  // namespace gemmd::bench
