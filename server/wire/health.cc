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
  service_.SetServingStatus("", is_ready);
  service_.SetServingStatus(multiplying_, is_ready);
}

void Health::EnterLameDuck() {
  MutexLock lock(&mutex_);
  is_lame_duck_ = true;
  service_.SetServingStatus(false);
}

}  // namespace gemmd
