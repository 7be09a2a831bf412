// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/report.h"

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_format.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

using mma::Instruction;
using Json = nlohmann::ordered_json;

struct Totals {
  int64_t passed = 0;
  int64_t cases = 0;
  int64_t products = 0;
  int64_t elements = 0;
  int64_t mismatches = 0;
  int64_t errors = 0;
  size_t instructions = 0;  // Instructions that have rows.
};

Totals TotalsOf(const CheckResult& result) {
  Totals totals;
  std::set<const Instruction*> instructions;
  for (const RowResult& row : result.rows) {
    totals.passed += row.passed() ? 1 : 0;
    totals.cases += row.cases;
    totals.products += row.products;
    totals.elements += row.elements;
    totals.mismatches += row.mismatches;
    totals.errors += row.errors;
    instructions.insert(row.kernel->instruction);
  }
  totals.instructions = instructions.size();
  return totals;
}

std::string SeedsOf(const CheckOptions& options) {
  std::string text;
  for (const uint64_t seed : options.seeds) AppendPart(text, Concat(text.empty() ? "" : " ", seed));
  return text;
}

std::string LinesOf(const RowResult& row) {
  if (!row.has_code) return Concat(row.kernel->name, ": no code in this build\n");
  if (row.cases == 0) return Concat(row.kernel->name, ": no case was run\n");
  std::string text = Concat(row.kernel->name, ": ", row.mismatches, " of ", row.elements,
                            " elements differ, ", row.errors, " errors\n");
  if (row.first) {
    text += Concat("  ", row.first->product, "\n  ", row.first->what, "\n  again: --filter '",
                   row.kernel->name, "' --seed ", row.first->seed, " --case ",
                   row.first->case_index, "\n");
  }
  return text;
}

Json JsonOf(const RowResult& row) {
  Json json = {
      {"kernel", row.kernel->name}, {"passed", row.passed()},       {"has_code", row.has_code},
      {"cases", row.cases},         {"shapes", row.shapes},         {"products", row.products},
      {"elements", row.elements},   {"mismatches", row.mismatches}, {"errors", row.errors}};
  if (row.first) {
    json["first"] = {{"product", row.first->product},
                     {"what", row.first->what},
                     {"seed", row.first->seed},
                     {"case", row.first->case_index}};
  }
  return json;
}

Json NamesOf(const std::vector<const Instruction*>& instructions) {
  Json names = Json::array();
  for (const Instruction* instruction : instructions) {
    names.push_back(mma::NameOf(*instruction).view());
  }
  return names;
}

}  // namespace

std::string TextOf(const GpuFacts& gpu, const CheckResult& result) {
  const Totals totals = TotalsOf(result);
  std::string text;
  for (const RowResult& row : result.rows) {
    if (!row.passed()) text += LinesOf(row);
  }
  for (const Instruction* instruction : result.not_covered) {
    if (result.options.filter != "*") break;
    text += Concat("not covered: ", mma::NameOf(*instruction).view(), "\n");
  }
  if (result.cases_left > 0) text += Concat("cases not run: ", result.cases_left, "\n");
  text += Concat(gpu.name, ", ", gpu.chip, ", driver ", gpu.driver, ", CUDA ", gpu.cuda,
                 ", commit ", gpu.commit, ", seeds ", SeedsOf(result.options), ", ");
  text += absl::StrFormat("%.1f s\n", result.seconds);
  text += Concat("rows: ", totals.passed, " of ", result.rows.size(),
                 " passed; instructions: ", result.instructions.size() - result.not_covered.size(),
                 " of ", result.instructions.size(), " covered\n");
  text += Concat("cases: ", totals.cases, ", products: ", totals.products,
                 ", elements: ", totals.elements, ", mismatches: ", totals.mismatches,
                 ", errors: ", totals.errors, "\n");
  return text + (result.passed() ? "PASSED\n" : "FAILED\n");
}

std::string JsonOf(const GpuFacts& gpu, const CheckResult& result) {
  const Totals totals = TotalsOf(result);
  Json json = {{"passed", result.passed()},
               {"gpu", gpu.name},
               {"chip", gpu.chip},
               {"driver", gpu.driver},
               {"cuda", gpu.cuda},
               {"commit", gpu.commit},
               {"filter", result.options.filter},
               {"quick", result.options.is_quick},
               {"seeds", result.options.seeds},
               {"seconds", result.seconds},
               {"rows", result.rows.size()},
               {"rows_passed", totals.passed},
               {"instructions", result.instructions.size()},
               {"instructions_of_rows", totals.instructions},
               {"not_covered", NamesOf(result.not_covered)},
               {"cases", totals.cases},
               {"cases_left", result.cases_left},
               {"products", totals.products},
               {"elements", totals.elements},
               {"mismatches", totals.mismatches},
               {"errors", totals.errors}};
  json["kernels"] = Json::array();
  for (const RowResult& row : result.rows) json["kernels"].push_back(JsonOf(row));
  return json.dump(1) + "\n";
}

}  // namespace gemmd
