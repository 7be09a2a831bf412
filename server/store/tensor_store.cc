// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a session. Sessions are in tensor_store_sessions.cc, uploads in
// tensor_store_uploads.cc.
#include "server/store/tensor_store.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/store/leftovers.h"

namespace gemmd {
namespace {

// How often the store looks for what has expired.
constexpr absl::Duration kPause = absl::Milliseconds(250);

absl::Status NoSuchTensor() {
  return absl::NotFoundError(
      "tensor: got an unknown name or handle, want that of a tensor of this session whose lease "
      "has not ended");
}

}  // namespace

TensorStore::TensorStore(const StoreOptions& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      account_(
          std::make_shared<Account>("all sessions", "--tensor-bytes", options.max_bytes, nullptr)),
      most_new_bytes_(std::numeric_limits<int64_t>::max()),
      background_(std::make_shared<Background>("gemmd-tensors", kPause, [this] { Expire(); })),
      forms_(background_) {}

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
    session.used_ns = now_ns;
    --session.users;
    const auto entry = session.tensors.find((*use)->handle);
    if (entry == session.tensors.end()) continue;  // It was deleted or replaced meanwhile.
    entry->second.used_ns = now_ns;
    --entry->second.users;
  }
}

int64_t TensorStore::LeaseOf(const Keeping& keep) const {
  return keep.lease_ns > 0 ? keep.lease_ns : absl::ToInt64Nanoseconds(options_.lease);
}

absl::Status TensorStore::CheckKeeping(const Keeping& keep) const {
  RETURN_IF_ERROR(CheckNameLength("name", keep.name));
  if (keep.lease_ns < 0) {
    return absl::InvalidArgumentError(Concat("lease_ns: got ", keep.lease_ns, ", want at least 0"));
  }
  return absl::OkStatus();
}

absl::Status TensorStore::CheckMemory(int64_t bytes) const {
  if (bytes <= most_new_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      Concat("memory: the server has little left, and the tensor needs ", bytes,
             " bytes: try again later"));
}

absl::Status TensorStore::CheckRoom(const Session& session, int64_t bytes) {
  if (is_closed_) return absl::UnavailableError("the server is draining");
  RETURN_IF_ERROR(CheckMemory(bytes));
  const size_t count = session.tensors.size() + session.uploads.size();
  if (count >= kMaxTensors) {
    return absl::ResourceExhaustedError(Concat("quota: got ", count, " tensors and uploads of ",
                                               session.account->name(), ", want fewer than ",
                                               kMaxTensors, " to make another"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorDraft> TensorStore::MakeDraft(const Session& session, TensorSpec spec,
                                                   Keeping keep,
                                                   std::shared_ptr<TensorBytes> bytes) {
  const auto scale_bytes = static_cast<int64_t>(spec.scale.size() * sizeof(float));
  // What an upload takes on its way counts too: it is taken next.
  forms_.MakeRoom(*session.account, kTensorBytes + scale_bytes + Upload::kOverheadBytes +
                                        (bytes == nullptr ? spec.bytes : 0));
  TensorDraft draft;
  ASSIGN_OR_RETURN(draft.charge, session.account->Take(kTensorBytes + scale_bytes));
  if (bytes == nullptr) {
    ASSIGN_OR_RETURN(bytes, TensorBytes::Allocate(spec.bytes, *session.account, background_));
  }
  draft.bytes = std::move(bytes);
  draft.spec = std::move(spec);
  draft.keep = std::move(keep);
  return draft;
}

absl::StatusOr<TensorState> TensorStore::Publish(Session& session, TensorDraft draft,
                                                 Leftovers& left) {
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
  const TensorState state = StateOf(entry);
  session.tensors.emplace(handle, std::move(entry));
  return state;
}

void TensorStore::Erase(Session& session, const RandomId& handle, Leftovers& left) {
  const auto entry = session.tensors.find(handle);
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
  Leftovers left;
  MutexLock lock(&mutex_);
  TensorEntry* const entry = FindEntry(*session.session_, name, left);
  if (entry == nullptr) return NoSuchTensor();
  ++entry->users;
  ++session.session_->users;
  return TensorUse(this, session.session_, entry->tensor);
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
    // Nobody shares the bytes from now on.
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
  MutexLock lock(&mutex_);
  const auto entry = use.session_->tensors.find(use->handle);
  if (entry != use.session_->tensors.end()) return StateOf(entry->second);
  TensorEntry gone;
  gone.tensor = use.tensor();
  return StateOf(gone);
}

absl::StatusOr<TensorDraft> TensorStore::MakeDraft(const SessionUse& session, TensorSpec spec,
                                                   Keeping keep) {
  RETURN_IF_ERROR(CheckKeeping(keep));
  {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(CheckRoom(*session.session_, spec.bytes));
  }
  return MakeDraft(*session.session_, std::move(spec), std::move(keep), nullptr);
}

absl::StatusOr<TensorState> TensorStore::Publish(const SessionUse& session, TensorDraft draft) {
  Leftovers left;
  MutexLock lock(&mutex_);
  return Publish(*session.session_, std::move(draft), left);
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
  TensorState state;
  {
    Leftovers left;
    MutexLock lock(&mutex_);
    TensorEntry* const entry = FindEntry(*session.session_, name, left);
    if (entry == nullptr) return NoSuchTensor();
    if (lease_ns) entry->lease_ns = LeaseOf(keep);
    if (pinned) entry->pinned = *pinned;
    entry->used_ns = clock_.NowNs();
    state = StateOf(*entry);
  }
  KeepOnHost(state);
  return state;
}

bool TensorStore::is_closed() const {
  MutexLock lock(&mutex_);
  return is_closed_;
}

int64_t TensorStore::FreeBytes(const SessionUse& session) const {
  const Account& account = *session.session_->account;
  return std::min(account.free() + forms_.BytesOf(account), account.limit());
}

KeptForms::Use TensorStore::TakeForm(const TensorUse& use, const FormKey& key) {
  {
    MutexLock lock(&mutex_);
    if (most_new_bytes_ < std::numeric_limits<int64_t>::max()) return {};  // Memory is short.
  }
  return forms_.Take(use->bytes, *use.session_->account, key);
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
    if (!session->rule.empty()) load.bytes_of_rules[session->rule] += session->account->used();
  }
  load.owners = LargestOwners();
  return load;
}

}  // namespace gemmd
