// SPDX-License-Identifier: Apache-2.0
//
// What the benchmark of the data plane prints, and how it measures: things that are compared take
// turns, so that all see the same machine, and of what was seen the median counts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gemmd {

// What was seen of one goal, beside what it is measured by.
struct Row {
  std::string what;
  std::string unit;
  double seen = 0;
  // What the older program shows of the same, in the same unit.
  std::optional<double> baseline = {};
  // What `seen` is divided by, and what that is; 1 where the goal is a number by itself.
  std::string measure = "";
  double by = 1;
  // The least ratio that is wanted, or the greatest; nothing where there is no goal.
  std::optional<double> wanted = {};
  bool is_most = false;

  double ratio() const { return seen / by; }
  bool is_reached() const { return is_most ? ratio() <= *wanted : ratio() >= *wanted; }
};

// A line of JSON on standard output.
void Print(const Row& row);

double NowSeconds();

// The resident memory of another process of this user, in bytes.
int64_t ResidentBytes(int pid);
// The most that it has had since that was forgotten.
int64_t PeakResidentBytes(int pid);
void ForgetPeak(int pid);
double Median(std::vector<double> values);

// Seconds that one call takes.
double SecondsOf(const std::function<void()>& call);
// Calls a second, one after the other for so long, after one that does not count.
double RateOf(const std::function<void()>& call, double seconds);

// Measures each in turn, `turns` times, and gives the median of each.
std::vector<double> InTurns(const std::vector<std::function<double()>>& measures, int turns);

// Ends the program with what went wrong.
[[noreturn]] void Fail(const std::string& text);

}  // namespace gemmd
