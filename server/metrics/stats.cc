// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/stats.h"

#include "kernels/catalog.h"

namespace gemmd {
namespace {

void Add(std::atomic<int64_t>& counter, int64_t amount) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

int64_t Read(const std::atomic<int64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

template <size_t kSize>
std::array<int64_t, kSize> Read(const std::array<std::atomic<int64_t>, kSize>& counters) {
  std::array<int64_t, kSize> values = {};
  for (size_t i = 0; i < kSize; ++i) values[i] = Read(counters[i]);
  return values;
}

int64_t BusyNs(const Completion& completion) {
  const auto of = [&](Stage stage) { return completion.stage_ns[static_cast<size_t>(stage)]; };
  return of(Stage::kCopyIn) + of(Stage::kCompute) + of(Stage::kCopyOut);
}

}  // namespace

std::string_view NameOf(Stage stage) {
  switch (stage) {
    case Stage::kReceive: return "receive";
    case Stage::kQueue: return "queue";
    case Stage::kCopyIn: return "copy_in";
    case Stage::kCompute: return "compute";
    case Stage::kCopyOut: return "copy_out";
    case Stage::kSendPrepare: return "send_prepare";
  }
  return "";
}

std::string_view NameOf(RefusalReason reason) {
  switch (reason) {
    case RefusalReason::kInvalid: return "invalid";
    case RefusalReason::kNotFound: return "not_found";
    case RefusalReason::kUnsupported: return "unsupported";
    case RefusalReason::kTooLarge: return "too_large";
    case RefusalReason::kNotReady: return "not_ready";
    case RefusalReason::kInternal: return "internal";
  }
  return "";
}

RefusalReason ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument: return RefusalReason::kInvalid;
    case absl::StatusCode::kNotFound: return RefusalReason::kNotFound;
    case absl::StatusCode::kUnimplemented: return RefusalReason::kUnsupported;
    case absl::StatusCode::kResourceExhausted: return RefusalReason::kTooLarge;
    case absl::StatusCode::kUnavailable: return RefusalReason::kNotReady;
    default: return RefusalReason::kInternal;
  }
}

Stats::Stats(size_t devices) : devices_(devices), kernels_(Catalog().size()) {}

Stats::~Stats() {
  for (const auto& histograms : kernels_) delete histograms.load();
}

void Stats::AddRefusal(RefusalReason reason) { Add(refusals_[static_cast<size_t>(reason)], 1); }

void Stats::AddCompletion(const Completion& completion) {
  DeviceCounters& device = devices_[completion.device];
  Add(device.ends[static_cast<size_t>(completion.code)], 1);
  if (completion.code != absl::StatusCode::kOk) return;
  Add(device.operations, completion.operations);
  Add(device.bytes_read, completion.bytes_read);
  Add(device.bytes_written, completion.bytes_written);
  Add(device.matrices, completion.batch);
  Add(device.busy_ns, BusyNs(completion));
  device.total.Add(completion.total_ns);
  KernelHistograms* const histograms = HistogramsOf(*completion.kernel);
  if (histograms == nullptr) return;
  histograms->total.Add(completion.total_ns);
  for (size_t i = 0; i < kStages; ++i) histograms->stages[i].Add(completion.stage_ns[i]);
}

// Null for a kernel that is not of the catalogue.
Stats::KernelHistograms* Stats::HistogramsOf(const Kernel& kernel) {
  const absl::Span<const Kernel> catalog = Catalog();
  if (&kernel < catalog.data() || &kernel >= catalog.data() + catalog.size()) return nullptr;
  std::atomic<KernelHistograms*>& place = kernels_[static_cast<size_t>(&kernel - catalog.data())];
  KernelHistograms* there = place.load(std::memory_order_acquire);
  if (there != nullptr) return there;
  auto made = std::make_unique<KernelHistograms>();
  // Where another thread was faster, `there` becomes its.
  if (place.compare_exchange_strong(there, made.get(), std::memory_order_acq_rel)) {
    there = made.release();
  }
  return there;
}

std::array<int64_t, kRefusalReasons> Stats::refusals() const { return Read(refusals_); }

Stats::DeviceTotals Stats::device(size_t position) const {
  const DeviceCounters& counters = devices_[position];
  DeviceTotals totals;
  totals.ends = Read(counters.ends);
  totals.operations = Read(counters.operations);
  totals.bytes_read = Read(counters.bytes_read);
  totals.bytes_written = Read(counters.bytes_written);
  totals.matrices = Read(counters.matrices);
  totals.busy_ns = Read(counters.busy_ns);
  totals.total = counters.total.Read();
  return totals;
}

std::vector<Stats::KernelTotals> Stats::kernels() const {
  std::vector<KernelTotals> all;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const KernelHistograms* const histograms = kernels_[i].load(std::memory_order_acquire);
    if (histograms == nullptr) continue;
    KernelTotals& totals = all.emplace_back();
    totals.kernel = &Catalog()[i];
    totals.total = histograms->total.Read();
    for (size_t s = 0; s < kStages; ++s) totals.stages[s] = histograms->stages[s].Read();
  }
  return all;
}

}  // namespace gemmd
