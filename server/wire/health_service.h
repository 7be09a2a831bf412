// SPDX-License-Identifier: Apache-2.0
//
// Whether the server serves: the service that tells it (gRPC's own one copies questions of any
// length, and keeps that of a Watch for as long as it lasts), the states behind it, and the call by
// which the daemon asks itself.
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

// What grpc.health.v1 says: the server as a whole, and a service that multiplies, are as healthy as
// the default device; each device is also there under its own name.
class Health {
 public:
  enum class State : uint8_t { kServing, kNotServing, kUnknown };

  // Whoever wants to know of each change. Called with Health's lock held.
  class Watcher {
   public:
    virtual void Tell(State state) = 0;

   protected:
    ~Watcher() = default;
  };

  // `multiplying` is the name of the service that multiplies. Devices count as not ready until
  // SetReady.
  Health(std::string multiplying, std::string default_device);

  // Sets the state of a device, or of a service that no device matters to. Threads: any.
  void SetReady(const std::string& name, bool is_ready) ABSL_LOCKS_EXCLUDED(mutex_);

  // OK where the server as a whole is SERVING; otherwise Unavailable, with the reason. Threads:
  // any.
  absl::Status serving() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The state of a device or a service; that of the server as a whole where the name is empty.
  // Threads: any.
  State StateOf(std::string_view name) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Tells the watcher the state now, and again when that is set, until Unwatch, which does nothing
  // for whoever does not watch. Borrows the watcher. Threads: any.
  void Watch(const std::string& name, Watcher& watcher) ABSL_LOCKS_EXCLUDED(mutex_);
  void Unwatch(const std::string& name, Watcher& watcher) ABSL_LOCKS_EXCLUDED(mutex_);

  // Everything is NOT_SERVING from now on.
  void EnterLameDuck() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Here for as long as it is known or watched.
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
  bool is_default_ready_ ABSL_GUARDED_BY(mutex_) = false;
};

// Makes a connection, whose other end `take` gives to the server as it gives it those of peers, and
// asks it for the devices. An answer shows that gRPC's threads take connections and calls, and that
// nobody holds the locks of scheduling, admission, statistics and devices for good.
//
// Errors: ResourceExhausted where no file descriptor is left, or where the server refuses for the
// load, which is an answer too; DeadlineExceeded where there is no answer in time; otherwise what
// the server answered.
absl::Status CallSelf(const std::function<void(int descriptor)>& take, absl::Duration timeout);

// Whether the call is one of CallSelf: it has a mark that nobody outside the process knows.
bool IsOwnCall(const grpc::ServerContextBase& context);

// Borrows what it is given.
std::unique_ptr<grpc::Service> MakeHealthService(Health& health, SendWatch& watch,
                                                 HandlerTimes& times, const Clock& clock);

}  // namespace gemmd
