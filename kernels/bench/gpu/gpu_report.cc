// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/gpu_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "kernels/text.h"

namespace gemmd::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Writer {
  Json& json;

  template <typename T>
  void operator()(const char* name, const T& value) const {
    json[name] = value;
  }
  void operator()(const char* name, const std::optional<double>& value) const {
    json[name] = value ? Json(*value) : Json(nullptr);
  }
  void operator()(const char* name, const std::optional<LibraryTime>& value) const {
    json[name] = nullptr;
    if (value) VisitLibraryTime(Writer{json[name] = Json::object()}, *value);
  }
  void operator()(const char* name, const std::vector<GpuMeasurement>& values) const {
    json[name] = Json::array();
    for (const GpuMeasurement& value : values) {
      VisitMeasurement(Writer{json[name].emplace_back(Json::object())}, value);
    }
  }
};

// Throws what Json throws.
struct Reader {
  const Json& json;

  template <typename T>
  void operator()(const char* name, T& value) const {
    json.at(name).get_to(value);
  }
  void operator()(const char* name, std::optional<double>& value) const {
    if (const Json& field = json.at(name); !field.is_null()) value = field.get<double>();
  }
  void operator()(const char* name, std::optional<LibraryTime>& value) const {
    if (const Json& field = json.at(name); !field.is_null()) {
      VisitLibraryTime(Reader{field}, value.emplace());
    }
  }
  void operator()(const char* name, std::vector<GpuMeasurement>& values) const {
    for (const Json& field : json.at(name)) {
      VisitMeasurement(Reader{field}, values.emplace_back());
    }
  }
};

// A text with commas or quotes in quotes.
std::string Quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + "\"";
}

// Names, or values, of one line. Those of a library are columns of their own.
struct Columns {
  bool writes_names;
  std::string& line;
  std::string prefix = "";

  void Add(const std::string& text) const {
    if (!line.empty()) line += ',';
    line += Quoted(text);
  }
  template <typename T>
  void operator()(const char* name, const T& value) const {
    if (writes_names) return Add(prefix + name);
    if constexpr (std::is_same_v<T, std::string>) {
      Add(value);
    } else if constexpr (std::is_floating_point_v<T>) {
      Add(absl::StrFormat("%.9g", value));
    } else {
      Add(absl::StrFormat("%d", value));
    }
  }
  void operator()(const char* name, const std::optional<double>& value) const {
    if (writes_names || !value) return Add(writes_names ? name : "");
    (*this)(name, *value);
  }
  void operator()(const char* name, const std::optional<LibraryTime>& value) const {
    const LibraryTime time = value.value_or(LibraryTime());
    if (writes_names || value) {
      return VisitLibraryTime(Columns{writes_names, line, Concat(name, "_")}, time);
    }
    VisitLibraryTime([this](const char*, const auto&) { Add(""); }, time);
  }
};

std::string CsvLine(const GpuMeasurement& measurement, bool writes_names) {
  std::string line;
  VisitMeasurement(Columns{writes_names, line}, measurement);
  return line + "\n";
}

std::string Percent(double share) { return absl::StrFormat("%.1f%%", 100 * share); }
std::string Tera(double rate) { return absl::StrFormat("%.1f", rate / 1e12); }

std::string RateOfLibrary(const GpuMeasurement& m, const std::optional<LibraryTime>& library) {
  return library ? Tera(m.RateOf(*library)) : "-";
}

std::string RatioTo(const std::optional<LibraryTime>& library) {
  return library ? absl::StrFormat("%.3f", library->ratio) : "-";
}

std::string Verdict(const GpuMeasurement& m) {
  if (!m.is_right()) return Concat("WRONG: ", m.mismatches, " of ", m.compared, ", ", m.problem);
  return m.compared == m.elements ? "all equal" : Concat(m.compared, " equal");
}

}  // namespace

std::string ToJson(const GpuReport& report) {
  Json json;
  VisitReport(Writer{json}, report);
  return json.dump(1) + "\n";
}

absl::StatusOr<GpuReport> ReportFromJson(std::string_view text) {
  GpuReport report;
  try {
    const Json json = Json::parse(text);
    VisitReport(Reader{json}, report);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(GotWant("report", error.what(), "what --save writes"));
  }
  return report;
}

std::string ToCsv(const GpuReport& report) {
  std::string text = CsvLine(GpuMeasurement(), true);
  for (const GpuMeasurement& measurement : report.measurements) {
    text += CsvLine(measurement, false);
  }
  return text;
}

std::string GpuTableHeader() {
  return absl::StrFormat("%-52s %-16s %-3s %8s %6s %8s %7s %8s %6s %10s %6s %5s  %s\n", "kernel",
                         "m x n x k", "ABD", "T/s", "spread", "unpacked", "ceiling", "cuBLASLt",
                         "ratio", "cuSPARSELt", "ratio", "MHz", "check");
}

std::string GpuTableLine(const GpuMeasurement& m) {
  const std::string name = m.is_sparse ? m.kernel + " *" : m.kernel;
  const std::string alone = m.kernel_seconds ? Tera(m.shape.operations() / *m.kernel_seconds) : "-";
  const std::string ceiling = m.ceiling ? Percent(m.rate() / *m.ceiling) : "-";
  return absl::StrFormat("%-52s %-16s %-3s %8s %6s %8s %7s %8s %6s %10s %6s %5d  %s\n", name,
                         NameOf(m.shape), m.orders, Tera(m.rate()), Percent(m.spread), alone,
                         ceiling, RateOfLibrary(m, m.cublaslt), RatioTo(m.cublaslt),
                         RateOfLibrary(m, m.cusparselt), RatioTo(m.cusparselt), m.sm_clock_mhz,
                         Verdict(m));
}

}  // namespace gemmd::bench
