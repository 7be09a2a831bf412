// SPDX-License-Identifier: Apache-2.0
//
// The server's health: the health service (gRPC's own copies requests of any length and keeps the
// request of a Watch for as long as the call lasts), the states behind it, and the call by which
// the daemon checks itself.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/metrics/handler_times.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/wire/calls.h"

namespace gemmd {

// The states of grpc.health.v1. The server as a whole and each service that multiplies are as
// healthy as the default device. Each device also has a state under its own name.
class Health {
 public:
  // The numbers are those of HealthCheckResponse.
  enum class State : uint8_t { kServing = 1, kNotServing = 2, kUnknown = 3 };

  // Is told each change of a state. Called with Health's lock held.
  class Watcher {
   public:
    virtual void Tell(State state) = 0;

   protected:
    ~Watcher() = default;
  };

  // `multiplying` is the name of the service that multiplies. Devices count as not ready until
  // SetReady.
  Health(std::string multiplying, std::string default_device);

  // Sets the state of a device, or of a service that depends on no device. Threads: any.
  void SetReady(const std::string& name, bool is_ready) ABSL_LOCKS_EXCLUDED(mutex_);

  // OK if the server as a whole is SERVING; otherwise Unavailable, with the reason. Threads: any.
  absl::Status serving() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The state of a device or a service, or of the server as a whole if the name is empty. Threads:
  // any.
  State StateOf(std::string_view name) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Tells the watcher the present state, and each later one until Unwatch. Unwatch does nothing for
  // a watcher that does not watch. Borrows the watcher. Threads: any.
  void Watch(const std::string& name, Watcher& watcher) ABSL_LOCKS_EXCLUDED(mutex_);
  void Unwatch(const std::string& name, Watcher& watcher) ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes every state NOT_SERVING for good.
  void EnterLameDuck() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Exists for as long as the name is known or watched.
  struct Entry {
    State state = State::kUnknown;
    absl::flat_hash_set<Watcher*> watchers;
  };
  static void Set(Entry& entry, State state);

  const std::string multiplying_;
  const std::string default_device_;
  mutable Mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_ ABSL_GUARDED_BY(mutex_);
  bool is_lame_duck_ ABSL_GUARDED_BY(mutex_) = false;
};

// Checks the server from inside: makes a connection, hands its other end to the server through
// `take`, as connections of peers are, and asks for the list of devices. An answer shows that
// gRPC's threads accept connections and calls, and that no thread holds the locks of scheduling,
// admission, statistics or devices for good.
//
// Errors: ResourceExhausted if no file descriptor is left, or if the server refuses because of its
// load, which is also an answer; DeadlineExceeded if no answer comes in time; otherwise the
// server's answer.
absl::Status CallSelf(const std::function<void(int descriptor)>& take, absl::Duration timeout);

// Whether the call was made by CallSelf: its metadata have a mark that only this process knows.
bool IsOwnCall(const grpc::ServerContextBase& context);

// Borrows both.
std::unique_ptr<grpc::Service> MakeHealthService(Health& health, const ServiceParts& parts);

}  // namespace gemmd
