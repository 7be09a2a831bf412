// SPDX-License-Identifier: Apache-2.0
#include "server/store/tensor_store.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/store/digest.h"
#include "server/store/placed_bytes.h"
#include "server/store/upload.h"

namespace gemmd {
namespace {

// How often KeepAlive looks for the tensor that has a name, while others get the name.
constexpr int kTriesToPin = 4;

// How often the store checks for expired entries.
constexpr absl::Duration kPause = absl::Milliseconds(250);

absl::Status NoSuchTensor() {
  return absl::NotFoundError(
      "tensor: got an unknown name or handle, want that of a tensor of this session whose lease "
      "has not ended");
}

// A peer may have at most this many times as many sessions as there are free places, so that others
// find one.
constexpr int64_t kShare = 7;

// Max due entries checked by one call, and by the store itself before it releases the lock.
constexpr int kLooksOfCall = 64;
constexpr int kLooksAtOnce = 256;

// Saturating sum of two that are not negative: a lease or a tensor may be arbitrarily long.
int64_t After(int64_t from, int64_t span) { return span > kNever - from ? kNever : from + span; }

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

Sha256Digest KeyOf(const RandomId& token) {
  return Sha256::Of({reinterpret_cast<const std::byte*>(token.bytes.data()), token.bytes.size()});
}

std::optional<Sha256Digest> KeyOf(std::string_view token) {
  const std::optional<RandomId> id = RandomId::FromHex(token);
  return id ? std::optional(KeyOf(*id)) : std::nullopt;
}

absl::Status NoSuchSession() {
  return absl::UnauthenticatedError(
      "gemmd-session: got no token of a session in the metadata, want the one from "
      "Tensors.OpenSession");
}

// Max bytes hashed by the thread that writes a chunk: more than the chunk, to catch up after a gap
// has closed, but less than 5 ms of a gRPC thread.
constexpr int64_t kHashedByCaller = int64_t{3} << 19;

// Bytes hashed by the background at a time, between other tasks.
constexpr int64_t kHashedByBackground = int64_t{8} << 20;

// Bytes of a sparse tensor whose indices are checked at a time, likewise.
constexpr int64_t kCheckedByBackground = int64_t{16} << 20;

// Uncharged bytes may take at most this many times the devices' memory for tensors in addresses of
// the host: results and uploads that wait for a device have addresses already.
constexpr int64_t kAddressesPerDeviceByte = 4;

// What a tensor takes besides its bytes.
int64_t OverheadOf(const TensorSpec& spec) {
  return TensorStore::kTensorBytes + static_cast<int64_t>(spec.scale.size() * sizeof(float));
}

}  // namespace

std::string Session::IdOf(const Sha256Digest& digest) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), 8});
}

// Collects garbage and pending notifications of a change. They are processed once the store's lock
// is released: declare it before the lock.
struct TensorStore::Leftovers {
  Leftovers() = default;
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;
  ~Leftovers() {
    for (const auto& upload : uploads) upload->End(NoSuchUpload());
  }

  // The same text whether the upload never existed or has expired.
  static absl::Status NoSuchUpload() {
    return absl::NotFoundError(
        "upload: got an unknown id, want that of an upload of this session whose lease has not "
        "ended");
  }

  std::vector<std::shared_ptr<const Tensor>> tensors;
  std::vector<TensorDraft> drafts;
  std::vector<std::shared_ptr<Upload>> uploads;
  std::vector<std::shared_ptr<Session>> sessions;
};

