// SPDX-License-Identifier: Apache-2.0
#include "tests/data_plane/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace gemmd {

namespace {

// A line of /proc/PID/status with a value in KiB.
int64_t StatusBytes(int pid, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  Fail("no " + name + " of process " + std::to_string(pid));
}

}  // namespace

int64_t ResidentBytes(int pid) { return StatusBytes(pid, "VmRSS"); }

int64_t PeakResidentBytes(int pid) { return StatusBytes(pid, "VmHWM"); }

void ForgetPeak(int pid) {
  std::ofstream file("/proc/" + std::to_string(pid) + "/clear_refs");
  if (!(file << "5" << std::flush)) Fail("the peak of the daemon's memory cannot be forgotten");
}

void Print(const Row& row) {
  nlohmann::json line = {{"row", row.what},        {"unit", row.unit}, {"seen", row.seen},
                         {"measure", row.measure}, {"by", row.by},     {"ratio", row.ratio()}};
  if (row.wanted) {
    line[row.is_most ? "at_most" : "at_least"] = *row.wanted;
    line["verdict"] = row.is_reached() ? "reached" : "missed";
  }
  if (row.baseline) line["baseline"] = *row.baseline;
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double SecondsOf(const std::function<void()>& call) {
  const double start = NowSeconds();
  call();
  return NowSeconds() - start;
}

double RateOf(const std::function<void()>& call, double seconds) {
  call();
  const double start = NowSeconds();
  int calls = 0;
  do {
    call();
    ++calls;
  } while (NowSeconds() < start + seconds);
  return calls / (NowSeconds() - start);
}

std::vector<double> InTurns(const std::vector<std::function<double()>>& measures, int turns) {
  std::vector<std::vector<double>> seen(measures.size());
  for (int turn = 0; turn < turns; ++turn) {
    for (size_t i = 0; i < measures.size(); ++i) seen[i].push_back(measures[i]());
  }
  std::vector<double> medians;
  for (const std::vector<double>& values : seen) medians.push_back(Median(values));
  return medians;
}

void Fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(1);
}

}  // namespace gemmd
