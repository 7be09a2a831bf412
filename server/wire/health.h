// SPDX-License-Identifier: Apache-2.0
//
// What grpc.health.v1 says: the server as a whole, and a service that multiplies, are as healthy as
// the default device; each device is also there under its own name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "server/system/mutex.h"

namespace gemmd {

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

}  // namespace gemmd
