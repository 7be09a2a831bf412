// SPDX-License-Identifier: Apache-2.0
#include "server/store/placed_bytes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/crossing/shared_memory.h"
#include "server/system/resources.h"

namespace gemmd {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

absl::Status NoMemory(int64_t bytes) {
  return absl::ResourceExhaustedError(
      Concat("tensor: got no host memory for ", bytes, " bytes, try again later"));
}

// Maps memory aligned to a huge page, so that huge pages back as much of it as possible: with small
// pages, an upload spends four fifths of its time waiting for the system to clear and map pages.
// Null on failure.
std::byte* Map(size_t bytes) {
  const auto page = static_cast<size_t>(getpagesize());
  bytes = (bytes + page - 1) / page * page;
  const size_t slack = bytes < kHugePage ? 0 : kHugePage;
  void* const mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(mapped);
  if (slack == 0) return first;
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(first) % kHugePage) % kHugePage;
  std::byte* const memory = first + before;
  if (before > 0) munmap(first, before);
  if (before < slack) munmap(memory + bytes, slack - before);
  // Without huge pages, small pages are used.
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

absl::Status Lost() {
  return absl::FailedPreconditionError("tensor lost: it was on a device that is gone");
}

}  // namespace

absl::StatusOr<HostMemory> HostMemory::Allocate(int64_t bytes, bool is_for_workers) {
  if (bytes == 0) return HostMemory();
  if (SharedMemory* const shared = SharedMemory::OfProcess();
      shared != nullptr && (is_for_workers || shared->has_tensors()) &&
      bytes >= SharedMemory::kMinBytes) {
    std::byte* const memory = shared->Take(bytes);
    if (memory != nullptr) return HostMemory(memory, bytes);
  }
  return AllocatePrivate(bytes);
}

absl::StatusOr<HostMemory> HostMemory::AllocatePrivate(int64_t bytes) {
  if (bytes == 0) return HostMemory();
  const auto size = static_cast<size_t>(bytes);
  if (bytes >= kMappedBytes) {
    std::byte* const mapped = Map(size);
    if (mapped == nullptr) return NoMemory(bytes);
    HostMemory memory(mapped, bytes);
    if (!HasSpareAddresses()) return NoMemory(bytes);
    return memory;
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, size) != 0) return NoMemory(bytes);
  std::memset(memory, 0, size);
  return HostMemory(static_cast<std::byte*>(memory), bytes);
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMemory* HostMemory::shared() const {
  SharedMemory* const shared = SharedMemory::OfProcess();
  return shared != nullptr && shared->OffsetOf(data_) ? shared : nullptr;
}

bool HostMemory::Clear() const {
  if (SharedMemory* const shared = this->shared()) return shared->Clear(data_, bytes_);
  return bytes_ >= kMappedBytes && madvise(data_, static_cast<size_t>(bytes_), MADV_DONTNEED) == 0;
}

HostMemory::~HostMemory() {
  if (SharedMemory* const shared = this->shared()) {
    shared->GiveBack(data_, bytes_);
  } else if (bytes_ >= kMappedBytes) {
    munmap(data_, static_cast<size_t>(bytes_));
  } else {
    std::free(data_);
  }
}

void PlacedBytes::Tell(Answers answers) {
  for (auto& [done, status] : answers) std::move(done)(status);
}

void PlacedBytes::BringToHost(Done done) {
  Answers answers;
  bool gives_back = false;
  {
    MutexLock lock(&mutex_);
    readers_.push_back({version_, std::move(done)});
    ServeReaders(answers);
    gives_back = BeginGivingBack();
  }
  if (gives_back) EndLeavingHost();
  Tell(std::move(answers));
}

absl::Status PlacedBytes::TakeRoomToRead() {
  MutexLock lock(&mutex_);
  return ChargeReading();
}

absl::Status PlacedBytes::ChargeReading() {
  const bool had_room = has_room();
  RETURN_IF_ERROR(TakeRoom());
  is_charged_for_reading_ |= !had_room;
  return absl::OkStatus();
}

// A writer may rely on the room. Nobody else accesses host memory: it had no room before, and no
// read that used this room has succeeded.
bool PlacedBytes::BeginGivingBack() {
  if (is_on_host_) is_charged_for_reading_ = false;
  const bool is_used = is_reading_ || !readers_.empty() || writers_ > 0;
  if (!is_charged_for_reading_ || is_used) return false;
  is_charged_for_reading_ = false;
  is_reading_ = true;
  read_version_ = version_;
  return true;
}

