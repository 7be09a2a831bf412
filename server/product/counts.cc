// SPDX-License-Identifier: Apache-2.0
#include "server/product/counts.h"

#include <utility>

#include "kernels/kernel.h"

namespace gemmd {

namespace {

int64_t Read(const std::atomic<int64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

template <size_t kSize>
std::array<int64_t, kSize> Read(const std::array<std::atomic<int64_t>, kSize>& counters) {
  std::array<int64_t, kSize> values = {};
  for (size_t i = 0; i < kSize; ++i) values[i] = Read(counters[i]);
  return values;
}

}  // namespace

std::string_view NameOf(RefusalReason reason) {
  switch (reason) {
    case RefusalReason::kInvalid: return "invalid";
    case RefusalReason::kNotFound: return "not_found";
    case RefusalReason::kUnsupported: return "unsupported";
    case RefusalReason::kTooLarge: return "too_large";
    case RefusalReason::kNotReady: return "not_ready";
    case RefusalReason::kInternal: return "internal";
    case RefusalReason::kTooLong: return "too_long";
    case RefusalReason::kDeadline: return "deadline";
    case RefusalReason::kBacklog: return "backlog";
    case RefusalReason::kShare: return "share";
    case RefusalReason::kKernelRefused: return "kernel_refused";
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

Stats::Stats(size_t devices) : devices_(devices), places_(Catalog().size()) {
  for (std::atomic<Place>& place : places_) place.store(kNoPlace, std::memory_order_relaxed);
}

void Stats::AddRefusal(RefusalReason reason) {
  AddSaturating(refusals_[static_cast<size_t>(reason)], 1);
}

void Stats::AddCompletion(const Completion& completion) {
  DeviceCounters& device = devices_[completion.device];
  AddSaturating(device.ends[static_cast<size_t>(completion.code)], 1);
  if (completion.code != absl::StatusCode::kOk) return;
  AddSaturating(device.operations, completion.operations);
  AddSaturating(device.bytes_read, completion.bytes_read);
  AddSaturating(device.bytes_written, completion.bytes_written);
  AddSaturating(device.matrices, completion.batch);
  device.total.Add(completion.timing.total_ns);
  const auto& stage_ns = completion.timing.stage_ns;
  KindHistograms& kind = kinds_[static_cast<size_t>(completion.kernel->device_kind)];
  kind.total.Add(completion.timing.total_ns);
  for (size_t i = 0; i < kStages; ++i) kind.stages[i].Add(stage_ns[i]);
  KernelCounters* const counters = CountersOf(*completion.kernel);
  if (counters == nullptr) return;
  AddSaturating(counters->products, 1);
  AddSaturating(counters->compute_ns, completion.timing[Stage::kCompute] / completion.joined);
}

// Null for a kernel that is not in the catalogue.
Stats::KernelCounters* Stats::CountersOf(const Kernel& kernel) {
  const absl::Span<const Kernel> catalog = Catalog();
  if (&kernel < catalog.data() || &kernel >= catalog.data() + catalog.size()) return nullptr;
  const auto row = static_cast<size_t>(&kernel - catalog.data());
  const Place place = places_[row].load(std::memory_order_relaxed);
  return &kernels_[place == kNoPlace ? TakePlace(row) : place];
}

Stats::Place Stats::TakePlace(size_t row) {
  const Kernel& kernel = *(Catalog().begin() + row);
  MutexLock lock(&mutex_);
  Place place = places_[row].load(std::memory_order_relaxed);
  if (place != kNoPlace) return place;  // Another thread was faster.
  if (taken_.size() < kMaxKernels) {
    place = static_cast<Place>(taken_.size());
    taken_.push_back(&kernel);
  } else {
    place = static_cast<Place>(kMaxKernels + static_cast<size_t>(kernel.device_kind));
  }
  places_[row].store(place, std::memory_order_relaxed);
  return place;
}

std::array<int64_t, kRefusalReasons> Stats::refusals() const { return Read(refusals_); }

VerifyTotals Stats::verifications(VerifyMode mode) const {
  const VerifyCounters& counters = verifications_[static_cast<size_t>(mode)];
  return {.ends = Read(counters.ends),
          .took_ns = counters.took_ns,
          .miss_probability = counters.miss_probability,
          .cost = counters.cost};
}

Stats::DeviceTotals Stats::device(size_t position) const {
  const DeviceCounters& counters = devices_[position];
  DeviceTotals totals;
  totals.ends = Read(counters.ends);
  totals.operations = Read(counters.operations);
  totals.bytes_read = Read(counters.bytes_read);
  totals.bytes_written = Read(counters.bytes_written);
  totals.matrices = Read(counters.matrices);
  totals.total = counters.total.Read();
  return totals;
}

std::vector<Stats::KindTotals> Stats::kinds() const {
  std::vector<KindTotals> all;
  for (size_t i = 0; i < kDeviceKinds; ++i) {
    KindTotals totals;
    totals.device_kind = static_cast<DeviceKind>(i);
    totals.total = kinds_[i].total.Read();
    for (size_t s = 0; s < kStages; ++s) totals.stages[s] = kinds_[i].stages[s].Read();
    if (totals.total.count() > 0) all.push_back(totals);
  }
  return all;
}

std::vector<Stats::KernelTotals> Stats::kernels() const {
  const auto totals_of = [this](size_t place, DeviceKind kind, std::string_view name) {
    return KernelTotals{.device_kind = kind,
                        .kernel = name,
                        .products = Read(kernels_[place].products),
                        .compute_ns = Read(kernels_[place].compute_ns)};
  };
  std::vector<KernelTotals> all;
  MutexLock lock(&mutex_);
  for (size_t place = 0; place < taken_.size(); ++place) {
    all.push_back(totals_of(place, taken_[place]->device_kind, taken_[place]->name));
  }
  for (size_t i = 0; i < kDeviceKinds; ++i) {
    const KernelTotals others =
        totals_of(kMaxKernels + i, static_cast<DeviceKind>(i), kOtherKernels);
    if (others.products > 0) all.push_back(others);
  }
  return all;
}

}  // namespace gemmd