TensorStore::TensorStore(const StoreOptions& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      account_(
          std::make_shared<Account>("all sessions", "--tensor-bytes", options.max_bytes, nullptr)),
      addresses_(std::make_shared<Account>("all sessions", "four times the memory of all devices",
                                           0, nullptr, Account::Memory::kHostAddresses)),
      max_new_bytes_(std::numeric_limits<int64_t>::max()),
      background_(std::make_shared<ThreadPool>("gemmd-tensors", kPause, [this] { Expire(); })),
      forms_(std::make_shared<KeptForms>(background_)) {
  // Tensors may outlive the store.
  account_->SetMakesRoom(
      [kept = std::weak_ptr<KeptForms>(forms_)](const Account& account, int64_t bytes) {
        if (const std::shared_ptr<KeptForms> forms = kept.lock()) forms->MakeRoom(account, bytes);
      });
}

TensorStore::~TensorStore() { background_->Stop(); }

TensorStore::TensorUse::TensorUse(TensorUse&& other) noexcept { *this = std::move(other); }

TensorStore::TensorUse& TensorStore::TensorUse::operator=(TensorUse&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(session_, other.session_);
  std::swap(tensor_, other.tensor_);
  return *this;
}

TensorStore::TensorUse::~TensorUse() {
  TensorUse* const self = this;
  if (store_ != nullptr) store_->End(absl::MakeConstSpan(&self, 1));
}

void TensorStore::End(absl::Span<TensorUse* const> uses) {
  MutexLock lock(&mutex_);
  const int64_t now_ns = clock_.NowNs();
  for (TensorUse* const use : uses) {
    if (use->store_ == nullptr) continue;
    use->store_ = nullptr;
    Session& session = *use->session_;
    EndUse(session, now_ns);
    const auto found = session.tensors.find((*use)->handle);
    if (found == session.tensors.end()) continue;  // The tensor was deleted or replaced meanwhile.
    TensorEntry& entry = found->second;
    entry.used_ns = now_ns;
    NoteMayLeave(use->session_, entry);
    if (--entry.users > 0 || entry.pinned) continue;
    const int64_t end_ns = After(now_ns, entry.lease_ns);
    if (entry.look_ns > end_ns) LookAt(end_ns, session, entry);
  }
}

void TensorStore::EndUse(Session& session, int64_t now_ns) {
  session.used_ns = now_ns;
  --session.users;
  LookOnceIdle(session);
}

void TensorStore::LookOnceIdle(Session& session) {
  if (session.users > 0 || session.is_over) return;
  const int64_t idle_ns = After(session.used_ns, absl::ToInt64Nanoseconds(options_.linger));
  if (session.look_ns > idle_ns) LookAt(idle_ns, session);
}

void TensorStore::LookAt(int64_t at_ns, int64_t number, int64_t& look_ns, const Due& due) {
  if (look_ns != kNever) due_.erase({look_ns, number});
  look_ns = at_ns;
  if (at_ns != kNever) due_.emplace(std::pair(at_ns, number), due);
}

void TensorStore::LookAt(int64_t at_ns, Session& session, TensorEntry& entry) {
  LookAt(at_ns, entry.tensor->number, entry.look_ns,
         {.session = &session, .kind = Due::Kind::kTensor, .id = entry.tensor->handle});
}

void TensorStore::LookAt(int64_t at_ns, Session& session, Session::PendingUpload& pending) {
  LookAt(at_ns, pending.number, pending.look_ns,
         {.session = &session, .kind = Due::Kind::kUpload, .id = pending.upload->id()});
}

int64_t TensorStore::LeaseOf(const Keeping& keep) const {
  return keep.lease_ns > 0 ? keep.lease_ns : absl::ToInt64Nanoseconds(options_.lease);
}

absl::Status TensorStore::CheckKeeping(const Keeping& keep) const {
  RETURN_IF_ERROR(CheckNameLength("name", keep.name));
  return keep.lease_ns < 0 ? Invalid("lease_ns", keep.lease_ns, "at least 0") : absl::OkStatus();
}

absl::Status TensorStore::CheckMemory(int64_t bytes) const {
  if (bytes <= max_new_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      Concat("memory: the server has little left, and the tensor needs ", bytes,
             " bytes: try again later"));
}

absl::Status TensorStore::CheckRoom(const Session& session, int64_t bytes) {
  if (is_closed_) return absl::UnavailableError("the server is draining");
  if (session.is_over) return SessionDropped();
  RETURN_IF_ERROR(CheckMemory(bytes));
  return CheckCount(session, session.tensors.size() + session.uploads.size());
}

absl::Status TensorStore::CheckCount(const Session& session, size_t count) {
  if (count < kMaxTensors) return absl::OkStatus();
  return absl::ResourceExhaustedError(Concat("quota: got ", count, " tensors and uploads of ",
                                             session.account->name(), ", want fewer than ",
                                             kMaxTensors, " to make another"));
}

absl::StatusOr<TensorDraft> TensorStore::MakeDraft(const Session& session, TensorSpec spec,
                                                   Keeping keep,
                                                   std::shared_ptr<TensorBytes> bytes) {
  const int64_t overhead_bytes = OverheadOf(spec);
  // Includes the overhead of an upload, which is charged next.
  session.account->MakeRoom(
      After(bytes == nullptr ? spec.bytes : 0, overhead_bytes + Upload::kOverheadBytes));
  TensorDraft draft;
  ASSIGN_OR_RETURN(draft.charge, session.account->Take(overhead_bytes));
  if (bytes == nullptr) {
    ASSIGN_OR_RETURN(bytes, TensorBytes::Allocate(spec.bytes, *session.account, background_));
  }
  draft.bytes = std::move(bytes);
  draft.spec = std::move(spec);
  draft.keep = std::move(keep);
  return draft;
}

absl::StatusOr<TensorState> TensorStore::Publish(const std::shared_ptr<Session>& owner,
                                                 TensorDraft draft, Leftovers& left) {
  Session& session = *owner;
  // Other drafts may have been published since this one was made. Uploads have their places, and
  // one that is complete has just left its own.
  const size_t replaced = session.names.contains(draft.keep.name) ? 1 : 0;
  const size_t places = session.tensors.size() + session.uploads.size();
  const absl::Status room =
      session.is_over ? SessionDropped() : CheckCount(session, places - replaced);
  if (!room.ok()) {
    left.drafts.push_back(std::move(draft));
    return room;
  }
  TensorEntry entry;
  ASSIGN_OR_RETURN(const RandomId handle, RandomId::Make());
  entry.lease_ns = LeaseOf(draft.keep);
  entry.pinned = draft.keep.pinned;
  entry.used_ns = clock_.NowNs();
  const std::string name = draft.keep.name;
  entry.tensor = std::make_shared<const Tensor>(
      Tensor{handle, ++last_number_, std::move(draft.keep.name), std::move(draft.spec),
             std::move(draft.bytes), std::move(draft.charge)});
  if (!name.empty()) {
    const auto earlier = session.names.find(name);
    if (earlier != session.names.end()) Erase(session, RandomId(earlier->second), left);
    session.names[name] = handle;
  }
  TensorState state = StateOf(entry);
  TensorEntry& kept = session.tensors.emplace(handle, std::move(entry)).first->second;
  if (!kept.pinned) LookAt(After(kept.used_ns, kept.lease_ns), session, kept);
  NoteMayLeave(owner, kept);
  return state;
}

void TensorStore::Erase(Session& session, const RandomId& handle, Leftovers& left) {
  const auto entry = session.tensors.find(handle);
  LookAt(kNever, session, entry->second);
  const std::string& name = entry->second.tensor->name;
  const auto named = session.names.find(name);
  if (named != session.names.end() && named->second == handle) session.names.erase(named);
  left.tensors.push_back(std::move(entry->second.tensor));
  session.tensors.erase(entry);
}

TensorEntry* TensorStore::FindEntry(Session& session, const TensorName& name, Leftovers& left) {
  const RandomId* handle = std::get_if<RandomId>(&name);
  if (handle == nullptr) {
    const auto named = session.names.find(std::get<std::string>(name));
    if (named == session.names.end()) return nullptr;
    handle = &named->second;
  }
  const auto entry = session.tensors.find(*handle);
  if (entry == session.tensors.end()) return nullptr;
  if (!entry->second.HasExpired(clock_.NowNs())) return &entry->second;
  ++counts_.tensors_expired;
  Erase(session, RandomId(*handle), left);
  return nullptr;
}

TensorState TensorStore::StateOf(const TensorEntry& entry) const {
  const Tensor& tensor = *entry.tensor;
  TensorState state;
  state.tensor = entry.tensor;
  state.kept_bytes =
      tensor.bytes->charged_bytes() + tensor.charge.bytes() + tensor.bytes->form_bytes();
  state.pinned = entry.pinned;
  state.lease_ns = entry.lease_ns;
  if (!entry.pinned) {
    const int64_t unused_ns = entry.users > 0 ? 0 : clock_.NowNs() - entry.used_ns;
    state.expires_in_ns = std::max<int64_t>(0, entry.lease_ns - unused_ns);
  }
  if (tensor.bytes->is_on_host()) state.places.push_back({"host", tensor.spec.bytes});
  for (std::string& device : tensor.bytes->Devices()) {
    state.places.push_back({std::move(device), tensor.spec.bytes});
  }
  state.lost = tensor.bytes->is_lost();
  state.products = entry.products;
  return state;
}

absl::StatusOr<TensorStore::TensorUse> TensorStore::Find(const SessionUse& session,
                                                         const TensorName& name) {
  TensorUse use;
  const Wanted wanted = {&name, &use};
  RETURN_IF_ERROR(Find(session, absl::MakeConstSpan(&wanted, 1)));
  return use;
}

absl::Status TensorStore::Find(const SessionUse& session, absl::Span<const Wanted> all) {
  Leftovers left;
  MutexLock lock(&mutex_);
  for (const auto& [name, use] : all) {
    TensorEntry* const entry = FindEntry(*session.session_, *name, left);
    if (entry == nullptr) return NoSuchTensor();
    ++entry->users;
    ++session.session_->users;
    *use = TensorUse(this, session.session_, entry->tensor);
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorState> TensorStore::Describe(const SessionUse& session,
                                                  const TensorName& name) {
  Leftovers left;
  MutexLock lock(&mutex_);
  const TensorEntry* const entry = FindEntry(*session.session_, name, left);
  if (entry == nullptr) return NoSuchTensor();
  return StateOf(*entry);
}

absl::Status TensorStore::BeginProduct(absl::Span<const TensorUse* const> read,
                                       const TensorUse& written) {
  MutexLock lock(&mutex_);
  const auto count = [](const TensorUse& use) {
    const auto entry = use.session_->tensors.find(use->handle);
    if (entry != use.session_->tensors.end()) ++entry->second.products;
  };
  if (written.tensor() != nullptr) {
    TensorBytes& bytes = *written->bytes;
    if (bytes.are_shared) {
      return absl::FailedPreconditionError(
          "d.tensor: got a tensor whose bytes were those of another one of the same hash, want "
          "one that was uploaded without a hash or made by a product");
    }
    // The bytes cannot be shared from now on.
    bytes.digest.reset();
  }
  bool is_counted = written.tensor() == nullptr;
  for (const TensorUse* const use : read) {
    if (use->tensor() == nullptr) continue;
    count(*use);
    is_counted |= use->tensor() == written.tensor();
  }
  if (!is_counted) count(written);
  return absl::OkStatus();
}

TensorState TensorStore::StateOf(const TensorUse& use) {
  TensorEntry now;
  {
    MutexLock lock(&mutex_);
    const auto entry = use.session_->tensors.find(use->handle);
    if (entry != use.session_->tensors.end()) now = entry->second;
  }
  if (now.tensor == nullptr) now.tensor = use.tensor();
  return StateOf(now);
}

absl::StatusOr<TensorDraft> TensorStore::MakeDraft(const SessionUse& session, TensorSpec spec,
                                                   Keeping keep, bool is_result) {
  RETURN_IF_ERROR(CheckKeeping(keep));
  // Less is no mapping, and so takes memory from the beginning.
  bool is_charged =
      !is_result || spec.bytes < HostMemory::kMappedBytes || !LacksRoom(session, spec, keep, 0);
  {
    MutexLock lock(&mutex_);
    const auto has_memory = [](const auto& device) { return device.second.copies != nullptr; };
    is_charged = is_charged || absl::c_none_of(devices_, has_memory);
    RETURN_IF_ERROR(CheckRoom(*session.session_, is_charged ? spec.bytes : 0));
  }
  Session& owner = *session.session_;
  std::shared_ptr<TensorBytes> bytes;
  if (!is_charged) {
    ASSIGN_OR_RETURN(bytes, AllocateUncharged(spec.bytes, *owner.account, nullptr));
  }
  ASSIGN_OR_RETURN(TensorDraft draft,
                   MakeDraft(owner, std::move(spec), std::move(keep), std::move(bytes)));
  draft.bytes->shall_leave_host = options_.host_copies == HostCopies::kNone;
  return draft;
}

absl::StatusOr<TensorState> TensorStore::Publish(const SessionUse& session, TensorDraft draft) {
  Leftovers left;
  MutexLock lock(&mutex_);
  return Publish(session.session_, std::move(draft), left);
}

std::vector<TensorState> TensorStore::List(const SessionUse& session) {
  std::vector<TensorState> states;
  {
    MutexLock lock(&mutex_);
    const int64_t now_ns = clock_.NowNs();
    for (const auto& [handle, entry] : session.session_->tensors) {
      if (!entry.HasExpired(now_ns)) states.push_back(StateOf(entry));
    }
  }
  std::sort(states.begin(), states.end(), [](const TensorState& a, const TensorState& b) {
    const int by_name = a.tensor->name.compare(b.tensor->name);
    return by_name != 0 ? by_name < 0 : a.tensor->number < b.tensor->number;
  });
  return states;
}

absl::Status TensorStore::Delete(const SessionUse& session, const TensorName& name) {
  Leftovers left;
  MutexLock lock(&mutex_);
  const TensorEntry* const entry = FindEntry(*session.session_, name, left);
  if (entry == nullptr) return NoSuchTensor();
  Erase(*session.session_, RandomId(entry->tensor->handle), left);
  return absl::OkStatus();
}

absl::StatusOr<TensorState> TensorStore::KeepAlive(const SessionUse& session,
                                                   const TensorName& name,
                                                   std::optional<int64_t> lease_ns,
                                                   std::optional<bool> pinned) {
  Keeping keep;
  keep.lease_ns = lease_ns.value_or(0);
  RETURN_IF_ERROR(CheckKeeping(keep));
  const bool is_to_be_pinned = pinned.value_or(false);
  TensorState state;
  for (int i = 0; i < kTriesToPin; ++i) {
    TensorState to_pin;
    if (is_to_be_pinned) {
      ASSIGN_OR_RETURN(to_pin, Describe(session, name));
      to_pin.pinned = true;
      RETURN_IF_ERROR(KeepOnHost(to_pin));
    }
    Leftovers left;
    MutexLock lock(&mutex_);
    TensorEntry* const entry = FindEntry(*session.session_, name, left);
    if (entry == nullptr) return NoSuchTensor();
    // Another tensor may have got the name meanwhile.
    if (is_to_be_pinned && entry->tensor != to_pin.tensor) continue;
    if (lease_ns) entry->lease_ns = LeaseOf(keep);
    if (pinned) entry->pinned = *pinned;
    entry->used_ns = clock_.NowNs();
    // An entry in use is checked when its use ends.
    const bool is_due_later = entry->pinned || entry->users > 0;
    LookAt(is_due_later ? kNever : After(entry->used_ns, entry->lease_ns), *session.session_,
           *entry);
    state = StateOf(*entry);
    break;
  }
  if (state.tensor == nullptr) {
    return absl::AbortedError(
        Concat("tensor: got a name that went to another tensor ", kTriesToPin,
               " times while it was copied to the host, want a name that stays: try again"));
  }
  const absl::Status kept = KeepOnHost(state);
  if (is_to_be_pinned) RETURN_IF_ERROR(kept);  // A product may have written it since.
  return state;
}

bool TensorStore::is_closed() const {
  MutexLock lock(&mutex_);
  return is_closed_;
}

int64_t TensorStore::FreeBytes(const SessionUse& session) const {
  const Account& account = *session.session_->account;
  return std::min(account.free() + forms_->BytesOf(account), account.limit());
}

KeptForms::Use TensorStore::TakeForm(const TensorUse& use, const FormKey& key) {
  {
    MutexLock lock(&mutex_);
    if (max_new_bytes_ < std::numeric_limits<int64_t>::max()) return {};  // Memory is short now.
  }
  return forms_->Take(use->bytes, *use.session_->account, key);
}

TensorStore::Load TensorStore::load() const {
  MutexLock lock(&mutex_);
  Load load = counts_;
  load.max_sessions = options_.max_sessions;
  load.max_bytes = options_.max_bytes;
  load.bytes = used_bytes();
  load.sessions = static_cast<int64_t>(sessions_.size());
  for (const auto& [key, session] : sessions_) {
    load.tensors += static_cast<int64_t>(session->tensors.size());
    load.uploads += static_cast<int64_t>(session->uploads.size());
    if (!session->owner.rule.empty()) {
      load.bytes_of_rules[session->owner.rule] += session->account->used();
    }
  }
  load.owners = LargestOwners();
  return load;
}

TensorStore::SessionUse::SessionUse(SessionUse&& other) noexcept { *this = std::move(other); }

TensorStore::SessionUse& TensorStore::SessionUse::operator=(SessionUse&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(session_, other.session_);
  std::swap(stream_, other.stream_);
  return *this;
}

TensorStore::SessionUse::~SessionUse() {
  if (store_ != nullptr) store_->End(*session_, stream_);
}

void TensorStore::End(Session& session, int64_t stream) {
  MutexLock lock(&mutex_);
  EndUse(session, clock_.NowNs());
  if (stream != 0) session.streams.erase(stream);
}

TensorStore::SessionUse TensorStore::UseLocked(const std::shared_ptr<Session>& session) {
  ++session->users;
  LimitShareOfDevices(*session);
  return SessionUse(this, session);
}

std::shared_ptr<Session> TensorStore::FindSession(const std::optional<Sha256Digest>& key,
                                                  Leftovers& left) {
  const int64_t now_ns = clock_.NowNs();
  ExpireDue(now_ns, kLooksOfCall, left);
  const auto found = key ? sessions_.find(*key) : sessions_.end();
  if (found == sessions_.end()) return nullptr;
  std::shared_ptr<Session> session = found->second;
  // If many entries are due, this one may not have been checked yet.
  const bool is_over = IsIdle(*session, now_ns) && ExpireSession(*session, now_ns, left);
  return is_over ? nullptr : session;
}

void TensorStore::Forget(Session& session) {
  LookAt(kNever, session);
  if (session.owner.has_one_session) keys_of_owners_.erase(session.peer);
  sessions_.erase(KeyOf(session.token));
}

// The single session of an owner, unless it has ended.
std::shared_ptr<Session> TensorStore::FindSessionOf(std::string_view owner, Leftovers& left) {
  const auto found = keys_of_owners_.find(owner);
  return found == keys_of_owners_.end() ? nullptr : FindSession(Sha256Digest(found->second), left);
}

// One account for all sessions of an owner with several. It lives as long as they and their
// tensors, so a new limit applies once the last of them is gone.
std::shared_ptr<Account> TensorStore::AccountOf(std::string_view name, const SessionOwner& owner) {
  if (owner.max_bytes == kNoLimit && owner.max_device_bytes == kNoLimit) return account_;
  std::erase_if(accounts_of_owners_, [](const auto& named) { return named.second.expired(); });
  std::weak_ptr<Account>& kept = accounts_of_owners_[std::string(name)];
  std::shared_ptr<Account> account = kept.lock();
  if (account == nullptr) {
    account = std::make_shared<Account>("the caller", "tensor_bytes of --rules", owner.max_bytes,
                                        account_);
    if (owner.max_device_bytes != kNoLimit) {
      account->SetOnDevices(
          std::make_shared<Account>("the caller", "device_tensor_bytes of --rules",
                                    owner.max_device_bytes, nullptr, Account::Memory::kDevices));
    }
    kept = account;
  }
  return account;
}

// Host memory that the rules do not limit for such an owner has the limit of anybody's session.
void TensorStore::SetLimits(Account& account, const SessionOwner& owner) const {
  const bool is_ruled = owner.max_bytes < kNoLimit;
  account.SetLimit(is_ruled ? owner.max_bytes : options_.max_session_bytes,
                   is_ruled ? "tensor_bytes of --rules" : "--tensor-bytes of a session");
  account.on_devices()->SetLimit(owner.max_device_bytes, "device_tensor_bytes of --rules");
}

void TensorStore::LimitShareOfDevices(Session& session) {
  if (session.owner.max_device_bytes < kNoLimit || options_.session_device_share >= 1) return;
  int64_t bytes = 0;
  for (const auto& [name, device] : devices_) {
    if (device.copies != nullptr) bytes = After(bytes, device.copies->capacity_bytes());
  }
  const double share = options_.session_device_share * static_cast<double>(bytes);
  session.account->on_devices()->SetLimit(static_cast<int64_t>(share),
                                          "--tensor-bytes of a session");
}

std::shared_ptr<Account> TensorStore::AccountOfSession(std::string_view peer,
                                                       const SessionOwner& owner) {
  const bool is_single = owner.has_one_session;
  const char* const name = is_single ? "the caller" : "the session";
  const auto make = [name](std::shared_ptr<Account> within, Account::Memory memory) {
    return std::make_shared<Account>(name, "", 0, std::move(within), memory);
  };
  auto account =
      std::make_shared<Account>(name, "--tensor-bytes of a session", options_.max_session_bytes,
                                owner.is_known && !is_single ? AccountOf(peer, owner) : account_);
  if (is_single || (owner.max_device_bytes == kNoLimit && options_.session_device_share < 1)) {
    account->SetOnDevices(make(nullptr, Account::Memory::kDevices));
  }
  account->SetAddresses(make(addresses_, Account::Memory::kHostAddresses));
  if (is_single) SetLimits(*account, owner);
  return account;
}

absl::Status TensorStore::CheckPlaces(std::string_view peer) const {
  const auto count = static_cast<int64_t>(sessions_.size());
  const int64_t free = options_.max_sessions - count;
  if (free <= 0) {
    return absl::ResourceExhaustedError(
        Concat("session: got ", count, " sessions, want fewer to open one more (--max-sessions)"));
  }
  if (count < kShare * free) return absl::OkStatus();
  const int64_t now_ns = clock_.NowNs();
  int64_t own = 0;
  int64_t left_behind = 0;
  for (const auto& [key, other] : sessions_) {
    if (other->peer != peer) continue;
    ++own;
    if (IsIdle(*other, now_ns)) ++left_behind;
  }
  if (own < kShare * free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      Concat("session: got ", own, " sessions of the caller's host or user, ", left_behind,
             " of them left with pinned tensors, want fewer: the last ", free,
             " places are kept for others (--max-sessions, gemmctl drop-session)"));
}

absl::StatusOr<TensorStore::SessionUse> TensorStore::OpenSession(std::string_view token,
                                                                 std::string_view peer,
                                                                 const SessionOwner& owner,
                                                                 std::function<void()> on_drop) {
  ASSIGN_OR_RETURN(const RandomId made, RandomId::Make());
  const std::optional<Sha256Digest> key = KeyOf(token);
  const Sha256Digest new_key = KeyOf(made);
  Leftovers left;
  MutexLock lock(&mutex_);
  if (is_closed_) return absl::UnavailableError("the server is draining");
  std::shared_ptr<Session> session;
  if (!token.empty()) {
    session = FindSession(key, left);
    if (session == nullptr || (owner.is_known && session->peer != peer)) return NoSuchSession();
  } else if (owner.has_one_session) {
    session = FindSessionOf(peer, left);
  }
  if (session == nullptr) {
    RETURN_IF_ERROR(CheckPlaces(peer));
    session = std::make_shared<Session>(made, new_key, std::string(peer), owner,
                                        AccountOfSession(peer, owner), clock_.NowNs());
    session->number = ++last_number_;
    sessions_.emplace(new_key, session);
    if (owner.has_one_session) keys_of_owners_.emplace(session->peer, new_key);
  } else if (session->owner.has_one_session) {
    session->owner.rule = owner.rule;
    session->owner.max_device_bytes = owner.max_device_bytes;
    SetLimits(*session->account, owner);
  }
  SessionUse use = UseLocked(session);
  use.stream_ = ++last_number_;
  session->streams.emplace(use.stream_, std::move(on_drop));
  return use;
}

absl::StatusOr<TensorStore::SessionUse> TensorStore::Use(std::string_view token,
                                                         std::string_view owner) {
  const std::optional<Sha256Digest> key =
      KeyOf(token);  // Hashed outside the lock, so that calls do not wait for each other.
  Leftovers left;
  MutexLock lock(&mutex_);
  const std::shared_ptr<Session> session =
      token.empty() ? FindSessionOf(owner, left) : FindSession(key, left);
  if (session == nullptr || (!owner.empty() && session->peer != owner)) return NoSuchSession();
  return UseLocked(session);
}

bool TensorStore::IsIdle(const Session& session, int64_t now_ns) const {
  return session.users == 0 &&
         now_ns - session.used_ns >= absl::ToInt64Nanoseconds(options_.linger);
}

// Deletes the expired contents of a session that was unused for its linger time. Pinned tensors
// stay longer, and tensors of a known owner stay for their leases. Returns true if the session
// itself has ended.
bool TensorStore::ExpireSession(Session& session, int64_t now_ns, Leftovers& left) {
  const int64_t ends_pinned_ns =
      After(session.used_ns, absl::ToInt64Nanoseconds(options_.pinned_linger));
  if (!session.owner.has_one_session) {
    const auto stays = [&](bool is_pinned) { return is_pinned && now_ns < ends_pinned_ns; };
    std::vector<RandomId> expired;
    for (const auto& [handle, entry] : session.tensors) {
      if (!stays(entry.pinned)) expired.push_back(handle);
    }
    for (const RandomId& handle : expired) Erase(session, handle, left);
    counts_.tensors_expired += static_cast<int64_t>(expired.size());
    for (auto next = session.uploads.begin(); next != session.uploads.end();) {
      const auto upload = next++;
      if (!stays(upload->second.upload->pinned())) EraseUpload(session, upload, left);
    }
  }
  session.is_over = IsEmpty(session);
  if (session.is_over) {
    left.sessions.push_back(sessions_.at(KeyOf(session.token)));
    Forget(session);
  } else if (!session.owner.has_one_session) {
    LookAt(ends_pinned_ns, session);
  }
  return session.is_over;
}

void TensorStore::EraseUpload(Session& session, Uploads::iterator upload, Leftovers& left) {
  LookAt(kNever, session, upload->second);
  left.uploads.push_back(std::move(upload->second.upload));
  session.uploads.erase(upload);
}

void TensorStore::ExpireTensor(Session& session, const RandomId& handle, int64_t now_ns,
                               Leftovers& left) {
  TensorEntry& entry = session.tensors.at(handle);
  entry.look_ns = kNever;
  if (entry.users > 0) return;  // It is checked at the end of its use.
  if (!entry.HasExpired(now_ns))
    return LookAt(After(entry.used_ns, entry.lease_ns), session, entry);
  ++counts_.tensors_expired;
  Erase(session, handle, left);
}

void TensorStore::ExpireUpload(Session& session, const RandomId& id, int64_t now_ns,
                               Leftovers& left) {
  const auto upload = session.uploads.find(id);
  upload->second.look_ns = kNever;
  if (upload->second.upload->HasExpired(now_ns)) return EraseUpload(session, upload, left);
  LookAt(upload->second.upload->expires_ns(), session, upload->second);
}

bool TensorStore::ExpireDue(int64_t now_ns, int max_expired, Leftovers& left) {
  for (; !due_.empty() && due_.begin()->first.first <= now_ns; --max_expired) {
    if (max_expired == 0) return true;
    const Due due = due_.extract(due_.begin()).mapped();
    Session& session = *due.session;
    ++looks_;
    switch (due.kind) {
      case Due::Kind::kSession: session.look_ns = kNever; break;
      case Due::Kind::kTensor: ExpireTensor(session, due.id, now_ns, left); break;
      case Due::Kind::kUpload: ExpireUpload(session, due.id, now_ns, left); break;
    }
    if (session.users > 0) continue;
    // A session ends with its last tensor; sessions without a known owner also end some time after
    // their last use.
    const bool is_due = due.kind == Due::Kind::kSession && session.look_ns == kNever;
    if (!is_due && !IsEmpty(session)) continue;
    if (IsIdle(session, now_ns)) {
      ExpireSession(session, now_ns, left);
    } else {
      LookOnceIdle(session);
    }
  }
  return false;
}

void TensorStore::Expire() {
  const int64_t now_ns = clock_.NowNs();
  for (bool is_more = true; is_more;) {
    // Releases the lock in between, so that other calls do not wait for all due entries.
    Leftovers left;
    MutexLock lock(&mutex_);
    is_more = ExpireDue(now_ns, kLooksAtOnce, left);
  }
  CountLost();
  LeaveHost();
}

int64_t TensorStore::looks() const {
  MutexLock lock(&mutex_);
  return looks_;
}

void TensorStore::Close() {
  MutexLock lock(&mutex_);
  is_closed_ = true;
}

void TensorStore::SetMaxNewBytes(int64_t bytes) {
  {
    MutexLock lock(&mutex_);
    max_new_bytes_ = bytes;
  }
  if (bytes < std::numeric_limits<int64_t>::max()) forms_->DropAll();
}

std::vector<TensorStore::OwnerLoad> TensorStore::LargestOwners() const {
  std::vector<std::pair<int64_t, const Session*>> owners;
  for (const auto& [key, session] : sessions_) {
    if (const int64_t bytes = session->account->used(); bytes > 0) {
      owners.emplace_back(bytes, session.get());
    }
  }
  const auto is_larger = [](const auto& x, const auto& y) { return x.first > y.first; };
  const auto end = owners.begin() + static_cast<int64_t>(std::min(owners.size(), kMaxOwners));
  std::partial_sort(owners.begin(), end, owners.end(), is_larger);
  owners.erase(end, owners.end());
  std::vector<OwnerLoad> loads;
  for (const auto& [bytes, session] : owners) {
    loads.push_back({.name = session->id,
                     .tensors = static_cast<int64_t>(session->tensors.size()),
                     .bytes = bytes,
                     .caller = session->owner.is_known ? session->owner.rule : session->peer});
  }
  return loads;
}

TensorStore::SessionState TensorStore::StateOf(const Session& session) const {
  const int64_t now_ns = clock_.NowNs();
  SessionState state;
  state.id = session.id;
  state.caller = session.peer;
  state.age_ns = now_ns - session.opened_ns;
  state.streams = static_cast<int64_t>(session.streams.size());
  state.is_in_use = session.users > 0;
  if (!state.is_in_use) {
    const int64_t unused_ns = now_ns - session.used_ns;
    state.lingers_ns = std::max<int64_t>(0, absl::ToInt64Nanoseconds(options_.linger) - unused_ns);
  }
  state.uploads = static_cast<int64_t>(session.uploads.size());
  state.bytes = session.account->used();
  const auto is_larger = [](const TensorEntry* x, const TensorEntry* y) {
    const int64_t difference = x->tensor->spec.bytes - y->tensor->spec.bytes;
    return difference != 0 ? difference > 0 : x->tensor->number < y->tensor->number;
  };
  std::vector<const TensorEntry*> largest;
  for (const auto& [handle, entry] : session.tensors) {
    if (entry.HasExpired(now_ns)) continue;
    ++state.tensors;
    if (entry.pinned) ++state.pinned;
    largest.insert(std::upper_bound(largest.begin(), largest.end(), &entry, is_larger), &entry);
    if (largest.size() > SessionState::kMaxLargest) largest.pop_back();
  }
  for (const TensorEntry* const entry : largest) {
    state.largest.push_back({entry->tensor->name, entry->tensor->spec.bytes, entry->pinned});
  }
  return state;
}

TensorStore::SessionList TensorStore::ListSessions(size_t limit) const {
  std::vector<std::pair<int64_t, std::shared_ptr<Session>>> found;
  {
    MutexLock lock(&mutex_);
    found.reserve(sessions_.size());
    for (const auto& [key, session] : sessions_) found.emplace_back(0, session);
  }
  for (auto& [bytes, session] : found) bytes = session->account->used();
  const auto is_larger = [](const auto& x, const auto& y) {
    return x.first != y.first ? x.first > y.first : x.second->id < y.second->id;
  };
  const auto end = found.begin() + static_cast<int64_t>(std::min(found.size(), limit));
  std::partial_sort(found.begin(), end, found.end(), is_larger);
  SessionList list;
  list.left_out = found.end() - end;
  for (auto each = found.begin(); each != end; ++each) {
    MutexLock lock(&mutex_);
    if (!each->second->is_over) list.sessions.push_back(StateOf(*each->second));
  }
  return list;
}

absl::Status TensorStore::SessionDropped() {
  return absl::NotFoundError("session: an operator has dropped it, with all its tensors");
}

absl::StatusOr<TensorStore::Dropped> TensorStore::DropSession(std::string_view id) {
  Dropped dropped;
  int64_t bytes = 0;
  std::shared_ptr<Session> session;
  std::vector<std::function<void()>> streams;
  {
    Leftovers left;
    MutexLock lock(&mutex_);
    const auto found = std::find_if(sessions_.begin(), sessions_.end(),
                                    [&](const auto& other) { return other.second->id == id; });
    if (found == sessions_.end()) {
      return absl::NotFoundError(GotWant("id", Shown(id), "an id from ListSessions"));
    }
    session = found->second;
    bytes = session->account->used();
    dropped.caller = session->peer;
    dropped.tensors = static_cast<int64_t>(session->tensors.size());
    session->is_over = true;
    ++counts_.sessions_dropped;
    Forget(*session);
    for (auto& [handle, entry] : session->tensors) {
      LookAt(kNever, *session, entry);
      left.tensors.push_back(std::move(entry.tensor));
    }
    for (auto& [upload_id, pending] : session->uploads) {
      LookAt(kNever, *session, pending);
      left.uploads.push_back(std::move(pending.upload));
    }
    for (auto& [number, on_drop] : session->streams) streams.push_back(std::move(on_drop));
    session->tensors.clear();
    session->names.clear();
    session->uploads.clear();
    session->contents.clear();
  }
  for (const auto& on_drop : streams) on_drop();
  dropped.held_bytes = session->account->used();
  dropped.freed_bytes = std::max<int64_t>(0, bytes - dropped.held_bytes);
  return dropped;
}

std::shared_ptr<TensorBytes> TensorStore::FindContent(Session& session, const TensorSpec& spec,
                                                      const Sha256Digest& digest) {
  const auto found = session.contents.find(Session::ContentOf(spec, digest));
  if (found == session.contents.end()) return nullptr;
  std::shared_ptr<TensorBytes> bytes = found->second.lock();
  const bool is_same = bytes != nullptr && bytes->bytes() == spec.bytes &&
                       bytes->digest == digest && !bytes->is_lost();
  return is_same ? bytes : nullptr;
}

absl::StatusOr<TensorStore::Beginning> TensorStore::Begin(const SessionUse& session,
                                                          TensorSpec spec, Keeping keep,
                                                          const std::optional<Sha256Digest>& digest,
                                                          std::string_view device) {
  RETURN_IF_ERROR(CheckKeeping(keep));
  RETURN_IF_ERROR(CheckDevice(device));
  ASSIGN_OR_RETURN(const RandomId id, RandomId::Make());
  Session& owner = *session.session_;
  std::shared_ptr<TensorBytes> known;
  if (digest) {
    ASSIGN_OR_RETURN(known, FindKnown(owner, spec, *digest, keep.pinned));
  }
  // Products rely on checked indices, which are read in host memory.
  const bool is_passed = known == nullptr && !spec.layout.is_sparse() &&
                         spec.bytes > Upload::kWindowBytes &&
                         LacksRoom(session, spec, keep, Upload::kOverheadBytes);
  std::shared_ptr<DeviceCopies> passed_to = is_passed ? CopiesOn(std::string(device)) : nullptr;
  Beginning beginning;
  {
    Leftovers left;
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(CheckRoom(owner, passed_to != nullptr ? Upload::kWindowBytes : spec.bytes));
    // Unless it was written meanwhile.
    if (known != nullptr && FindContent(owner, spec, *digest) == known) {
      known->are_shared = true;
      ASSIGN_OR_RETURN(TensorDraft draft,
                       MakeDraft(owner, std::move(spec), std::move(keep), std::move(known)));
      ASSIGN_OR_RETURN(beginning.tensor, Publish(session.session_, std::move(draft), left));
      ++counts_.uploads_known;
    }
  }
  if (beginning.tensor) {
    BringTo(std::string(device), beginning.tensor->tensor->bytes);
    return beginning;
  }
  const int64_t lease_ns = std::min(LeaseOf(keep), absl::ToInt64Nanoseconds(options_.lease));
  int64_t overhead_bytes = Upload::kOverheadBytes;
  std::shared_ptr<TensorBytes> bytes;
  if (passed_to != nullptr) {
    overhead_bytes += Upload::kWindowBytes;
    ASSIGN_OR_RETURN(bytes, AllocateUncharged(spec.bytes, *owner.account, passed_to.get()));
  }
  ASSIGN_OR_RETURN(TensorDraft draft,
                   MakeDraft(owner, std::move(spec), std::move(keep), std::move(bytes)));
  owner.account->MakeRoom(overhead_bytes);
  ASSIGN_OR_RETURN(Account::Charge overhead, owner.account->Take(overhead_bytes));
  beginning.upload = std::make_shared<Upload>(id, lease_ns, std::move(draft), std::move(overhead),
                                              digest, clock_.NowNs(), device);
  {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(CheckRoom(owner, 0));  // Others may have begun meanwhile.
    Session::PendingUpload& pending = owner.uploads[id];
    pending = {.upload = beginning.upload, .number = ++last_number_};
    LookAt(beginning.upload->expires_ns(), owner, pending);
  }
  // Afterwards: a failure, at once or later, erases the pending upload.
  if (passed_to != nullptr) {
    try {
      PassTo(std::move(passed_to), session.session_, *beginning.upload);
    } catch (const std::bad_alloc&) {
      const absl::Status status =
          absl::ResourceExhaustedError("upload: no memory for its window, try again later");
      Complete(session.session_, beginning.upload, status);
      return status;
    }
  }
  Advance(session.session_, beginning.upload, 0);  // An empty tensor is complete.
  RETURN_IF_ERROR(beginning.upload->failure());    // The device is too small.
  return beginning;
}

absl::StatusOr<std::shared_ptr<TensorBytes>> TensorStore::FindKnown(Session& session,
                                                                    const TensorSpec& spec,
                                                                    const Sha256Digest& digest,
                                                                    bool pinned) {
  std::shared_ptr<TensorBytes> known;
  {
    MutexLock lock(&mutex_);
    known = FindContent(session, spec, digest);
  }
  if (known == nullptr) return known;
  const absl::Status kept = KeepOnHost(*known, pinned);
  if (absl::IsFailedPrecondition(kept)) return nullptr;  // They are lost since.
  RETURN_IF_ERROR(kept);
  return known;
}

absl::StatusOr<std::shared_ptr<Upload>> TensorStore::Join(const SessionUse& session,
                                                          std::string_view id) {
  const std::optional<RandomId> wanted = RandomId::FromBytes(id);
  MutexLock lock(&mutex_);
  if (is_closed_) return absl::UnavailableError("the server is draining");
  RETURN_IF_ERROR(CheckMemory(0));
  const auto& uploads = session.session_->uploads;
  const auto found = wanted ? uploads.find(*wanted) : uploads.end();
  if (found == uploads.end()) return Leftovers::NoSuchUpload();
  const std::shared_ptr<Upload>& upload = found->second.upload;
  if (!upload->has_streams()) ++counts_.uploads_resumed;
  return upload;
}

absl::StatusOr<Upload::StreamId> TensorStore::Attach(const std::shared_ptr<Upload>& upload) {
  return upload->Attach(clock_.NowNs());
}

void TensorStore::Leave(const std::shared_ptr<Upload>& upload, Upload::StreamId stream) {
  upload->Detach(stream, clock_.NowNs());
}

absl::StatusOr<bool> TensorStore::Write(const SessionUse& session,
                                        const std::shared_ptr<Upload>& upload, int64_t offset,
                                        absl::Span<const absl::Span<const std::byte>> pieces,
                                        Upload::Waiter later, Upload::StreamId stream) {
  {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(CheckMemory(0));  // Its memory was charged before, but is used only now.
  }
  ASSIGN_OR_RETURN(const bool is_taken,
                   upload->Write(offset, pieces, clock_.NowNs(), std::move(later), stream));
  if (is_taken) Advance(session.session_, upload, kHashedByCaller);
  return is_taken;
}

bool TensorStore::LacksRoom(const SessionUse& session, const TensorSpec& spec, const Keeping& keep,
                            int64_t more_bytes) {
  const bool may_be_lost = options_.host_copies == HostCopies::kNone ||
                           (options_.host_copies == HostCopies::kPinned && !keep.pinned);
  if (!may_be_lost) return false;
  const int64_t bytes = After(spec.bytes, more_bytes + OverheadOf(spec));
  session.account().MakeRoom(bytes);
  return bytes > session.account().free();
}

absl::StatusOr<std::shared_ptr<TensorBytes>> TensorStore::AllocateUncharged(
    int64_t bytes, Account& account, const DeviceCopies* device) {
  int64_t largest = 0;
  int64_t all = 0;
  {
    MutexLock lock(&mutex_);
    for (const auto& [name, one] : devices_) {
      const int64_t capacity = one.copies == nullptr ? 0 : one.copies->capacity_bytes();
      if (device == nullptr || one.copies.get() == device) largest = std::max(largest, capacity);
      all = After(all, capacity);
    }
  }
  const Account* const quota = account.on_devices();
  const int64_t max = quota == nullptr ? largest : std::min(largest, quota->limit());
  // Before any mapping. The first comparison keeps the rounded size below 2^63.
  if (bytes > max || BlockBytes(bytes) > max) {
    return absl::ResourceExhaustedError(Concat(
        "quota: got a tensor of ", bytes, " bytes, for which the host has no room, want at ",
        "most the ", max, " of device memory that one tensor of ", account.name(), " may take"));
  }
  const bool is_limited = all <= kNoLimit / kAddressesPerDeviceByte;
  const int64_t limit = is_limited ? kAddressesPerDeviceByte * all : kNoLimit;
  addresses_->SetLimit(limit, "four times the memory of all devices");
  account.addresses()->SetLimit(limit / 2, "twice the memory of all devices");
  ASSIGN_OR_RETURN(Account::Charge addresses, account.addresses()->Take(bytes));
  return TensorBytes::AllocateUncharged(bytes, account, std::move(addresses), background_);
}

void TensorStore::PassTo(std::shared_ptr<DeviceCopies> device,
                         const std::shared_ptr<Session>& session, Upload& upload) {
  upload.PassTo(std::move(device), clock_,
                [this, owner = std::weak_ptr<Session>(session)](std::shared_ptr<Upload> passing) {
                  background_->Run([this, owner, passing = std::move(passing)] {
                    const std::shared_ptr<Session> here = owner.lock();
                    if (here == nullptr) return;
                    passing->Resume();
                    Advance(here, passing, kHashedByBackground);
                  });
                });
}

void TensorStore::Advance(const std::shared_ptr<Session>& session,
                          const std::shared_ptr<Upload>& upload, int64_t max_bytes) {
  switch (upload->Advance(max_bytes)) {
    case Upload::Progress::kWaiting: return;
    case Upload::Progress::kBehind:
      if (upload->ClaimCatchingUp()) CatchUp(session, upload);
      return;
    case Upload::Progress::kComplete:
      if (!upload->spec().layout.is_sparse()) return Complete(session, upload, absl::OkStatus());
      return CheckIndices(session, upload,
                          std::make_shared<SparseCheck>(upload->spec(), upload->bytes()));
    case Upload::Progress::kMismatch:
      return Complete(session, upload,
                      absl::DataLossError("sha256: got bytes with another hash, want those of the "
                                          "hash that was given: nothing is kept"));
    case Upload::Progress::kFailed: return Complete(session, upload, upload->failure());
  }
}

void TensorStore::CatchUp(const std::shared_ptr<Session>& session,
                          const std::shared_ptr<Upload>& upload) {
  try {
    background_->Run([this, session, upload] {
      upload->EndCatchingUp();
      Advance(session, upload, kHashedByBackground);
    });
  } catch (const std::bad_alloc&) {
    upload->EndCatchingUp();
    throw;
  }
}

void TensorStore::CheckIndices(const std::shared_ptr<Session>& session,
                               const std::shared_ptr<Upload>& upload,
                               const std::shared_ptr<SparseCheck>& check) {
  background_->Run([this, session, upload, check] {
    const absl::StatusOr<bool> is_over = check->Advance(kCheckedByBackground);
    if (is_over.ok() && !*is_over) return CheckIndices(session, upload, check);
    Complete(session, upload, is_over.status());
  });
}

void TensorStore::Complete(const std::shared_ptr<Session>& session,
                           const std::shared_ptr<Upload>& upload, const absl::Status& verdict) {
  absl::StatusOr<TensorState> result = verdict.ok() ? Leftovers::NoSuchUpload() : verdict;
  if (verdict.ok()) upload->EndPassing();
  {
    Leftovers left;
    MutexLock lock(&mutex_);
    const auto pending = session->uploads.find(upload->id());
    const bool is_there = pending != session->uploads.end();
    if (is_there) {
      LookAt(kNever, *session, pending->second);
      session->uploads.erase(pending);
    }
    TensorDraft draft = upload->TakeDraft();
    if (!verdict.ok()) {
      if (absl::IsDataLoss(verdict)) ++counts_.uploads_mismatched;
      if (IsEmpty(*session)) LookOnceIdle(*session);
    } else if (is_there) {
      ++counts_.uploads_complete;
      if (upload->digest()) {
        draft.bytes->digest = upload->digest();
        // Removes entries of destroyed bytes before they outnumber the tensors.
        if (session->contents.size() > 2 * session->tensors.size() + 16) {
          absl::erase_if(session->contents, [](const auto& one) { return one.second.expired(); });
        }
        session->contents[Session::ContentOf(draft.spec, *upload->digest())] = draft.bytes;
      }
      draft.bytes->shall_leave_host = options_.host_copies == HostCopies::kNone;
      result = Publish(session, std::move(draft), left);
    }
  }
  if (result.ok()) BringTo(upload->device(), result->tensor->bytes);
  upload->End(result);
}

void TensorStore::AddDevice(std::string name, std::shared_ptr<DeviceCopies> copies) {
  MutexLock lock(&mutex_);
  const uint64_t generation = copies == nullptr ? 0 : copies->generation();
  devices_[std::move(name)] = {.copies = std::move(copies), .generation = generation};
}

absl::Status TensorStore::CheckDevice(std::string_view device) {
  if (device.empty()) return absl::OkStatus();
  MutexLock lock(&mutex_);
  if (devices_.contains(std::string(device))) return absl::OkStatus();
  return absl::NotFoundError(GotWant("device", Shown(device), "one of ListDevices, or none"));
}

std::shared_ptr<DeviceCopies> TensorStore::CopiesOn(const std::string& device) {
  MutexLock lock(&mutex_);
  const auto found = devices_.find(device);
  return found == devices_.end() ? nullptr : found->second.copies;
}

// Only if there is space; otherwise the first user brings it.
void TensorStore::BringTo(const std::string& device, const std::shared_ptr<TensorBytes>& bytes) {
  const std::shared_ptr<DeviceCopies> copies = CopiesOn(device);
  if (copies != nullptr) copies->Bring(bytes, [](const absl::StatusOr<DeviceCopies::Use>&) {});
}

absl::Status TensorStore::KeepOnHost(TensorBytes& bytes, bool pinned) const {
  const bool is_kept = options_.host_copies == HostCopies::kAll ||
                       (options_.host_copies == HostCopies::kPinned && pinned);
  if (!is_kept) return absl::OkStatus();
  struct Result {
    Mutex mutex;
    absl::Status status ABSL_GUARDED_BY(mutex);
  };
  const auto result = std::make_shared<Result>();
  bytes.BringToHost([result](const absl::Status& status) {
    MutexLock lock(&result->mutex);
    result->status = status;
  });
  MutexLock lock(&result->mutex);
  return result->status;
}

absl::StatusOr<std::shared_ptr<TensorBytes>> TensorStore::Lend(const TensorUse& use,
                                                               int64_t bytes) const {
  use.session_->account->MakeRoom(bytes);
  return TensorBytes::Allocate(bytes, *use.session_->account, background_);
}

void TensorStore::NoteMayLeave(const std::shared_ptr<Session>& session, TensorEntry& entry) {
  if (entry.may_leave || !entry.tensor->bytes->shall_leave_host) return;
  entry.may_leave = true;
  may_leave_.push_back({session, entry.tensor->handle});
}

void TensorStore::LeaveHost() {
  std::vector<TensorOfSession> candidates;
  {
    MutexLock lock(&mutex_);
    candidates.swap(may_leave_);
  }
  for (TensorOfSession& candidate : candidates) {
    const std::shared_ptr<Session> session = candidate.session.lock();
    if (session == nullptr) continue;
    MutexLock lock(&mutex_);
    const auto found = session->tensors.find(candidate.handle);
    if (found == session->tensors.end()) continue;
    TensorEntry& entry = found->second;
    const std::shared_ptr<TensorBytes>& bytes = entry.tensor->bytes;
    // Anybody who accesses host memory holds the tensor or its bytes, which are handed out under
    // the lock.
    if (bytes->shall_leave_host && (entry.tensor.use_count() > 1 || bytes.use_count() > 1)) {
      may_leave_.push_back(std::move(candidate));
      continue;
    }
    // A tensor that is on no device is checked again after its next use.
    entry.may_leave = false;
    if (!bytes->shall_leave_host || !bytes->BeginLeavingHost()) continue;
    bytes->shall_leave_host = false;
    background_->Run([bytes] { bytes->EndLeavingHost(); });
  }
}

bool TensorStore::HasLostMemory() {
  bool has_lost = false;
  for (auto& [name, device] : devices_) {
    if (device.copies == nullptr) continue;
    const uint64_t generation = device.copies->generation();
    has_lost |= std::exchange(device.generation, generation) != generation;
  }
  return has_lost;
}

bool TensorStore::CountIfLost(TensorEntry& entry) {
  const PlacedBytes::Edition edition = entry.tensor->bytes->edition();
  if (!edition.is_settled) return false;
  if (entry.lost_edition == edition.number || !entry.tensor->bytes->is_lost()) return true;
  entry.lost_edition = edition.number;
  ++counts_.tensors_lost;
  return true;
}

void TensorStore::CountLost() {
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<TensorOfSession> unsettled;
  {
    MutexLock lock(&mutex_);
    if (HasLostMemory()) {
      for (const auto& [key, session] : sessions_) sessions.push_back(session);
      unsettled_.clear();
    }
    unsettled.swap(unsettled_);
  }
  for (const TensorOfSession& one : unsettled) {
    const std::shared_ptr<Session> session = one.session.lock();
    if (session == nullptr) continue;
    MutexLock lock(&mutex_);
    const auto found = session->tensors.find(one.handle);
    if (found != session->tensors.end() && !CountIfLost(found->second)) unsettled_.push_back(one);
  }
  for (const std::shared_ptr<Session>& session : sessions) {
    MutexLock lock(&mutex_);
    for (auto& [handle, entry] : session->tensors) {
      if (!CountIfLost(entry)) unsettled_.push_back({session, handle});
    }
  }
}

}  // namespace gemmd