// The current read may be older than the latest reader needs; and even if the host became current
// meanwhile, that read is still writing to it.
void PlacedBytes::ServeReaders(Answers& answers) {
  if (is_reading_ || readers_.empty()) return;
  if (!is_on_host_ && IsCurrentOnDevice()) {
    const absl::Status room = ChargeReading();
    if (!room.ok()) return AnswerReaders(room, answers);
    if (StartReading()) return;
  }
  // The device is gone; if its writers have not completed, the host's bytes may become current
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
    // If the device is lost meanwhile, the bytes may be elsewhere.
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
  bool gives_back = false;
  {
    MutexLock lock(&mutex_);
    is_reading_ = false;
    // Readers use host memory once they are told, even if it is outdated by then.
    if (status.ok()) is_charged_for_reading_ = false;
    if (status.ok() && begun_ == 0 && version_ == read_version_) is_on_host_ = true;
    // Readers that came after a change need another read.
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
    gives_back = BeginGivingBack();
  }
  if (gives_back) EndLeavingHost();
  Tell(std::move(answers));
}

// Memory being given back must not be read, like memory being filled. Outdated host memory can be
// given back too.
bool PlacedBytes::BeginLeavingHost() {
  MutexLock lock(&mutex_);
  const bool is_used = is_reading_ || !readers_.empty() || writers_ > 0;
  if (is_used || !IsCurrentOnDevice()) return false;
  if (host_.bytes() < HostMemory::kMappedBytes) return false;
  is_on_host_ = false;
  is_reading_ = true;
  read_version_ = version_;
  return true;
}

void PlacedBytes::EndLeavingHost() {
  // If the system refuses, the pages stay, and so does their charge.
  if (host_.Clear()) GiveRoomBack();
  Answers answers;
  bool gives_back = false;
  {
    MutexLock lock(&mutex_);
    is_reading_ = false;
    ServeReaders(answers);
    gives_back = BeginGivingBack();
  }
  if (gives_back) EndLeavingHost();
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
  OutdateForms();
}

void PlacedBytes::OutdateForms() {
  for (const auto& [place, copy] : copies_) copy->owner().OutdateForms(*copy);
}

void PlacedBytes::EndWriting(Place place, bool has_begun, bool is_ok) {
  if (has_begun) DropForms();
  Copies outdated;
  Answers answers;
  std::vector<Taken> granted;
  bool gives_back = false;
  {
    MutexLock lock(&mutex_);
    --writers_;
    if (has_begun) {
      ++version_;
      --begun_;
      // Copies made meanwhile may mix old and new bytes.
      outdated = TakeOthers(place);
      OutdateForms();
      if (is_ok) was_on_host_ = false;
      if (begun_ == 0 && was_on_host_ && !IsCurrentOnDevice()) is_on_host_ = true;
      ServeReaders(answers);
    }
    if (writers_ == 0) granted = GrantWriting();
    gives_back = BeginGivingBack();
  }
  if (gives_back) EndLeavingHost();
  Tell(std::move(answers));
  for (Taken& taken : granted) std::move(taken)();
}

// Grants the right to the next writer, and to those after it that write at the same place.
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

// Current users keep a removed copy, but no new user gets it.
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

DeviceCopies::Use& DeviceCopies::Use::operator=(Use&& other) noexcept {
  std::swap(copy_, other.copy_);
  std::swap(block_, other.block_);
  return *this;
}

DeviceCopies::Use::~Use() {
  if (copy_ == nullptr) return;
  MutexLock lock(&copy_->owner_->mutex_);
  --copy_->users_;
}

DeviceCopy::~DeviceCopy() {
  MutexLock lock(&owner_->mutex_);
  owner_->Drop(*this);
}

// Frees the block, unless there is none or it is lost, and what was reserved for one.
void DeviceCopies::Drop(DeviceCopy& copy) {
  if (std::exchange(copy.is_promised_, false)) promised_bytes_ -= BlockBytes(copy.bytes_);
  for (const std::shared_ptr<DeviceForm>& form : copy.forms_) DropForm(*form);
  copy.forms_.clear();
  if (copy.block_ == 0) return;
  resident_.erase(&copy);
  --counts_.copies;
  counts_.bytes -= BlockBytes(copy.bytes_);
  // All readers of the block were submitted before; freeing a lost block has no effect.
  if (!is_closed_) memory_.Free(copy.block_);
  copy.block_ = 0;
  copy.charge_ = Account::Charge();
}

