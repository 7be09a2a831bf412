// SPDX-License-Identifier: Apache-2.0
//
// The output and the method of the data plane's benchmark: things that are compared take turns, so
// that all see the same machine, and the median of the results counts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gemmd {

// The result for one goal, and what it is compared with.
struct Row {
  std::string what;
  std::string unit;
  double seen = 0;
  // The older program's result, in the same unit.
  std::optional<double> baseline = {};
  // What `seen` is divided by, and its value; 1 if the goal is a number.
  std::string measure = "";
  double by = 1;
  // The smallest ratio wanted, or the largest if `is_most`; absent if there is no goal.
  std::optional<double> wanted = {};
  bool is_most = false;

  double ratio() const { return seen / by; }
  bool is_reached() const { return is_most ? ratio() <= *wanted : ratio() >= *wanted; }
};

// Prints a line of JSON on standard output.
void Print(const Row& row);

double NowSeconds();

// The resident memory of another process of this user, in bytes.
int64_t ResidentBytes(int pid);
// The peak of the resident memory since ForgetPeak.
int64_t PeakResidentBytes(int pid);
void ForgetPeak(int pid);
double Median(std::vector<double> values);

// The seconds that one call takes.
double SecondsOf(const std::function<void()>& call);
// Calls a second, one after the other for `seconds`, after one that does not count.
double RateOf(const std::function<void()>& call, double seconds);

// Measures each in turn, `turns` times, and returns the median of each.
std::vector<double> InTurns(const std::vector<std::function<double()>>& measures, int turns);

// Ends the program with an error.
[[noreturn]] void Fail(const std::string& text);

}  // namespace gemmd
