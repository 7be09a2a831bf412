// SPDX-License-Identifier: Apache-2.0
#include "server/store/placed_bytes.h"

#include <algorithm>

#include "server/store/device_copies.h"

namespace gemmd {
namespace {

absl::Status Lost() {
  return absl::FailedPreconditionError("tensor lost: it was on a device that is gone");
}

}  // namespace

void PlacedBytes::Tell(Answers answers) {
  for (auto& [done, status] : answers) std::move(done)(status);
}

void PlacedBytes::BringToHost(Done done) {
  Answers answers;
  {
    MutexLock lock(&mutex_);
    readers_.push_back({version_, std::move(done)});
    ServeReaders(answers);
  }
  Tell(std::move(answers));
}

// What is being read may be older than what the latest reader wants; where the host became current
// meanwhile, it is still being written.
void PlacedBytes::ServeReaders(Answers& answers) {
  if (is_reading_ || readers_.empty()) return;
  if (!is_on_host_ && StartReading()) return;
  // The device is gone; where whoever writes there has not completed, the host's bytes may count
  // again.
  if (!is_on_host_ && begun_ > 0) return;
  for (Reader& reader : readers_) {
    answers.emplace_back(std::move(reader.done), is_on_host_ ? absl::OkStatus() : Lost());
  }
  readers_.clear();
}

bool PlacedBytes::StartReading() {
  const absl::Span<std::byte> to(host_.data(), static_cast<size_t>(host_.bytes()));
  for (const auto& [place, copy] : copies_) {
    is_reading_ = copy->owner().Read(
        *copy, to,
        [self = shared_from_this()](const absl::Status& status) { self->EndReading(status); });
    read_version_ = version_;
    if (is_reading_) return true;
  }
  return false;
}

void PlacedBytes::EndReading(const absl::Status& status) {
  DropForms();
  Answers answers;
  {
    MutexLock lock(&mutex_);
    is_reading_ = false;
    if (status.ok() && begun_ == 0 && version_ == read_version_) is_on_host_ = true;
    // Those who came after a change want another reading.
    if (!is_on_host_ && (status.ok() || IsCurrentOnDevice())) {
      std::vector<Reader> later;
      for (Reader& reader : readers_) {
        if (reader.version > read_version_) {
          later.push_back(std::move(reader));
        } else {
          answers.emplace_back(std::move(reader.done), status);
        }
      }
      readers_.swap(later);
    }
    ServeReaders(answers);
  }
  Tell(std::move(answers));
}

bool PlacedBytes::MayWrite(Place place) const {
  return writers_ == 0 || (written_at_ == place && waiting_writers_.empty());
}

bool PlacedBytes::TakeWritingAtOnce(Place place) {
  MutexLock lock(&mutex_);
  if (!MayWrite(place)) return false;
  written_at_ = place;
  ++writers_;
  return true;
}

void PlacedBytes::TakeWriting(Place place, Taken taken) {
  {
    MutexLock lock(&mutex_);
    if (!MayWrite(place)) {
      waiting_writers_.push_back({place, std::move(taken)});
      return;
    }
    written_at_ = place;
    ++writers_;
  }
  std::move(taken)();
}

void PlacedBytes::BeginWriting(Place place) {
  Copies outdated;
  MutexLock lock(&mutex_);
  ++version_;
  if (++begun_ == 1) was_on_host_ = is_on_host_;
  is_on_host_ = place == nullptr;
  outdated = TakeOthers(place);
}

void PlacedBytes::EndWriting(Place place, bool has_begun, bool is_ok) {
  if (has_begun) DropForms();
  Copies outdated;
  Answers answers;
  std::vector<Taken> granted;
  {
    MutexLock lock(&mutex_);
    --writers_;
    if (has_begun) {
      ++version_;
      --begun_;
      // Copies that were made meanwhile may have some of the old bytes and some of the new ones.
      outdated = TakeOthers(place);
      if (is_ok) was_on_host_ = false;
      if (begun_ == 0 && was_on_host_ && !IsCurrentOnDevice()) is_on_host_ = true;
      ServeReaders(answers);
    }
    if (writers_ == 0) granted = GrantWriting();
  }
  Tell(std::move(answers));
  for (Taken& taken : granted) std::move(taken)();
}

// The next one has the right, and those behind it that write at the same place.
std::vector<PlacedBytes::Taken> PlacedBytes::GrantWriting() {
  std::vector<Taken> granted;
  while (!waiting_writers_.empty()) {
    Writer& next = waiting_writers_.front();
    if (writers_ > 0 && next.place != written_at_) break;
    written_at_ = next.place;
    ++writers_;
    granted.push_back(std::move(next.taken));
    waiting_writers_.pop_front();
  }
  return granted;
}

// Whoever uses a copy that is taken keeps it, and nobody else gets it.
PlacedBytes::Copies PlacedBytes::TakeOthers(Place place) {
  Copies others;
  others.swap(copies_);
  if (auto own = others.extract(place); !own.empty()) copies_.insert(std::move(own));
  return others;
}

bool PlacedBytes::IsCurrentOnDevice() const {
  return std::any_of(copies_.begin(), copies_.end(),
                     [](const auto& one) { return one.second->owner().Has(*one.second); });
}

bool PlacedBytes::is_on_host() const {
  MutexLock lock(&mutex_);
  return is_on_host_;
}

bool PlacedBytes::is_lost() const {
  MutexLock lock(&mutex_);
  return !is_on_host_ && begun_ == 0 && !IsCurrentOnDevice();
}

bool PlacedBytes::is_on(std::string_view device) const {
  MutexLock lock(&mutex_);
  return std::any_of(copies_.begin(), copies_.end(), [device](const auto& one) {
    return one.first->device() == device && one.first->Has(*one.second);
  });
}

std::shared_ptr<DeviceCopies> PlacedBytes::FindDevice() const {
  MutexLock lock(&mutex_);
  for (const auto& [place, copy] : copies_) {
    if (place->Has(*copy)) return copy->owner().shared_from_this();
  }
  return nullptr;
}

std::vector<std::string> PlacedBytes::Devices() const {
  std::vector<std::string> devices;
  MutexLock lock(&mutex_);
  for (const auto& [place, copy] : copies_) {
    if (place->Has(*copy)) devices.push_back(place->device());
  }
  return devices;
}

std::shared_ptr<DeviceCopy> PlacedBytes::CopyOn(DeviceCopies& place) {
  MutexLock lock(&mutex_);
  std::shared_ptr<DeviceCopy>& copy = copies_[&place];
  if (copy == nullptr) {
    copy = std::make_shared<DeviceCopy>(place.shared_from_this(), weak_from_this(), bytes());
  }
  return copy;
}

PlacedBytes::Leaving PlacedBytes::GiveUp(DeviceCopies& place, DeviceCopy& copy) {
  MutexLock lock(&mutex_);
  const auto own = copies_.find(&place);
  const bool is_outdated = own == copies_.end() || own->second.get() != &copy;
  if (!is_on_host_ && !is_outdated && place.Has(copy)) return Leaving::kIsOnlyPlace;
  return place.DropUnused(copy) ? Leaving::kGone : Leaving::kInUse;
}

}  // namespace gemmd