void DeviceCopies::Close() {
  MutexLock lock(&mutex_);
  is_closed_ = true;
}

void DeviceCopies::BringAs(const std::shared_ptr<PlacedBytes>& bytes, bool is_new, Done done) {
  Making making = {.copy = bytes->CopyOn(*this), .bytes = bytes, .is_new = is_new};
  DeviceCopy& copy = *making.copy;
  Use use;
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    copy.turn_ = ++last_turn_;
    if (copy.block_ != 0 && !is_closed_ && copy.generation_ != memory_.generation()) Drop(copy);
    if (is_closed_) {
      refused = absl::UnavailableError("the server is stopping");
    } else if (copy.block_ != 0 && !copy.is_being_made_) {
      ++counts_.hits;
      ++copy.users_;
      use = Use(making.copy, copy.block_);
    } else if (BlockBytes(copy.bytes_) > memory_.capacity_bytes()) {
      refused = absl::ResourceExhaustedError(
          Concat("quota: got ", copy.bytes_, " bytes of device memory, want at most the ",
                 memory_.capacity_bytes(), " of ", device_,
                 " that all tensors may take (four fifths of --gpu-memory-bytes)"));
    } else {
      copy.waiters_.push_back(std::move(done));
      if (std::exchange(copy.is_being_made_, true)) return;
      copy.is_promised_ = true;
      promised_bytes_ += BlockBytes(copy.bytes_);
    }
  }
  if (!refused.ok()) return std::move(done)(refused);
  if (use.block() != 0) return std::move(done)(std::move(use));
  Making failed = {.copy = making.copy, .bytes = bytes, .is_new = is_new};
  try {
    if (is_new) return Allocate(std::move(making));
    bytes->BringToHost([self = shared_from_this(),
                        making = std::move(making)](const absl::Status& status) mutable {
      status.ok() ? self->Allocate(std::move(making)) : self->Finish(making, status);
    });
  } catch (const std::bad_alloc&) {
    Finish(failed, absl::ResourceExhaustedError(
                       "memory: none to make a copy on a device, try again later"));
  }
}

DeviceCopies::Use DeviceCopies::TakeAtOnce(PlacedBytes& bytes) {
  std::shared_ptr<DeviceCopy> copy = bytes.CopyOn(*this);
  MutexLock lock(&mutex_);
  if (!HasLocked(*copy)) return Use();
  copy->turn_ = ++last_turn_;
  ++counts_.hits;
  ++copy->users_;
  const DeviceBlock block = copy->block_;
  return Use(std::move(copy), block);
}

DeviceCopies::FormUse DeviceCopies::TakeForm(const Use& copy, const FormKey& key) {
  using State = DeviceForm::State;
  std::shared_ptr<DeviceForm> form;
  {
    // Declared before the lock: releasing the last reference acquires it.
    const std::shared_ptr<PlacedBytes> tensor = copy.copy_->tensor_.lock();
    MutexLock lock(&mutex_);
    std::vector<std::shared_ptr<DeviceForm>>& forms = copy.copy_->forms_;
    if (tensor == nullptr || !HasLocked(*copy.copy_)) return {};
    const auto found =
        std::find_if(forms.begin(), forms.end(),
                     [&key](const std::shared_ptr<DeviceForm>& one) { return one->key == key; });
    if (found == forms.end()) {
      if (forms.size() == kMaxForms) ForgetWanted(forms);
      if (forms.size() == kMaxForms) return {};
      forms.push_back(std::make_shared<DeviceForm>(DeviceForm{key}));
      forms.back()->turn = ++last_turn_;
      return {};
    }
    form = *found;
    form->turn = ++last_turn_;
    if (form->state == State::kMade || form->state == State::kEmpty) {
      const bool is_made = form->state == State::kMade;
      if (!is_made) form->state = State::kBeingMade;
      ++form->users;
      const DeviceBlock block = form->block;
      return {.form = std::move(form), .block = block, .is_made = is_made};
    }
    if (form->state != State::kWanted || !BeginForm(form, tensor->device_account())) return {};
  }
  memory_.Allocate(key.bytes, [self = shared_from_this(), form](absl::StatusOr<DeviceBlock> block) {
    self->FinishForm(form, std::move(block));
  });
  return {};
}

