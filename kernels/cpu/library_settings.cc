// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/library_settings.h"

#include <cblas.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/host.h"
#include "kernels/host_rates.h"

namespace gemmd {

bool IsSetInEnvironment(const char* variable) {
  return getenv(variable) != nullptr;  // NOLINT(concurrency-mt-unsafe)
}

void PreferSettings(absl::Span<const LibrarySetting> settings, char** argv) {
  bool has_new = false;
  for (const LibrarySetting& setting : settings) {
    if (setting.value.empty() || IsSetInEnvironment(setting.variable)) continue;
    setenv(setting.variable, setting.value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    has_new = true;
  }
  if (has_new) execv("/proc/self/exe", argv);
}

namespace {

constexpr char kCore[] = "OPENBLAS_CORETYPE";
constexpr char kTimes[] = "GEMMD_OPENBLAS_CORE_TIMES";

// The cores to try, widest vectors first.
constexpr std::pair<VectorIsa, std::string_view> kTried[] = {{VectorIsa::kAvx512, "SkylakeX"},
                                                             {VectorIsa::kAvx2, "Haswell"},
                                                             {VectorIsa::kAvx, "Sandybridge"}};

// The vectors of a core of OpenBLAS 0.3.21. An unknown name is a newer core, which needs no
// correction.
VectorIsa IsaOf(std::string_view core) {
  using enum VectorIsa;
  static constexpr std::pair<std::string_view, VectorIsa> kKnown[] = {
      {"Katmai", kSse},       {"Coppermine", kSse}, {"Northwood", kSse},  {"Prescott", kSse},
      {"Banias", kSse},       {"Atom", kSse},       {"Core2", kSse},      {"Penryn", kSse},
      {"Dunnington", kSse},   {"Nehalem", kSse},    {"Athlon", kSse},     {"Opteron", kSse},
      {"Opteron_SSE3", kSse}, {"Barcelona", kSse},  {"Nano", kSse},       {"Bobcat", kSse},
      {"Sandybridge", kAvx},  {"Bulldozer", kAvx},  {"Piledriver", kAvx}, {"Steamroller", kAvx},
      {"Excavator", kAvx},    {"Haswell", kAvx2},   {"Zen", kAvx2}};
  for (const auto& [name, isa] : kKnown) {
    if (name == core) return isa;
  }
  return kAvx512;
}

VectorIsa IsaOfProcessor() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return VectorIsa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return VectorIsa::kAvx2;
  if (__builtin_cpu_supports("avx")) return VectorIsa::kAvx;
#endif
  return VectorIsa::kSse;
}

// A product in f64 that is too large for OpenBLAS's kernels for small matrices.
double MeasureSeconds() {
  constexpr int kExtent = 128;
  constexpr double kMaxSeconds = 2e-3;
  const std::vector<double> factor(size_t{kExtent} * kExtent, 1.25);
  std::vector<double> d(factor.size());
  const OneThread limit;
  return FastestSeconds(
      [&] {
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kExtent, kExtent, kExtent, 1,
                    factor.data(), kExtent, factor.data(), kExtent, 0, d.data(), kExtent);
      },
      kMaxSeconds);
}

std::string Environment(const char* variable) {
  const char* const value = getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

}  // namespace

std::string NextBlasCore(VectorIsa processor, absl::Span<const BlasCoreTime> times) {
  const BlasCoreTime& own = times.front();
  const BlasCoreTime& fastest = *std::min_element(
      times.begin(), times.end(),
      [](const BlasCoreTime& x, const BlasCoreTime& y) { return x.seconds < y.seconds; });
  if (&fastest != &own) return fastest.core;
  for (const auto& tried : kTried) {
    if (tried.first > processor || tried.first <= IsaOf(own.core)) continue;
    const bool is_measured = std::any_of(times.begin(), times.end(), [&](const BlasCoreTime& time) {
      return time.core == tried.second;
    });
    if (!is_measured) return std::string(tried.second);
  }
  return own.core;
}

std::string FormatBlasCoreTimes(absl::Span<const BlasCoreTime> times) {
  std::string text;
  for (const BlasCoreTime& time : times) {
    absl::StrAppend(&text, text.empty() ? "" : ",", time.core, ":", time.seconds);
  }
  return text;
}

std::vector<BlasCoreTime> ParseBlasCoreTimes(std::string_view text) {
  std::vector<BlasCoreTime> times;
  for (bool is_last = false; !is_last;) {
    const size_t comma = text.find(',');
    is_last = comma == std::string_view::npos;
    const std::string_view part = text.substr(0, comma);
    const size_t colon = part.find(':');
    if (colon == std::string_view::npos) return {};
    double seconds = 0;
    const char* const end = part.data() + part.size();
    const auto [rest, error] = std::from_chars(part.data() + colon + 1, end, seconds);
    if (error != std::errc() || rest != end || !(seconds > 0)) return {};
    times.push_back({std::string(part.substr(0, colon)), seconds});
    if (!is_last) text.remove_prefix(comma + 1);
  }
  return times;
}

std::string BetterBlasCore() {
  std::vector<BlasCoreTime> times = ParseBlasCoreTimes(Environment(kTimes));
  unsetenv(kTimes);  // NOLINT(concurrency-mt-unsafe)
  const bool is_set = IsSetInEnvironment(kCore);
  if (is_set && times.empty()) return "";
  // If OpenBLAS does not know the requested core, the measurement still counts for that name.
  const std::string core = is_set ? Environment(kCore) : openblas_get_corename();
  const VectorIsa processor = IsaOfProcessor();
  if (IsaOf(core) >= processor && times.empty()) return "";
  const bool is_measured = std::any_of(times.begin(), times.end(),
                                       [&](const BlasCoreTime& time) { return time.core == core; });
  if (is_measured) return "";
  times.push_back({core, MeasureSeconds()});
  std::string next = NextBlasCore(processor, times);
  if (next == core) return "";
  setenv(kTimes, FormatBlasCoreTimes(times).c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  unsetenv(kCore);                                        // NOLINT(concurrency-mt-unsafe)
  return next;
}

}  // namespace gemmd
