// SPDX-License-Identifier: Apache-2.0
#include "server/product/counts.h"

#include <iterator>

#include "kernels/kernel.h"

namespace gemmd {

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
  for (size_t i = 0; i < kDeviceKinds; ++i) {
    kinds_[i].device_kind = kernels_[kMaxKernels + i].device_kind = static_cast<DeviceKind>(i);
    kernels_[kMaxKernels + i].kernel = kOtherKernels;
  }
  for (std::atomic<Place>& place : places_) place.store(kNoPlace, std::memory_order_relaxed);
}

void Stats::AddCompletion(const Completion& completion) {
  DeviceTotals& device = devices_[completion.device];
  device.ends[static_cast<size_t>(completion.code)].Add(1);
  if (completion.code != absl::StatusCode::kOk) return;
  device.operations.Add(completion.operations);
  device.bytes_read.Add(completion.bytes_read);
  device.bytes_written.Add(completion.bytes_written);
  device.matrices.Add(completion.batch);
  device.total.Add(completion.timing.total_ns);
  KindTotals& kind = kinds_[static_cast<size_t>(completion.kernel->device_kind)];
  kind.total.Add(completion.timing.total_ns);
  for (size_t i = 0; i < kStages; ++i) kind.stages[i].Add(completion.timing.stage_ns[i]);
  KernelTotals* const kernel = TotalsOf(*completion.kernel);
  if (kernel == nullptr) return;
  kernel->products.Add(1);
  kernel->compute_ns.Add(completion.timing[Stage::kCompute] / completion.joined);
}

// Null for a kernel that is not in the catalogue.
Stats::KernelTotals* Stats::TotalsOf(const Kernel& kernel) {
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
  if (taken_ < kMaxKernels) {
    place = static_cast<Place>(taken_++);
    kernels_[place].device_kind = kernel.device_kind;
    kernels_[place].kernel = kernel.name;
  } else {
    place = static_cast<Place>(kMaxKernels + static_cast<size_t>(kernel.device_kind));
  }
  places_[row].store(place, std::memory_order_relaxed);
  return place;
}

std::vector<Stats::KindTotals> Stats::kinds() const {
  std::vector<KindTotals> all;
  std::copy_if(kinds_.begin(), kinds_.end(), std::back_inserter(all),
               [](const KindTotals& kind) { return kind.total.count() > 0; });
  return all;
}

std::vector<Stats::KernelTotals> Stats::kernels() const {
  MutexLock lock(&mutex_);
  std::vector<KernelTotals> all(kernels_.begin(), kernels_.begin() + taken_);
  std::copy_if(kernels_.begin() + kMaxKernels, kernels_.end(), std::back_inserter(all),
               [](const KernelTotals& others) { return others.products > 0; });
  return all;
}

}  // namespace gemmd
