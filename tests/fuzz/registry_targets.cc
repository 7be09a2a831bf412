// SPDX-License-Identifier: Apache-2.0
//
// Requests to the registry: names, patterns against fnmatch, fragments.
#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "gemmd/v1/instructions.pb.h"
#include "kernels/kernel.h"
#include "kernels/mma/instructions.h"
#include "server/wire/convert.h"
#include "server/wire/listing.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

// Whether POSIX defines what the pattern matches: fnmatch treats unknown classes in its own way,
// and supports equivalence classes and collating symbols.
bool IsSpecified(std::string_view pattern) {
  constexpr std::string_view kClasses[] = {"alnum", "alpha", "blank", "cntrl", "digit", "graph",
                                           "lower", "print", "punct", "space", "upper", "xdigit"};
  for (size_t at = 0; (at = pattern.find('[', at)) != pattern.npos; ++at) {
    const std::string_view rest = pattern.substr(at + 1);
    if (rest.starts_with('=') || rest.starts_with('.')) return false;
    // A range within brackets that are never closed: fnmatch then matches nothing, not even the
    // identical text. A bracket that comes first is one of the characters.
    const size_t first = rest.starts_with('!') || rest.starts_with('^') ? 1 : 0;
    if (rest.find(']', first + 1) == rest.npos && rest.find('-') != rest.npos) return false;
    if (!rest.starts_with(':')) continue;
    const std::string_view name = rest.substr(1, rest.find(":]", 1) - 1);
    if (std::find(std::begin(kClasses), std::end(kClasses), name) == std::end(kClasses)) {
      return false;
    }
  }
  return true;
}

// A pattern, a zero byte, and a name.
void RunPattern(std::string_view input) {
  const size_t zero = input.find('\0');
  const std::string pattern(input.substr(0, zero));
  const std::string name(
      zero == input.npos ? input : input.substr(zero + 1, input.find('\0', zero + 1) - zero - 1));
  const auto parsed = NamePattern::Parse("pattern", pattern);
  Demand(parsed.ok() == (pattern.size() <= kMaxNameBytes), "a pattern is refused");
  if (!parsed.ok()) return;
  if (!IsSpecified(pattern)) return;
  const bool want = fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  Demand(parsed->Matches(name) == want, "fnmatch decides otherwise");
}

void RunFragment(std::string_view input) {
  static InstructionAnswers* const answers = new InstructionAnswers();
  v1::DescribeFragmentRequest request;
  if (!request.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  const auto answer = answers->Fragment(request);
  if (answer.ok()) {
    v1::DescribeFragmentResponse response;
    Demand(response.ParseFromString(Joined(*answer)), "a fragment is no message");
    Demand(response.entries_size() > 0 && response.operand() == request.operand() &&
               response.selector() == request.selector(),
           "a fragment is another one");
  }
  if (request.selector() % 8 != 0) return;
  v1::ListInstructionsRequest list;
  list.set_chip(request.selector() % 16 == 0 ? "" : "sm_90");
  list.set_name_pattern(request.instruction());
  const auto listed = answers->List(list);
  if (!listed.ok()) return;
  v1::ListInstructionsResponse response;
  Demand(response.ParseFromString(Joined(*listed)), "a listing is no message");
}

// An unknown name gets a short answer that suggests other names.
void RunKernelName(std::string_view input) {
  if (input.size() > kMaxNameBytes) return;  // Refused before any kernel is looked up.
  const auto found = FindKernel(input);
  if (found.ok()) {
    Demand((*found)->name == input, "a kernel has another name");
  } else {
    Demand(found.status().message().size() < 2048, "a refusal is long");
  }
}

std::vector<std::string> PatternSeeds() {
  using std::string_literals::operator""s;
  return {"mma.*\0mma.m16n8k16"s, "[a-c]?\\*\0bx*"s, "[![:digit:]]*[]x]\0y]"s, "*a*b*c\0aabbcc"s,
          "[a\0[a"s};
}

std::vector<std::string> FragmentSeeds() {
  std::vector<std::string> seeds;
  size_t number = 0;
  for (const mma::Instruction& instruction : mma::kInstructions) {
    if (number++ % 40 != 0) continue;
    for (int operand = 1; operand <= 5; ++operand) {
      v1::DescribeFragmentRequest request;
      request.set_instruction(std::string(mma::NameOf(instruction).view()));
      request.set_operand(static_cast<v1::FragmentOperand>(operand));
      seeds.push_back(request.SerializeAsString());
    }
  }
  return seeds;
}

std::vector<std::string> NameSeeds() {
  std::vector<std::string> seeds = {"", "auto"};
  for (size_t i = 0; i < Catalog().size(); i += 60) seeds.emplace_back(Catalog()[i].name);
  return seeds;
}

}  // namespace

std::vector<Target> RegistryTargets() {
  return {{"pattern", RunPattern, PatternSeeds},
          {"fragment", RunFragment, FragmentSeeds, DefaultOf<v1::DescribeFragmentRequest>},
          {"kernel-name", RunKernelName, NameSeeds}};
}

}  // namespace gemmd::fuzz