// Forgets the form that was requested once, longest ago.
void DeviceCopies::ForgetWanted(std::vector<std::shared_ptr<DeviceForm>>& forms) {
  auto oldest = forms.end();
  for (auto one = forms.begin(); one != forms.end(); ++one) {
    if ((*one)->state != DeviceForm::State::kWanted) continue;
    if (oldest == forms.end() || (*one)->turn < (*oldest)->turn) oldest = one;
  }
  if (oldest != forms.end()) forms.erase(oldest);
}

bool DeviceCopies::BeginForm(const std::shared_ptr<DeviceForm>& form, Account* account) {
  const int64_t bytes = BlockBytes(form->key.bytes);
  const int64_t taken = counts_.bytes + promised_bytes_ + promised_to_forms_;
  if (taken > memory_.capacity_bytes() - bytes) return false;
  if (account != nullptr) {
    absl::StatusOr<Account::Charge> charge = account->Take(bytes);
    if (!charge.ok()) return false;
    form->charge = *std::move(charge);
  }
  form->state = DeviceForm::State::kAllocating;
  promised_to_forms_ += bytes;
  return true;
}

void DeviceCopies::FinishForm(const std::shared_ptr<DeviceForm>& form,
                              absl::StatusOr<DeviceBlock> block) {
  MutexLock lock(&mutex_);
  promised_to_forms_ -= BlockBytes(form->key.bytes);
  if (!block.ok() || form->is_gone || is_closed_) {
    if (block.ok() && !is_closed_) memory_.Free(*block);
    form->state = DeviceForm::State::kWanted;
    form->charge = Account::Charge();
    return;
  }
  form->block = *block;
  form->state = DeviceForm::State::kEmpty;
  ++counts_.forms;
  counts_.bytes += BlockBytes(form->key.bytes);
}

void DeviceCopies::EndForm(FormUse use, bool is_made) {
  using State = DeviceForm::State;
  MutexLock lock(&mutex_);
  DeviceForm& form = *use.form;
  --form.users;
  if (use.is_made || form.state != State::kBeingMade) return;
  const bool is_outdated = std::exchange(form.is_outdated, false);
  form.state = is_made && !is_outdated ? State::kMade : State::kEmpty;
}

void DeviceCopies::OutdateForms(DeviceCopy& copy) {
  using State = DeviceForm::State;
  MutexLock lock(&mutex_);
  for (const std::shared_ptr<DeviceForm>& form : copy.forms_) {
    form->is_outdated = form->state == State::kBeingMade;
    if (form->state == State::kMade) form->state = State::kEmpty;
  }
}

// All users of the block were submitted before.
void DeviceCopies::DropForm(DeviceForm& form) {
  form.is_gone = true;
  if (form.block == 0) return;
  --counts_.forms;
  counts_.bytes -= BlockBytes(form.key.bytes);
  if (!is_closed_) memory_.Free(form.block);
  form.block = 0;
  form.charge = Account::Charge();
}

bool DeviceCopies::GiveUpForm(const Account* account) {
  DeviceCopy* of = nullptr;
  std::shared_ptr<DeviceForm> oldest;
  for (DeviceCopy* const copy : resident_) {
    for (const std::shared_ptr<DeviceForm>& form : copy->forms_) {
      if (form->block == 0 || form->users > 0) continue;
      if (account != nullptr && form->charge.account() != account) continue;
      if (oldest != nullptr && form->turn > oldest->turn) continue;
      of = copy;
      oldest = form;
    }
  }
  if (oldest == nullptr) return false;
  DropForm(*oldest);
  std::erase(of->forms_, oldest);
  return true;
}

absl::Status DeviceCopies::Charge(Making& making) {
  Account* const account = making.bytes->device_account();
  if (account == nullptr || making.charge.bytes() > 0) return absl::OkStatus();
  while (true) {
    absl::StatusOr<Account::Charge> charge = account->Take(BlockBytes(making.copy->bytes_));
    if (charge.ok()) {
      making.charge = *std::move(charge);
      return absl::OkStatus();
    }
    if (!GiveUpOneOf(*account)) return charge.status();
  }
}

