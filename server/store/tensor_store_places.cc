// SPDX-License-Identifier: Apache-2.0
//
// Where the tensors of the store are.
#include <utility>

#include "kernels/peer_text.h"
#include "kernels/text.h"
#include "server/store/device_copies.h"
#include "server/store/tensor_store.h"

namespace gemmd {

void TensorStore::AddDevice(std::string name, std::shared_ptr<DeviceCopies> copies) {
  MutexLock lock(&mutex_);
  devices_[std::move(name)] = std::move(copies);
}

absl::Status TensorStore::CheckDevice(std::string_view device) {
  if (device.empty()) return absl::OkStatus();
  MutexLock lock(&mutex_);
  if (devices_.contains(std::string(device))) return absl::OkStatus();
  return absl::NotFoundError(GotWant("device", Shown(device), "one of ListDevices, or none"));
}

// As far as there is room: whoever needs it first brings it otherwise.
void TensorStore::BringTo(const std::string& device, const std::shared_ptr<TensorBytes>& bytes) {
  std::shared_ptr<DeviceCopies> copies;
  {
    MutexLock lock(&mutex_);
    const auto found = devices_.find(device);
    if (found != devices_.end()) copies = found->second;
  }
  if (copies != nullptr) copies->Bring(bytes, [](const absl::StatusOr<DeviceCopies::Use>&) {});
}

void TensorStore::KeepOnHost(const TensorState& tensor) const {
  const bool is_kept = options_.host_copies == HostCopies::kAll ||
                       (options_.host_copies == HostCopies::kPinned && tensor.pinned);
  // Where it fails, whoever needs the bytes learns of it.
  if (is_kept) tensor.tensor->bytes->BringToHost([](const absl::Status&) {});
}

absl::StatusOr<std::shared_ptr<TensorBytes>> TensorStore::Lend(const TensorUse& use,
                                                               int64_t bytes) const {
  return TensorBytes::Allocate(bytes, *use.session_->account, background_);
}

void TensorStore::LeaveHost(Session& session) {
  if (options_.host_copies != HostCopies::kNone) return;
  for (auto& [handle, entry] : session.tensors) {
    const std::shared_ptr<TensorBytes>& bytes = entry.tensor->bytes;
    // Whoever looks at memory of the host has the tensor, or its bytes, and gets them under the
    // lock.
    if (!bytes->shall_leave_host || entry.tensor.use_count() > 1 || bytes.use_count() > 1) continue;
    if (!bytes->BeginLeavingHost()) continue;
    bytes->shall_leave_host = false;
    background_->Post([bytes] { bytes->EndLeavingHost(); });
  }
}

void TensorStore::CountLost(Session& session) {
  for (auto& [handle, entry] : session.tensors) {
    const bool is_lost = entry.tensor->bytes->is_lost();
    if (is_lost && !entry.was_lost) ++counts_.tensors_lost;
    entry.was_lost = is_lost;
  }
}

}  // namespace gemmd
