// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/explanation.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/terminal/text_table.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

constexpr int kShownCandidates = 10;

std::string ProductText(const v1::MultiplyRequest& request) {
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  return absl::StrCat(batch == 1 ? "" : absl::StrCat(batch, " of "), request.m(), " x ",
                      request.n(), " x ", request.k(), ", ", ElementTypeName(request.a().type()),
                      request.a().sparsity() == v1::SPARSITY_NONE ? "" : " 2:4", " x ",
                      ElementTypeName(request.b().type()));
}

std::string Candidates(const v1::ExplainResponse& explanation, bool is_complete) {
  if (explanation.candidates().empty()) return "No kernel can run it.\n";
  TextTable table({{"kernel"}, {"predicted", Align::kRight}, {"rate", Align::kRight}, {"why"}});
  const int count = explanation.candidates_size();
  const int shown = is_complete ? count : std::min(count, kShownCandidates);
  for (int i = 0; i < shown; ++i) {
    const v1::Candidate& candidate = explanation.candidates(i);
    table.AddRow({candidate.kernel(), FormatNanoseconds(candidate.predicted_ns()),
                  FormatOperationRate(explanation.operations(), candidate.predicted_ns()),
                  candidate.reason()});
  }
  if (shown == count) return table.Print();
  return absl::StrCat(table.Print(), "and ", FormatCount(count - shown),
                      " more (--all shows them)\n");
}

std::string EveryRefusal(const v1::ExplainResponse& explanation) {
  TextTable table({{"refused"}, {"why"}});
  for (const v1::Refusal& refusal : explanation.refusals()) {
    table.AddRow({refusal.kernel(), refusal.reason()});
  }
  return table.Print();
}

// One line for each reason, in the order of the first kernel that has it.
std::string RefusalsByReason(const v1::ExplainResponse& explanation) {
  struct Group {
    std::string first;
    std::string reason;
    int64_t count = 0;
  };
  std::vector<Group> groups;
  std::map<std::string, size_t> group_of;
  for (const v1::Refusal& refusal : explanation.refusals()) {
    const auto [found, is_new] = group_of.try_emplace(refusal.reason(), groups.size());
    if (is_new) groups.push_back({refusal.kernel(), refusal.reason()});
    ++groups[found->second].count;
  }
  TextTable table({{"refused", Align::kRight}, {"why"}, {"for example"}});
  for (const Group& group : groups) {
    table.AddRow({FormatCount(group.count), group.reason, group.first});
  }
  return absl::StrCat(table.Print(), FormatCount(explanation.refusals_size()),
                      " kernels refused (--all shows each)\n");
}

}  // namespace

std::string ExplanationTable(const v1::MultiplyRequest& request,
                             const v1::ExplainResponse& explanation, bool is_complete) {
  const std::string text = absl::StrCat(
      "device   ", explanation.device(), "\n", "product  ", ProductText(request), ", ",
      FormatCount(explanation.operations()), " operations\n", "bytes    ",
      FormatBytes(explanation.bytes_read()), " read, ", FormatBytes(explanation.bytes_written()),
      " written, ", FormatBytes(explanation.workspace_bytes()), " of workspace\n",
      explanation.recipe().empty() ? "" : absl::StrCat("recipe   ", explanation.recipe(), "\n"),
      explanation.bits_may_vary()
          ? "bits     may depend on what runs as one with it (--deterministic: never)\n"
          : "",
      "\n", Candidates(explanation, is_complete));
  if (explanation.refusals().empty()) return text;
  return absl::StrCat(text, "\n",
                      is_complete ? EveryRefusal(explanation) : RefusalsByReason(explanation));
}

}  // namespace gemmd