bool DeviceCopies::GiveUpOneOf(const Account& account) {
  struct Held {
    int64_t turn = 0;
    std::shared_ptr<DeviceCopy> copy;
    std::shared_ptr<PlacedBytes> tensor;
  };
  // Declared before the lock: releasing the last reference acquires it.
  std::vector<Held> held;
  {
    MutexLock lock(&mutex_);
    if (GiveUpForm(&account)) return true;
    for (DeviceCopy* const copy : resident_) {
      if (copy->users_ > 0 || copy->is_being_made_) continue;
      held.push_back({copy->turn_, copy->weak_from_this().lock(), copy->tensor_.lock()});
    }
  }
  std::erase_if(held, [&](const Held& one) {
    return one.copy == nullptr || one.tensor == nullptr || one.tensor->device_account() != &account;
  });
  std::sort(held.begin(), held.end(),
            [](const Held& one, const Held& other) { return one.turn < other.turn; });
  for (const Held& one : held) {
    if (one.tensor->GiveUp(*this, *one.copy) != PlacedBytes::Leaving::kGone) continue;
    MutexLock lock(&mutex_);
    ++counts_.evictions;
    return true;
  }
  return false;
}

void DeviceCopies::Allocate(Making making) {
  const absl::Status charged = Charge(making);
  if (!charged.ok()) return Finish(making, charged);
  std::shared_ptr<PlacedBytes> to_write_back;
  const absl::Status room = MakeRoom(making, to_write_back);
  if (!room.ok()) return Finish(making, room);
  if (to_write_back != nullptr) {
    return to_write_back->BringToHost([self = shared_from_this(), making = std::move(making)](
                                          const absl::Status& status) mutable {
      if (status.ok()) {
        MutexLock lock(&self->mutex_);
        ++self->counts_.written_back;
      }
      // Lost bytes need no memory. The room was taken, but may have been given back since.
      const bool is_retried =
          (absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status)) &&
          --making.tries > 0;
      status.ok() || is_retried ? self->Allocate(std::move(making)) : self->Finish(making, status);
    });
  }
  const int64_t size = making.copy->bytes_;
  memory_.Allocate(size, [self = shared_from_this(),
                          making = std::move(making)](absl::StatusOr<DeviceBlock> block) mutable {
    if (block.ok()) {
      self->Fill(std::move(making), *block);
    } else if (absl::IsResourceExhausted(block.status()) && making.tries > 1) {
      --making.tries;
      self->Allocate(std::move(making));
    } else {
      self->Finish(making, block.status());
    }
  });
}

absl::Status DeviceCopies::MakeRoom(Making& making, std::shared_ptr<PlacedBytes>& to_write_back) {
  while (true) {
    std::shared_ptr<DeviceCopy> oldest;
    std::shared_ptr<PlacedBytes> tensor;
    RETURN_IF_ERROR(FindOldest(making, oldest, tensor));
    if (oldest == nullptr) return absl::OkStatus();
    const PlacedBytes::Leaving leaving = tensor->GiveUp(*this, *oldest);
    if (leaving == PlacedBytes::Leaving::kIsOnlyPlace) {
      const absl::Status room = tensor->TakeRoomToRead();
      if (room.ok()) {
        to_write_back = std::move(tensor);
        return absl::OkStatus();
      }
      making.no_room = room;
      if (making.passed_over.size() == kMaxPassedOver) return making.no_room;
      making.passed_over.insert(oldest->number_);
    }
    MutexLock lock(&mutex_);
    if (leaving == PlacedBytes::Leaving::kGone) ++counts_.evictions;
    // Others that need space do not begin with it either.
    if (leaving == PlacedBytes::Leaving::kIsOnlyPlace) oldest->turn_ = ++last_turn_;
  }
}

