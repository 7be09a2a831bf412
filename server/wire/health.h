// SPDX-License-Identifier: Apache-2.0
//
// What grpc.health.v1 says: the server as a whole, and a service that multiplies, are as healthy as
// the default device; each device is also there under its own name.
#pragma once

#include <grpcpp/health_check_service_interface.h>

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/system/mutex.h"

namespace gemmd {

class Health {
 public:
  // Borrows the service. `multiplying` is the name of the service that multiplies. Devices count as
  // not ready until SetReady.
  Health(grpc::HealthCheckServiceInterface& service, std::string multiplying,
         std::string default_device);

  // Threads: any.
  void SetReady(const std::string& device, bool is_ready) ABSL_LOCKS_EXCLUDED(mutex_);

  // OK where the server as a whole is SERVING; otherwise Unavailable, with the reason. Threads:
  // any.
  absl::Status serving() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Everything is NOT_SERVING from now on.
  void EnterLameDuck() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  grpc::HealthCheckServiceInterface& service_;
  const std::string multiplying_;
  const std::string default_device_;
  mutable Mutex mutex_;
  bool is_lame_duck_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_default_ready_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gemmd
