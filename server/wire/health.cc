// SPDX-License-Identifier: Apache-2.0
#include "server/wire/health.h"

#include <utility>

namespace gemmd {

Health::Health(grpc::HealthCheckServiceInterface& service, std::string multiplying,
               std::string default_device)
    : service_(service),
      multiplying_(std::move(multiplying)),
      default_device_(std::move(default_device)) {
  SetReady(default_device_, false);
}

void Health::SetReady(const std::string& device, bool is_ready) {
  MutexLock lock(&mutex_);
  if (is_lame_duck_) return;
  service_.SetServingStatus(device, is_ready);
  if (device != default_device_) return;
  is_default_ready_ = is_ready;
  service_.SetServingStatus("", is_ready);
  service_.SetServingStatus(multiplying_, is_ready);
}

absl::Status Health::serving() const {
  MutexLock lock(&mutex_);
  if (is_lame_duck_) return absl::UnavailableError("the server stops");
  if (is_default_ready_) return absl::OkStatus();
  return absl::UnavailableError("the default device, " + default_device_ + ", is not ready");
}

void Health::EnterLameDuck() {
  MutexLock lock(&mutex_);
  is_lame_duck_ = true;
  service_.SetServingStatus(false);
}

}  // namespace gemmd
