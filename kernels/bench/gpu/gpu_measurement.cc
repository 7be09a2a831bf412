// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/gpu_measurement.h"

#include "absl/strings/str_format.h"
#include "kernels/matrix/text.h"

namespace gemmd::bench {
namespace {

std::optional<double> JoulesOf(const std::optional<AloneTime>& alone) {
  return alone ? alone->joules : std::nullopt;
}

void AddLibrary(Fields& fields, const std::string& group,
                const std::optional<LibraryTime>& library) {
  fields.push_back({group + ".how", ValueOf(library, &LibraryTime::how)});
  fields.push_back({group + ".seconds", ValueOf(library, &LibraryTime::seconds)});
  fields.push_back({group + ".ratio", ValueOf(library, &LibraryTime::ratio)});
}

void AddAlone(Fields& fields, const std::string& group, const std::optional<AloneTime>& alone) {
  fields.push_back({group + ".seconds", ValueOf(alone, &AloneTime::seconds)});
  fields.push_back({group + ".joules", ValueOf(JoulesOf(alone), std::identity())});
  fields.push_back({group + ".sm_clock_mhz", ValueOf(alone, &AloneTime::sm_clock_mhz)});
}

Fields FieldsOf(const GpuMeasurement& m) {
  Fields fields = {{"kernel", m.kernel},
                   {"instruction", m.instruction},
                   {"types", m.types},
                   {"m", m.shape.m},
                   {"n", m.shape.n},
                   {"k", m.shape.k},
                   {"batch", m.shape.batch},
                   {"orders", m.orders},
                   {"leading_dimension_offset", m.leading_dimension_offset},
                   {"output", m.output},
                   {"is_integer", m.is_integer},
                   {"is_sparse", m.is_sparse},
                   {"has_default_recipe", m.has_default_recipe},
                   {"elements", m.elements},
                   {"compared", m.compared},
                   {"mismatches", m.mismatches},
                   {"problem", m.problem},
                   {"seconds", m.seconds},
                   {"spread", m.spread},
                   {"kernel_seconds", ValueOf(m.kernel_seconds, std::identity())},
                   {"samples", m.samples},
                   {"operand_sets", m.operand_sets},
                   {"sm_clock_mhz", m.sm_clock_mhz},
                   {"ceiling", ValueOf(m.ceiling, std::identity())}};
  AddLibrary(fields, "cublaslt", m.cublaslt);
  AddLibrary(fields, "cusparselt", m.cusparselt);
  AddAlone(fields, "alone", m.alone);
  AddAlone(fields, "library_alone", m.library_alone);
  fields.push_back({"host_seconds", ValueOf(m.host_seconds, std::identity())});
  return fields;
}

std::string Verdict(const GpuMeasurement& m) {
  if (!m.is_right()) return Concat("WRONG: ", m.mismatches, " of ", m.compared, ", ", m.problem);
  return m.compared == m.elements ? "all equal" : Concat(m.compared, " equal");
}

}  // namespace

std::vector<Column> GpuColumns() {
  return {{"kernel", -52}, {"m x n x k", -16}, {"ABD", -3},     {"T/s", 8},   {"spread", 6},
          {"unpacked", 8}, {"ceiling", 7},     {"cuBLASLt", 8}, {"ratio", 6}, {"cuSPARSELt", 10},
          {"ratio", 6},    {"MHz", 5},         {"alone", 8},    {"pJ", 6},    {"library", 8},
          {"pJ", 6},       {"host us", 7},     {"check", -1}};
}

Entry EntryOf(const GpuMeasurement& m) {
  const auto rate_text = [&m](double seconds) { return TeraText(m.shape.operations() / seconds); };
  const auto library_text = [&](const LibraryTime& library) { return rate_text(library.seconds); };
  const auto alone_text = [&](const std::optional<AloneTime>& alone) {
    return TextOf(alone, [&](const AloneTime& time) { return rate_text(time.seconds); });
  };
  // The energy of one multiplication or addition.
  const auto energy_text = [&m](const std::optional<AloneTime>& alone) {
    return TextOf(JoulesOf(alone), [&m](double joules) {
      return absl::StrFormat("%.3f", joules / m.shape.operations() * 1e12);
    });
  };
  const std::string layout = m.output.empty() ? m.orders : m.orders + " " + m.output;
  return {.kernel = m.kernel,
          .shape = m.shape,
          .fields = FieldsOf(m),
          .cells = {m.is_sparse ? m.kernel + " *" : m.kernel, NameOf(m.shape), layout,
                    TeraText(m.rate()), PercentText(m.spread), TextOf(m.kernel_seconds, rate_text),
                    TextOf(m.ceiling, [&m](double max) { return PercentText(m.rate() / max); }),
                    TextOf(m.cublaslt, library_text), TextOf(m.cublaslt, RatioText),
                    TextOf(m.cusparselt, library_text), TextOf(m.cusparselt, RatioText),
                    Concat(m.sm_clock_mhz), alone_text(m.alone), energy_text(m.alone),
                    alone_text(m.library_alone), energy_text(m.library_alone),
                    TextOf(m.host_seconds,
                           [](double seconds) { return absl::StrFormat("%.2f", seconds * 1e6); }),
                    Verdict(m)},
          .is_right = m.is_right()};
}

}  // namespace gemmd::bench
