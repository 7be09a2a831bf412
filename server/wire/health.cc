// SPDX-License-Identifier: Apache-2.0
#include "server/wire/health.h"

#include <utility>

namespace gemmd {

Health::Health(std::string multiplying, std::string default_device)
    : multiplying_(std::move(multiplying)), default_device_(std::move(default_device)) {
  SetReady(default_device_, false);
}

void Health::Set(Entry& entry, State state) {
  entry.state = state;
  for (Watcher* const watcher : entry.watchers) watcher->Tell(state);
}

void Health::SetReady(const std::string& name, bool is_ready) {
  MutexLock lock(&mutex_);
  if (is_lame_duck_) return;
  const State state = is_ready ? State::kServing : State::kNotServing;
  Set(entries_[name], state);
  if (name != default_device_) return;
  is_default_ready_ = is_ready;
  Set(entries_[""], state);
  Set(entries_[multiplying_], state);
}

absl::Status Health::serving() const {
  MutexLock lock(&mutex_);
  if (is_lame_duck_) return absl::UnavailableError("the server stops");
  if (is_default_ready_) return absl::OkStatus();
  return absl::UnavailableError("the default device, " + default_device_ + ", is not ready");
}

Health::State Health::StateOf(std::string_view name) const {
  MutexLock lock(&mutex_);
  const auto entry = entries_.find(name);
  return entry == entries_.end() ? State::kUnknown : entry->second.state;
}

void Health::Watch(const std::string& name, Watcher& watcher) {
  MutexLock lock(&mutex_);
  Entry& entry = entries_[name];
  entry.watchers.insert(&watcher);
  watcher.Tell(entry.state);
}

void Health::Unwatch(const std::string& name, Watcher& watcher) {
  MutexLock lock(&mutex_);
  const auto entry = entries_.find(name);
  if (entry == entries_.end() || entry->second.watchers.erase(&watcher) == 0) return;
  const bool is_known = entry->second.state != State::kUnknown;
  if (!is_known && entry->second.watchers.empty()) entries_.erase(entry);
}

void Health::EnterLameDuck() {
  MutexLock lock(&mutex_);
  is_lame_duck_ = true;
  for (auto& [name, entry] : entries_) {
    if (entry.state != State::kUnknown) Set(entry, State::kNotServing);
  }
}

}  // namespace gemmd
