// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/store/leftovers.h"
#include "server/store/sha256.h"
#include "server/store/tensor_store.h"

namespace gemmd {
namespace {

// One peer may have so many times as many sessions as places are free, so that others find one.
constexpr int64_t kShare = 7;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

Sha256Digest KeyOf(const RandomId& token) {
  return Sha256::Of({reinterpret_cast<const std::byte*>(token.bytes.data()), token.bytes.size()});
}

absl::Status NoSuchSession() {
  return absl::UnauthenticatedError(
      "gemmd-session: got no token of a session in the metadata, want the one that "
      "Tensors.OpenSession gave");
}

std::string NameOfOwner(const RandomId& token) {
  const Sha256Digest digest = KeyOf(token);
  std::string name;
  for (size_t i = 0; i < 4; ++i) absl::StrAppend(&name, absl::Hex(digest[i], absl::kZeroPad2));
  return name;
}

}  // namespace

TensorStore::SessionUse::SessionUse(SessionUse&& other) noexcept { *this = std::move(other); }

TensorStore::SessionUse& TensorStore::SessionUse::operator=(SessionUse&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(session_, other.session_);
  return *this;
}

TensorStore::SessionUse::~SessionUse() {
  if (store_ != nullptr) store_->End(*session_);
}

void TensorStore::End(Session& session) {
  MutexLock lock(&mutex_);
  session.used_ns = clock_.NowNs();
  --session.users;
}

TensorStore::SessionUse TensorStore::UseLocked(const std::shared_ptr<Session>& session) {
  ++session->users;
  return SessionUse(this, session);
}

std::shared_ptr<Session> TensorStore::FindSession(std::string_view token, Leftovers& left) {
  const std::optional<RandomId> id = RandomId::FromHex(token);
  if (!id) return nullptr;
  const auto found = sessions_.find(KeyOf(*id));
  if (found == sessions_.end()) return nullptr;
  const std::shared_ptr<Session> session = found->second;
  const int64_t now_ns = clock_.NowNs();
  if (!IsIdle(*session, now_ns) && now_ns < session->swept_until_ns) return session;
  if (!ExpireSession(*session, left)) return session;
  left.sessions.push_back(session);
  Forget(*session);
  return nullptr;
}

void TensorStore::Forget(const Session& session) {
  if (session.is_all_of_owner) tokens_of_owners_.erase(session.peer);
  sessions_.erase(KeyOf(session.token));
}

// The one session of an owner who has one.
std::shared_ptr<Session> TensorStore::FindSessionOf(std::string_view owner, Leftovers& left) {
  const auto found = tokens_of_owners_.find(owner);
  return found == tokens_of_owners_.end() ? nullptr : FindSession(found->second.ToHex(), left);
}

// One account for all sessions of an owner who has several. It lives as long as they and their
// tensors, so another limit holds once the last of them has gone.
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

int64_t TensorStore::DeviceBytesOfSession() const {
  const int64_t bytes = options_.max_session_device_bytes;
  return bytes > 0 ? bytes : kNoLimit;
}

// What the rules do not limit for such an owner has the limit of anybody's session.
void TensorStore::SetLimits(Account& account, const SessionOwner& owner) const {
  const bool is_ruled = owner.max_bytes < kNoLimit;
  account.SetLimit(is_ruled ? owner.max_bytes : options_.max_session_bytes,
                   is_ruled ? "tensor_bytes of --rules" : "--session-tensor-bytes");
  const bool is_ruled_on_devices = owner.max_device_bytes < kNoLimit;
  account.on_devices()->SetLimit(
      is_ruled_on_devices ? owner.max_device_bytes : DeviceBytesOfSession(),
      is_ruled_on_devices ? "device_tensor_bytes of --rules" : "--session-gpu-tensor-bytes");
}

std::shared_ptr<Account> TensorStore::AccountOfSession(std::string_view peer,
                                                       const SessionOwner& owner) {
  constexpr auto kDevices = Account::Memory::kDevices;
  if (owner.has_one_session) {
    auto account = std::make_shared<Account>("the caller", "", 0, account_);
    account->SetOnDevices(std::make_shared<Account>("the caller", "", 0, nullptr, kDevices));
    SetLimits(*account, owner);
    return account;
  }
  const std::shared_ptr<Account> within = owner.is_known ? AccountOf(peer, owner) : account_;
  auto account = std::make_shared<Account>("the session", "--session-tensor-bytes",
                                           options_.max_session_bytes, within);
  if (DeviceBytesOfSession() < kNoLimit) {
    Account* const shared = within->on_devices();
    account->SetOnDevices(std::make_shared<Account>(
        "the session", "--session-gpu-tensor-bytes", DeviceBytesOfSession(),
        shared == nullptr ? nullptr : shared->shared_from_this(), kDevices));
  }
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
  const int64_t own = std::count_if(sessions_.begin(), sessions_.end(),
                                    [&](const auto& other) { return other.second->peer == peer; });
  if (own < kShare * free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      Concat("session: got ", own, " sessions of the caller's host, want fewer: the last ", free,
             " places are kept for others (--max-sessions)"));
}

absl::StatusOr<TensorStore::SessionUse> TensorStore::OpenSession(std::string_view token,
                                                                 std::string_view peer,
                                                                 const SessionOwner& owner) {
  ASSIGN_OR_RETURN(const RandomId made, RandomId::Make());
  Leftovers left;
  MutexLock lock(&mutex_);
  if (is_closed_) return absl::UnavailableError("the server is draining");
  std::shared_ptr<Session> session;
  if (!token.empty()) {
    session = FindSession(token, left);
    if (session == nullptr || (owner.is_known && session->peer != peer)) return NoSuchSession();
  } else if (owner.has_one_session) {
    session = FindSessionOf(peer, left);
  }
  if (session != nullptr) {
    if (session->is_all_of_owner) {
      session->rule = owner.rule;
      SetLimits(*session->account, owner);
    }
    return UseLocked(session);
  }
  RETURN_IF_ERROR(CheckPlaces(peer));
  session =
      std::make_shared<Session>(made, std::string(peer), owner, AccountOfSession(peer, owner));
  session->used_ns = clock_.NowNs();
  sessions_.emplace(KeyOf(made), session);
  if (owner.has_one_session) tokens_of_owners_.emplace(session->peer, made);
  return UseLocked(session);
}

absl::StatusOr<TensorStore::SessionUse> TensorStore::Use(std::string_view token,
                                                         std::string_view owner) {
  Leftovers left;
  MutexLock lock(&mutex_);
  const std::shared_ptr<Session> session =
      token.empty() ? FindSessionOf(owner, left) : FindSession(token, left);
  if (session == nullptr || (!owner.empty() && session->peer != owner)) return NoSuchSession();
  return UseLocked(session);
}

bool TensorStore::IsIdle(const Session& session, int64_t now_ns) const {
  return session.users == 0 &&
         now_ns - session.used_ns >= absl::ToInt64Nanoseconds(options_.linger);
}

// Ends what has expired of the session; true where nothing is left of it.
bool TensorStore::ExpireSession(Session& session, Leftovers& left) {
  // It looks at all that a session has, and each call comes by here.
  constexpr int64_t kSweptNs = 10'000'000;
  const int64_t now_ns = clock_.NowNs();
  session.swept_until_ns = now_ns + kSweptNs;
  const bool is_idle = IsIdle(session, now_ns);
  const bool is_left = is_idle && !session.is_all_of_owner;
  std::vector<RandomId> expired;
  for (const auto& [handle, entry] : session.tensors) {
    if (entry.HasExpired(now_ns) || (is_left && !entry.pinned)) expired.push_back(handle);
  }
  for (const RandomId& handle : expired) Erase(session, handle, left);
  counts_.tensors_expired += static_cast<int64_t>(expired.size());
  for (auto next = session.uploads.begin(); next != session.uploads.end();) {
    const auto upload = next++;
    if (!upload->second->HasExpired(now_ns) && (!is_left || upload->second->pinned())) continue;
    left.uploads.push_back(std::move(upload->second));
    session.uploads.erase(upload);
  }
  for (auto next = session.contents.begin(); next != session.contents.end();) {
    const auto content = next++;
    if (content->second.expired()) session.contents.erase(content);
  }
  session.is_over = is_idle && session.tensors.empty() && session.uploads.empty();
  return session.is_over;
}

void TensorStore::Expire() {
  std::vector<Sha256Digest> keys;
  {
    MutexLock lock(&mutex_);
    for (const auto& [key, session] : sessions_) keys.push_back(key);
  }
  // The lock is free in between, so that nobody waits for all sessions.
  for (const Sha256Digest& key : keys) {
    Leftovers left;
    MutexLock lock(&mutex_);
    const auto found = sessions_.find(key);
    if (found == sessions_.end()) continue;
    CountLost(*found->second);
    LeaveHost(*found->second);
    if (!ExpireSession(*found->second, left)) continue;
    left.sessions.push_back(found->second);
    Forget(*left.sessions.back());
  }
}

void TensorStore::Close() {
  MutexLock lock(&mutex_);
  is_closed_ = true;
}

void TensorStore::SetMostNewBytes(int64_t bytes) {
  {
    MutexLock lock(&mutex_);
    most_new_bytes_ = bytes;
  }
  if (bytes < std::numeric_limits<int64_t>::max()) forms_.DropAll();
}

std::vector<TensorStore::OwnerLoad> TensorStore::LargestOwners() const {
  std::vector<std::pair<int64_t, const Session*>> owners;
  for (const auto& [key, session] : sessions_) {
    if (const int64_t bytes = session->account->used(); bytes > 0) {
      owners.emplace_back(bytes, session.get());
    }
  }
  const auto is_larger = [](const auto& x, const auto& y) { return x.first > y.first; };
  const auto end = owners.begin() + static_cast<int64_t>(std::min(owners.size(), kMostOwners));
  std::partial_sort(owners.begin(), end, owners.end(), is_larger);
  owners.erase(end, owners.end());
  std::vector<OwnerLoad> loads;
  for (const auto& [bytes, session] : owners) {
    loads.push_back({.name = NameOfOwner(session->token),
                     .tensors = static_cast<int64_t>(session->tensors.size()),
                     .bytes = bytes,
                     .caller = session->is_of_known_owner ? session->rule : session->peer});
  }
  return loads;
}

}  // namespace gemmd