absl::Status DeviceCopies::FindOldest(const Making& making, std::shared_ptr<DeviceCopy>& oldest,
                                      std::shared_ptr<PlacedBytes>& tensor) {
  const int64_t bytes = making.copy->bytes_;
  // Declared before the lock: releasing the last reference acquires it.
  std::vector<std::shared_ptr<const void>> passed;
  MutexLock lock(&mutex_);
  if (is_closed_) return absl::UnavailableError("the server is stopping");
  const int64_t capacity = memory_.capacity_bytes();
  while (counts_.bytes > capacity - promised_bytes_) {
    if (GiveUpForm(nullptr)) continue;
    DeviceCopy* const found = LeastRecentlyUsed(making);
    if (found == nullptr) {
      RETURN_IF_ERROR(making.no_room);
      const int64_t used = counts_.bytes + promised_bytes_ - BlockBytes(bytes);
      return absl::ResourceExhaustedError(Concat(
          "quota: got ", bytes, " bytes of device memory, want at most the ",
          std::max<int64_t>(0, capacity - used), " that are free of all tensors of ", device_, ": ",
          used, " of ", capacity, " are in use (four fifths of --gpu-memory-bytes)"));
    }
    oldest = found->weak_from_this().lock();
    tensor = found->tensor_.lock();
    if (oldest != nullptr && tensor != nullptr) return absl::OkStatus();
    // It is about to be destroyed with its tensor.
    Drop(*found);
    passed.push_back(std::move(oldest));
    passed.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

DeviceCopy* DeviceCopies::LeastRecentlyUsed(const Making& making) {
  DeviceCopy* oldest = nullptr;
  for (DeviceCopy* const copy : resident_) {
    if (copy->users_ > 0 || copy->is_being_made_ || making.passed_over.contains(copy->number_)) {
      continue;
    }
    if (oldest == nullptr || copy->turn_ < oldest->turn_) oldest = copy;
  }
  return oldest;
}

void DeviceCopies::Fill(Making making, DeviceBlock block) {
  DeviceCopy& copy = *making.copy;
  bool is_closed = false;
  {
    MutexLock lock(&mutex_);
    is_closed = is_closed_;
    copy.block_ = block;
    // If the block is of an earlier generation, the Write fails.
    copy.generation_ = is_closed ? 0 : memory_.generation();
    copy.charge_ = std::move(making.charge);
    resident_.insert(&copy);
    ++counts_.copies;
    counts_.bytes += BlockBytes(copy.bytes_);
    copy.is_promised_ = false;
    promised_bytes_ -= BlockBytes(copy.bytes_);
  }
  if (is_closed) return Finish(making, absl::UnavailableError("the server is stopping"));
  if (making.is_new) return Finish(making, absl::OkStatus());
  const Piece whole(making.bytes->host(), static_cast<size_t>(making.bytes->bytes()));
  memory_.Write(block, 0, {whole},
                [self = shared_from_this(), making = std::move(making)](
                    const absl::Status& status) { self->Finish(making, status); });
}

void DeviceCopies::Finish(const Making& making, const absl::Status& status) {
  const std::shared_ptr<DeviceCopy>& copy = making.copy;
  Waiters waiters;
  std::vector<Use> uses;
  {
    MutexLock lock(&mutex_);
    waiters.swap(copy->waiters_);
    copy->is_being_made_ = false;
    if (status.ok()) {
      if (!making.is_new) ++counts_.made;
      copy->users_ += static_cast<int>(waiters.size());
      for (size_t i = 0; i < waiters.size(); ++i) uses.push_back(Use(copy, copy->block_));
    } else {
      Drop(*copy);
    }
  }
  for (size_t i = 0; i < waiters.size(); ++i) {
    status.ok() ? std::move(waiters[i])(std::move(uses[i])) : std::move(waiters[i])(status);
  }
}

bool DeviceCopies::HasLocked(const DeviceCopy& copy) const {
  return copy.block_ != 0 && !copy.is_being_made_ && !is_closed_ &&
         copy.generation_ == memory_.generation();
}

bool DeviceCopies::Has(const DeviceCopy& copy) const {
  MutexLock lock(&mutex_);
  return HasLocked(copy);
}

// The block may be freed once this returns, because the device executes the read first.
bool DeviceCopies::Read(const DeviceCopy& copy, int64_t offset, absl::Span<std::byte> to,
                        DeviceMemory::Done& done) {
  MutexLock lock(&mutex_);
  if (!HasLocked(copy)) return false;
  memory_.Read(copy.block_, offset, to, std::move(done));
  return true;
}

bool DeviceCopies::Write(const Use& copy, int64_t offset, absl::Span<const std::byte> from,
                         DeviceMemory::Done& done) {
  MutexLock lock(&mutex_);
  if (is_closed_) return false;
  memory_.Write(copy.block(), offset, {from}, std::move(done));
  return true;
}

bool DeviceCopies::Compress(const CompressTask& task, DeviceMemory::CompressDone done) {
  MutexLock lock(&mutex_);
  if (is_closed_) return false;
  memory_.Compress(task, std::move(done));
  return true;
}

bool DeviceCopies::Recompute(DeviceMemory::Recomputation& order,
                             DeviceMemory::RecomputeDone& done) {
  MutexLock lock(&mutex_);
  if (is_closed_) return false;
  memory_.Recompute(std::move(order), std::move(done));
  return true;
}

bool DeviceCopies::DropUnused(DeviceCopy& copy) {
  MutexLock lock(&mutex_);
  if (copy.users_ > 0 || copy.is_being_made_) return false;
  Drop(copy);
  return true;
}

DeviceCopies::Counts DeviceCopies::counts() const {
  MutexLock lock(&mutex_);
  return counts_;
}

}  // namespace gemmd
