// SPDX-License-Identifier: Apache-2.0
#include "client/load/tally.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

std::array<int64_t, kCallStages> StagesOf(const CallSample& sample) {
  const v1::Timing& timing = sample.timing;
  return {timing.receive_ns(),  timing.queue_ns(),
          timing.copy_in_ns(),  timing.compute_ns(),
          timing.copy_out_ns(), timing.send_prepare_ns(),
          timing.total_ns(),    sample.ended_ns - sample.sent_ns - timing.total_ns()};
}

// Few kernels answer a load, so they are looked at one by one.
KernelTally& KernelOf(std::vector<KernelTally>& kernels, absl::string_view kernel,
                      absl::string_view device) {
  for (KernelTally& known : kernels) {
    if (known.kernel == kernel && known.device == device) return known;
  }
  if (kernels.size() >= kMostKernels && kernel != kOtherKernels) {
    return KernelOf(kernels, kOtherKernels, "");
  }
  return kernels.emplace_back(
      KernelTally{.kernel = std::string(kernel), .device = std::string(device), .latency = {}});
}

}  // namespace

double KernelTally::StageMeanNs(size_t stage) const {
  const double calls = static_cast<double>(latency.count());
  return calls > 0 ? stage_sums_ns[stage] / calls : 0;
}

size_t CodeIndex(absl::StatusCode code) {
  return std::min(static_cast<size_t>(code), kCallCodes - 1);
}

int64_t FailedOf(const CallsByCode& calls) {
  return std::accumulate(calls.begin() + 1, calls.end(), int64_t{0});
}

void Tally::Add(const CallSample& sample) {
  ++calls_by_code[CodeIndex(sample.code)];
  blocked.Record(sample.admitted_ns - sample.intended_ns);
  send_error.Record(sample.sent_ns - sample.admitted_ns);
  const int64_t latency_ns = sample.ended_ns - sample.intended_ns;
  if (sample.code != absl::StatusCode::kOk) {
    failed_latency.Record(latency_ns);
    return;
  }
  latency.Record(latency_ns);
  service.Record(sample.ended_ns - sample.sent_ns);
  punctual.Record(latency_ns - (sample.sent_ns - sample.admitted_ns));
  const std::array<int64_t, kCallStages> stages_ns = StagesOf(sample);
  KernelTally& of_kernel = KernelOf(kernels, sample.kernel.substr(0, kMostNameBytes),
                                    sample.device.substr(0, kMostNameBytes));
  of_kernel.latency.Record(latency_ns);
  for (size_t i = 0; i < kCallStages; ++i) {
    stages[i].Record(stages_ns[i]);
    of_kernel.stage_sums_ns[i] += static_cast<double>(stages_ns[i]);
  }
  if (latency_by_product.size() <= sample.product) latency_by_product.resize(sample.product + 1);
  latency_by_product[sample.product].Record(latency_ns);
  operations += sample.operations;
  bytes += sample.bytes;
}

void Tally::Merge(const Tally& other) {
  latency.Merge(other.latency);
  service.Merge(other.service);
  punctual.Merge(other.punctual);
  blocked.Merge(other.blocked);
  send_error.Merge(other.send_error);
  failed_latency.Merge(other.failed_latency);
  for (size_t i = 0; i < kCallStages; ++i) stages[i].Merge(other.stages[i]);
  if (latency_by_product.size() < other.latency_by_product.size()) {
    latency_by_product.resize(other.latency_by_product.size());
  }
  for (size_t i = 0; i < other.latency_by_product.size(); ++i) {
    latency_by_product[i].Merge(other.latency_by_product[i]);
  }
  for (const KernelTally& theirs : other.kernels) {
    KernelTally& ours = KernelOf(kernels, theirs.kernel, theirs.device);
    ours.latency.Merge(theirs.latency);
    for (size_t i = 0; i < kCallStages; ++i) ours.stage_sums_ns[i] += theirs.stage_sums_ns[i];
  }
  for (size_t i = 0; i < calls_by_code.size(); ++i) calls_by_code[i] += other.calls_by_code[i];
  operations += other.operations;
  bytes += other.bytes;
}

int64_t Tally::calls() const {
  return std::accumulate(calls_by_code.begin(), calls_by_code.end(), int64_t{0});
}

std::string CodesText(const CallsByCode& calls_by_code) {
  std::string text;
  for (size_t i = 0; i < calls_by_code.size(); ++i) {
    if (calls_by_code[i] == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ",
                    absl::StatusCodeToString(static_cast<absl::StatusCode>(i)), " ",
                    FormatCount(calls_by_code[i]));
  }
  return text;
}

std::string FailedCodesText(const CallsByCode& calls_by_code) {
  CallsByCode failed = calls_by_code;
  failed[0] = 0;
  const int64_t calls = FailedOf(calls_by_code);
  if (calls == 0) return "none";
  return absl::StrCat(FormatCount(calls), " of ", FormatCount(calls + calls_by_code[0]), " (",
                      CodesText(failed), ")");
}

}  // namespace gemmd
