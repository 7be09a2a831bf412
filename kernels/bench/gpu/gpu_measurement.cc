// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/gpu_measurement.h"

#include "kernels/text.h"

namespace gemmd::bench {
namespace {

void AddLibrary(Fields& fields, const std::string& group,
                const std::optional<LibraryTime>& library) {
  fields.push_back({group + ".how", ValueOf(library, &LibraryTime::how)});
  fields.push_back({group + ".seconds", ValueOf(library, &LibraryTime::seconds)});
  fields.push_back({group + ".ratio", ValueOf(library, &LibraryTime::ratio)});
}

Fields FieldsOf(const GpuMeasurement& m) {
  Fields fields = {{"kernel", m.kernel},
                   {"instruction", m.instruction},
                   {"m", m.shape.m},
                   {"n", m.shape.n},
                   {"k", m.shape.k},
                   {"orders", m.orders},
                   {"leading_dimension_offset", m.leading_dimension_offset},
                   {"is_integer", m.is_integer},
                   {"is_sparse", m.is_sparse},
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
          {"ratio", 6},    {"MHz", 5},         {"check", -1}};
}

Entry EntryOf(const GpuMeasurement& m) {
  const auto rate_text = [&m](double seconds) { return TeraText(m.shape.operations() / seconds); };
  const auto library_text = [&](const LibraryTime& library) { return rate_text(library.seconds); };
  return {.kernel = m.kernel,
          .shape = m.shape,
          .fields = FieldsOf(m),
          .cells = {m.is_sparse ? m.kernel + " *" : m.kernel, NameOf(m.shape), m.orders,
                    TeraText(m.rate()), PercentText(m.spread), TextOf(m.kernel_seconds, rate_text),
                    TextOf(m.ceiling, [&m](double most) { return PercentText(m.rate() / most); }),
                    TextOf(m.cublaslt, library_text), TextOf(m.cublaslt, RatioText),
                    TextOf(m.cusparselt, library_text), TextOf(m.cusparselt, RatioText),
                    Concat(m.sm_clock_mhz), Verdict(m)},
          .is_right = m.is_right()};
}

}  // namespace gemmd::bench
