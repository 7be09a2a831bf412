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
  if (!is_on_host_ && IsCurrentOnDevice()) {
    const absl::Status room = TakeRoom();
    if (!room.ok()) return AnswerReaders(room, answers);
    if (StartReading()) return;
  }
  // The device is gone; where whoever writes there has not completed, the host's bytes may count
  // again.
  if (!is_on_host_ && begun_ > 0) return;
  AnswerReaders(is_on_host_ ? absl::OkStatus() : Lost(), answers);
}

void PlacedBytes::AnswerReaders(const absl::Status& status, Answers& answers) {
  for (Reader& reader : readers_) answers.emplace_back(std::move(reader.done), status);
  readers_.clear();
}

bool PlacedBytes::StartReading() {
  DeviceMemory::Done done = [self = shared_from_this()](const absl::Status& status) {
    self->EndReading(status);
  };
  is_reading_ = ReadOnDevice(0, {host_.data(), static_cast<size_t>(host_.bytes())}, done);
  read_version_ = version_;
  return is_reading_;
}

bool PlacedBytes::ReadOnDevice(int64_t offset, absl::Span<std::byte> to, DeviceMemory::Done& done) {
  return std::any_of(copies_.begin(), copies_.end(), [&](const auto& one) {
    return one.second->owner().Read(*one.second, offset, to, done);
  });
}

void PlacedBytes::Read(int64_t offset, absl::Span<std::byte> to, Done done) {
  const auto told = std::make_shared<Done>(std::move(done));
  {
    // What the device does not give, because it is lost meanwhile, may be elsewhere.
    DeviceMemory::Done read = [self = shared_from_this(), offset, to,
                               told](const absl::Status& status) {
      if (!status.ok()) return self->ReadOnHost(offset, to, std::move(*told));
      std::move (*told)(status);
    };
    MutexLock lock(&mutex_);
    if (!is_on_host_ && ReadOnDevice(offset, to, read)) return;
  }
  ReadOnHost(offset, to, std::move(*told));
}

void PlacedBytes::ReadOnHost(int64_t offset, absl::Span<std::byte> to, Done done) {
  BringToHost([self = shared_from_this(), offset, to,
               done = std::move(done)](const absl::Status& status) mutable {
    if (status.ok()) std::copy_n(self->host() + offset, to.size(), to.data());
    std::move(done)(status);
  });
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

// What is being given back is as little to be read as what is being brought.
bool PlacedBytes::BeginLeavingHost() {
  MutexLock lock(&mutex_);
  const bool is_used = is_reading_ || !readers_.empty() || writers_ > 0;
  if (!is_on_host_ || is_used || !IsCurrentOnDevice()) return false;
  if (host_.bytes() < HostMemory::kMappedBytes) return false;
  is_on_host_ = false;
  is_reading_ = true;
  read_version_ = version_;
  return true;
}

void PlacedBytes::EndLeavingHost() {
  // Where the system refuses, the pages stay, and so does the room.
  if (host_.Clear()) GiveRoomBack();
  Answers answers;
  {
    MutexLock lock(&mutex_);
    is_reading_ = false;
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

PlacedBytes::Edition PlacedBytes::edition() const {
  MutexLock lock(&mutex_);
  return {.number = version_, .is_settled = begun_ == 0};
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
