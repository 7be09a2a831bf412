// SPDX-License-Identifier: Apache-2.0
//
// Measures the goals of the data plane against daemons that data_plane_bench.py has started; prints
// a line of JSON for each.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "tests/data_plane/rows.h"

namespace gemmd {

Client Connect(const std::string& address) {
  ClientOptions options;
  options.timeout = absl::Seconds(120);
  options.channel_arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return Value(Client::Create(address, options));
}

void PrintStages(const std::string& what, const std::vector<Timing>& products) {
  const std::pair<const char*, int64_t Timing::*> stages[] = {
      {"receive", &Timing::receive_ns},   {"queue", &Timing::queue_ns},
      {"copy_in", &Timing::copy_in_ns},   {"compute", &Timing::compute_ns},
      {"copy_out", &Timing::copy_out_ns}, {"send_prepare", &Timing::send_prepare_ns}};
  for (const auto& [name, ns] : stages) {
    const auto of_stage = [stage = ns](const Timing& product) { return product.*stage; };
    Print(
        {.what = what + ", " + name + " p50", .unit = "us", .seen = MedianUs(products, of_stage)});
  }
}

std::vector<Bf16> RandomBf16(int64_t count, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<Bf16> values(static_cast<size_t>(count));
  for (Bf16& value : values) {
    // A sign, one of eight exponents from 2^-8 on, and seven bits of the mantissa.
    const uint32_t bits = static_cast<uint32_t>(random()) >> 8;
    const uint32_t exponent = 119 + bits % 8;
    value.bits = static_cast<uint16_t>((bits >> 3 & 1) << 15 | exponent << 7 | (bits >> 4 & 127));
  }
  return values;
}

namespace {

struct Group {
  std::string name;
  void (*measure)(const Targets&);
};
constexpr auto kUsage =
    "usage: data_plane_bench --tcp=ADDRESS --unix=ADDRESS --alone=ADDRESS "
    "[--baseline-tcp=ADDRESS --baseline-unix=ADDRESS] [--device=NAME] [--pid=N] [--numpy=COMMAND] "
    "[--library=COMMAND] [--triton=ADDRESS] [--transfer-mib=N] [--seconds=S] [--turns=N] "
    "[--rows=NAME,... | --answer]";

int Main(const std::vector<std::string>& arguments) {
  const std::vector<Group> groups = {{"inline", MeasureInline},
                                     {"transfer.few", MeasureTransfers},
                                     {"transfer.striped", MeasureStripedTransfers},
                                     {"small.unary", MeasureSmallUnary},
                                     {"small.streams", MeasureSmallStreams},
                                     {"small.lists", MeasureSmallLists},
                                     {"small.alone", MeasureSmallAlone},
                                     {"stacking", MeasureStacking},
                                     {"weights", MeasureWeights},
                                     {"cpu", MeasureCpu},
                                     {"triton", MeasureModel},
                                     {"large", MeasureLarge}};
  Targets targets;
  std::string rows;
  bool is_answering = false;
  const std::map<std::string, std::string*> texts = {{"--tcp", &targets.tcp},
                                                     {"--unix", &targets.unix_socket},
                                                     {"--alone", &targets.alone},
                                                     {"--baseline-tcp", &targets.baseline_tcp},
                                                     {"--baseline-unix", &targets.baseline_unix},
                                                     {"--device", &targets.device},
                                                     {"--numpy", &targets.numpy},
                                                     {"--library", &targets.library},
                                                     {"--triton", &targets.triton},
                                                     {"--rows", &rows}};
  for (const std::string& argument : arguments) {
    const std::pair<std::string, std::string> option =
        absl::StrSplit(argument, absl::MaxSplits('=', 1));
    const auto text = texts.find(option.first);
    bool is_known = text != texts.end();
    if (is_known) *text->second = option.second;
    if (argument == "--answer") is_known = is_answering = true;
    if (option.first == "--transfer-mib") {
      is_known = absl::SimpleAtoi(option.second, &targets.transfer_mib);
    }
    if (option.first == "--pid") is_known = absl::SimpleAtoi(option.second, &targets.pid);
    if (option.first == "--seconds") is_known = absl::SimpleAtod(option.second, &targets.seconds);
    if (option.first == "--turns") is_known = absl::SimpleAtoi(option.second, &targets.turns);
    if (!is_known) Fail(kUsage);
  }
  if (is_answering) {
    AnswerInline(targets);
    return 0;
  }
  const std::vector<std::string> wanted = absl::StrSplit(rows, ',', absl::SkipEmpty());
  for (const Group& group : groups) {
    // "small" selects all of its parts.
    const bool is_wanted =
        wanted.empty() || std::any_of(wanted.begin(), wanted.end(), [&](const std::string& name) {
          return group.name == name || group.name.starts_with(name + ".");
        });
    const bool is_possible = (group.name != "weights" || !targets.numpy.empty()) &&
                             (group.name != "cpu" || !targets.library.empty()) &&
                             (group.name != "triton" || !targets.triton.empty()) &&
                             (group.name != "large" || targets.is_gpu());
    if (is_wanted && is_possible) group.measure(targets);
  }
  return 0;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) {
  // As in the daemon's main function, so that the bare echo has the same setting.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return gemmd::Main({argv + 1, argv + argc});
}
