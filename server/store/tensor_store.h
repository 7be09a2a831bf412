// SPDX-License-Identifier: Apache-2.0
//
// The resident tensors: sessions, which own them, uploads, names, leases and quotas.
//
// A tensor is found by its owner alone; for everybody else it is as if it were not there. Whoever
// holds a use of a tensor has its bytes, whatever becomes of its name, its lease or its session.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/store/account.h"
#include "server/store/digest.h"
#include "server/store/tensor.h"
#include "server/store/upload.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/system/threads.h"

namespace gemmd {

// The time of what does not come.
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// What the store knows of a tensor of a session.
struct TensorEntry {
  std::shared_ptr<const Tensor> tensor;
  int64_t lease_ns = 0;
  bool pinned = false;
  int64_t used_ns = 0;  // When its last use ended.
  int users = 0;        // Products and answers that have it now.
  int64_t products = 0;
  int64_t lost_edition = -1;  // That with which it was counted among those that were lost.
  int64_t look_ns = kNever;   // When the store looks whether its lease has ended.
  bool may_leave = false;     // It is among those that may leave memory of the host.

  bool HasExpired(int64_t now_ns) const {
    return !pinned && users == 0 && now_ns - used_ns >= lease_ns;
  }
};

// Who opens a session, where owners are known by name.
struct SessionOwner {
  bool is_known = false;
  // Has shown who it is, so its tensors are its own, not a session's: all that it opens are one.
  bool has_one_session = false;
  std::string rule = {};  // That of the rules by which it is known.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();         // All its sessions together.
  int64_t max_device_bytes = std::numeric_limits<int64_t>::max();  // On all devices, likewise.
};

// The owner of tensors, as the store keeps it. All of it is guarded by the store's lock,
// except for what is constant.
struct Session {
  // What tensors share. Sparse ones share memory only where their shape and type are the same too:
  // which indices are good depends on them. They are 0 for dense ones.
  using Content = std::tuple<Sha256Digest, Sparsity, ElementType, int64_t, int64_t>;
  static Content ContentOf(const TensorSpec& spec, const Sha256Digest& digest) {
    const MatrixLayout& layout = spec.layout;
    if (!layout.is_sparse()) return {digest, layout.sparsity, {}, 0, 0};
    return {digest, layout.sparsity, layout.type, layout.rows, layout.columns};
  }
  // `digest` is that of the token.
  static std::string IdOf(const Sha256Digest& digest);

  Session(const RandomId& session_token, const Sha256Digest& digest, std::string session_peer,
          const SessionOwner& owner, std::shared_ptr<Account> session_account, int64_t now_ns)
      : token(session_token),
        id(IdOf(digest)),
        opened_ns(now_ns),
        peer(std::move(session_peer)),
        is_of_known_owner(owner.is_known),
        is_all_of_owner(owner.has_one_session),
        rule(owner.rule),
        account(std::move(session_account)),
        used_ns(now_ns) {}

  const RandomId token;
  // How others name it: who knows the token itself has the session.
  const std::string id;
  const int64_t opened_ns;
  const std::string peer;  // A host, or the name of a known owner.
  const bool is_of_known_owner;
  // It is all sessions of an owner in one: its tensors do not go because nobody is connected.
  const bool is_all_of_owner;
  std::string rule;  // Empty where owners are not known by name.
  const std::shared_ptr<Account> account;
  int64_t number = 0;        // Among sessions, tensors and uploads.
  int64_t used_ns;           // When its last use ended.
  int64_t look_ns = kNever;  // When the store checks whether it is still in use.
  int users = 0;             // Streams, calls and products.
  // The streams that keep it open, by number, and what tells each that an operator has dropped it.
  absl::flat_hash_map<int64_t, std::function<void()>> streams;
  bool is_over = false;  // Nobody finds it any more, and nothing is added to it.
  absl::flat_hash_map<RandomId, TensorEntry> tensors;
  absl::flat_hash_map<std::string, RandomId> names;
  struct PendingUpload {
    std::shared_ptr<Upload> upload;
    int64_t number = 0;
    int64_t look_ns = kNever;  // When the store looks whether its lease has ended.
  };
  absl::flat_hash_map<RandomId, PendingUpload> uploads;
  absl::flat_hash_map<Content, std::weak_ptr<TensorBytes>> contents;
};

// Which tensors memory of the host gets a copy of where a product has left them on a device: a
// device that is lost takes the others with it.
enum class HostCopies : uint8_t { kPinned, kAll, kNone };

struct StoreOptions {
  int64_t max_sessions = 1000;
  int64_t max_bytes = int64_t{1} << 30;          // What all tensors may take.
  int64_t max_session_bytes = int64_t{1} << 29;  // What those of one session may take,
  int64_t max_session_device_bytes = 0;          // and of all devices together; 0: no limit.
  absl::Duration linger = absl::Seconds(30);
  absl::Duration pinned_linger = absl::Hours(24);  // That of pinned tensors.
  absl::Duration lease = absl::Minutes(10);
  HostCopies host_copies = HostCopies::kPinned;
};

// How a caller names a tensor: by its handle or by its name.
using TensorName = std::variant<RandomId, std::string>;

class TensorStore {
 public:
  // Tensors and uploads of one session; each takes kTensorBytes at least.
  static constexpr size_t kMaxTensors = 4096;
  static constexpr int64_t kTensorBytes = 1024;

  // A session stays while somebody uses it. Movable. Threads: one at a time; where it is const,
  // any.
  class SessionUse {
   public:
    SessionUse() = default;
    SessionUse(SessionUse&& other) noexcept;
    SessionUse& operator=(SessionUse&& other) noexcept;
    ~SessionUse();

    // Only where it is the use of a session.
    const RandomId& token() const { return session_->token; }
    const Account& account() const { return *session_->account; }

   private:
    friend class TensorStore;
    SessionUse(TensorStore* store, std::shared_ptr<Session> session)
        : store_(store), session_(std::move(session)) {}

    TensorStore* store_ = nullptr;
    std::shared_ptr<Session> session_;
    int64_t stream_ = 0;  // Its number among the session's streams; 0 for a call.
  };

  // The tensor stays while somebody uses it, and its lease begins anew at the end. Movable.
  // Threads: one at a time.
  class TensorUse {
   public:
    TensorUse() = default;
    TensorUse(TensorUse&& other) noexcept;
    TensorUse& operator=(TensorUse&& other) noexcept;
    ~TensorUse();

    const Tensor* operator->() const { return tensor_.get(); }
    const std::shared_ptr<const Tensor>& tensor() const { return tensor_; }

   private:
    friend class TensorStore;
    TensorUse(TensorStore* store, std::shared_ptr<Session> session,
              std::shared_ptr<const Tensor> tensor)
        : store_(store), session_(std::move(session)), tensor_(std::move(tensor)) {}

    TensorStore* store_ = nullptr;
    std::shared_ptr<Session> session_;
    std::shared_ptr<const Tensor> tensor_;
  };

  // What one session has.
  struct OwnerLoad {
    std::string name;  // Session::id.
    int64_t tensors = 0;
    int64_t bytes = 0;
    // The rule by which its owner is known, or the host or user of its peer.
    std::string caller = {};
  };
  static constexpr size_t kMaxOwners = 10;

  // What is counted, and what there is now.
  struct Load {
    int64_t sessions = 0;
    int64_t max_sessions = 0;
    int64_t tensors = 0;
    int64_t uploads = 0;
    int64_t bytes = 0;  // In the account of all.
    int64_t max_bytes = 0;
    // Since the start:
    int64_t uploads_complete = 0;
    int64_t uploads_known = 0;       // Nothing had to be sent.
    int64_t uploads_resumed = 0;     // Gone on with after all streams had gone.
    int64_t uploads_mismatched = 0;  // Had another hash.
    int64_t tensors_expired = 0;
    int64_t sessions_dropped = 0;        // By operators.
    int64_t tensors_lost = 0;            // Were on a device alone that lost them.
    std::vector<OwnerLoad> owners = {};  // Those with the most bytes, at most kMaxOwners.
    // By the rule of those who own it, where owners are known by name.
    std::map<std::string, int64_t> bytes_of_rules = {};
  };

  // Borrows the clock.
  TensorStore(const StoreOptions& options, const Clock& clock);
  ~TensorStore();

  const StoreOptions& options() const { return options_; }

  // A device on which products run, with the copies in its memory; null where it has none of its
  // own. Before anything else is called.
  void AddDevice(std::string name, std::shared_ptr<DeviceCopies> copies)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Has the bytes of a tensor that a product has left on a device copied to memory of the host,
  // where the options say so.
  void KeepOnHost(const TensorState& tensor) const;

  // Opens a session, or joins the one of the token, or that of an owner who has only one. `peer` is
  // whoever asks, as far as places are shared; of an owner, its name. The limits of an owner who
  // has one session are those that it came with last. The use is a stream's; `on_drop` tells the
  // stream, on any thread and possibly after the use has ended, that the session was dropped.
  // Errors: Unauthenticated an unknown token, or that of another owner's session;
  // ResourceExhausted too many sessions; Unavailable once the store is closed.
  absl::StatusOr<SessionUse> OpenSession(
      std::string_view token, std::string_view peer, const SessionOwner& owner = {},
      std::function<void()> on_drop = [] {}) ABSL_LOCKS_EXCLUDED(mutex_);
  // `owner` is empty where whoever has a token owns its session. Without a token, the session of an
  // owner who has one session. Errors: Unauthenticated.
  absl::StatusOr<SessionUse> Use(std::string_view token, std::string_view owner = {})
      ABSL_LOCKS_EXCLUDED(mutex_);

  // A session at one moment, for operators.
  struct SessionState {
    struct OwnTensor {
      std::string name;
      int64_t bytes = 0;
      bool pinned = false;
    };
    static constexpr size_t kMaxLargest = 3;

    std::string id;
    std::string caller;  // Session::peer.
    int64_t age_ns = 0;
    int64_t streams = 0;
    bool is_in_use = false;
    int64_t lingers_ns = 0;  // 0 while it is in use, and once the time has passed.
    int64_t tensors = 0;
    int64_t pinned = 0;
    int64_t uploads = 0;
    int64_t bytes = 0;               // In its account.
    std::vector<OwnTensor> largest;  // At most kMaxLargest, the largest first.
  };
  struct SessionList {
    std::vector<SessionState> sessions;
    int64_t left_out = 0;
  };
  // Those with the most bytes, at most so many. The lock is free between one session and the next.
  SessionList ListSessions(size_t limit) const ABSL_LOCKS_EXCLUDED(mutex_);

  struct Dropped {
    std::string caller;
    int64_t tensors = 0;
    int64_t freed_bytes = 0;
    int64_t held_bytes = 0;  // By calls under way, until they end.
  };
  // What calls under way that would add to the session are told, and its streams.
  static absl::Status SessionDropped();
  // Ends a session with its tensors, also pinned ones, and its uploads. Whoever uses one of the
  // tensors keeps its bytes. Errors: NotFound.
  absl::StatusOr<Dropped> DropSession(std::string_view id) ABSL_LOCKS_EXCLUDED(mutex_);

  // What an upload begins with: the tensor where its bytes were there already, or the upload.
  struct Beginning {
    std::optional<TensorState> tensor;
    std::shared_ptr<Upload> upload;
  };
  // The complete tensor is brought to the memory of `device`, where that is not empty and has room.
  // Errors: InvalidArgument a name too long or a negative lease; NotFound a device that there is
  // not; ResourceExhausted a quota, or too many tensors; Unavailable once the store is closed.
  absl::StatusOr<Beginning> Begin(const SessionUse& session, TensorSpec spec, Keeping keep,
                                  const std::optional<Sha256Digest>& digest,
                                  std::string_view device = "") ABSL_LOCKS_EXCLUDED(mutex_);
  // Errors: NotFound; Unavailable once the store is closed; ResourceExhausted where memory is
  // short.
  absl::StatusOr<std::shared_ptr<Upload>> Join(const SessionUse& session, std::string_view id)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Serves an upload from now on: the listener learns how it ended. Leave takes it back.
  Upload::StreamId Attach(const std::shared_ptr<Upload>& upload, Upload::Listener listener);
  void Leave(const std::shared_ptr<Upload>& upload, Upload::StreamId stream);
  // Errors: as Upload::Write; ResourceExhausted where memory is short, and the upload can be joined
  // later.
  absl::Status Write(const SessionUse& session, const std::shared_ptr<Upload>& upload,
                     int64_t offset, absl::Span<const absl::Span<const std::byte>> pieces);

  // Uses a tensor. Errors: NotFound.
  absl::StatusOr<TensorUse> Find(const SessionUse& session, const TensorName& name)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Uses several at once, in uses of no tensor yet. Errors: NotFound; those before it are used.
  struct Wanted {
    const TensorName* name;
    TensorUse* use;
  };
  absl::Status Find(const SessionUse& session, absl::Span<const Wanted> all)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<TensorState> Describe(const SessionUse& session, const TensorName& name)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // In order of name, then of age.
  std::vector<TensorState> List(const SessionUse& session) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Delete(const SessionUse& session, const TensorName& name)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Errors: NotFound; InvalidArgument a negative lease.
  absl::StatusOr<TensorState> KeepAlive(const SessionUse& session, const TensorName& name,
                                        std::optional<int64_t> lease_ns, std::optional<bool> pinned)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Memory for a while, in the account of the tensor's session. Errors: ResourceExhausted.
  absl::StatusOr<std::shared_ptr<TensorBytes>> Lend(const TensorUse& use, int64_t bytes) const;

  // A product is about to read tensors, and to write another one or one of them, where there is
  // one. Uses without a tensor are left out. Errors: FailedPrecondition where other tensors have
  // had the bytes of the one that it writes.
  absl::Status BeginProduct(absl::Span<const TensorUse* const> read, const TensorUse& written)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the uses that are of a tensor, all at once. Their tensors are still there until they go.
  void End(absl::Span<TensorUse* const> uses) ABSL_LOCKS_EXCLUDED(mutex_);
  // What a kernel derives from the tensor, where it is kept.
  KeptForms::Use TakeForm(const TensorUse& use, const FormKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  KeptForms& forms() { return forms_; }
  // What another tensor of the session may take now: forms make room for it.
  int64_t FreeBytes(const SessionUse& session) const;
  // The tensor as it is now, also where nobody can find it any more.
  TensorState StateOf(const TensorUse& use) ABSL_LOCKS_EXCLUDED(mutex_);
  // Room for a tensor that is to be made. Errors: as Begin.
  absl::StatusOr<TensorDraft> MakeDraft(const SessionUse& session, TensorSpec spec, Keeping keep)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Shows it to its session. Errors: Unavailable where the system gives no random numbers.
  absl::StatusOr<TensorState> Publish(const SessionUse& session, TensorDraft draft)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses new sessions and uploads from now on.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_closed() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Refuses tensors of more bytes until it is told otherwise, because memory is short; with a
  // negative number also to join uploads and what they bring.
  void SetMaxNewBytes(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends what has expired; the store does it by itself now and then. What is held and not due costs
  // nothing.
  void Expire() ABSL_LOCKS_EXCLUDED(mutex_);
  // How many sessions, tensors and uploads were looked at for that, by calls too, since the start.
  int64_t looks() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Looks at every session, for whoever shows it.
  Load load() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What all tensors and uploads take.
  int64_t used_bytes() const { return account_->used(); }

 private:
  struct Leftovers;

  // What is to be looked at when its time has come: a session, or one of its tensors or uploads.
  struct Due {
    enum class Kind : uint8_t { kSession, kTensor, kUpload };
    Session* session = nullptr;  // Has what is due as long as it is open.
    Kind kind = Kind::kSession;
    RandomId id = {};
  };
  struct TensorOfSession {
    std::weak_ptr<Session> session;
    RandomId handle;
  };

  // Has it looked at then, and at no other time; `look_ns` is where it keeps that.
  void LookAt(int64_t at_ns, int64_t number, int64_t& look_ns, const Due& due)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAt(int64_t at_ns, Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    LookAt(at_ns, session.number, session.look_ns, {.session = &session});
  }
  void LookAt(int64_t at_ns, Session& session, TensorEntry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAt(int64_t at_ns, Session& session, Session::PendingUpload& pending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Looks at up to `most` of what is due; true if more is.
  bool ExpireDue(int64_t now_ns, int most, Leftovers& left) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireTensor(Session& session, const RandomId& handle, int64_t now_ns, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireUpload(Session& session, const RandomId& id, int64_t now_ns, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using Uploads = absl::flat_hash_map<RandomId, Session::PendingUpload>;
  void EraseUpload(Session& session, Uploads::iterator upload, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndUse(Session& session, int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has an unused session looked at when its linger ends, unless it is looked at earlier.
  void LookOnceIdle(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool IsEmpty(const Session& session) {
    return session.tensors.empty() && session.uploads.empty();
  }

  int64_t LeaseOf(const Keeping& keep) const;
  absl::Status CheckKeeping(const Keeping& keep) const;
  absl::Status CheckMemory(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRoom(const Session& session, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Account> AccountOf(std::string_view name, const SessionOwner& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Account> AccountOfSession(std::string_view peer, const SessionOwner& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetLimits(Account& account, const SessionOwner& owner) const;
  int64_t DeviceBytesOfSession() const;
  absl::Status CheckPlaces(std::string_view peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SessionUse UseLocked(const std::shared_ptr<Session>& session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Session> FindSession(const std::optional<Sha256Digest>& key, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Session> FindSessionOf(std::string_view owner, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<OwnerLoad> LargestOwners() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsIdle(const Session& session, int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ExpireSession(Session& session, int64_t now_ns, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TensorEntry* FindEntry(Session& session, const TensorName& name, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(Session& session, const RandomId& handle, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<TensorDraft> MakeDraft(const Session& session, TensorSpec spec, Keeping keep,
                                        std::shared_ptr<TensorBytes> bytes);
  std::shared_ptr<TensorBytes> FindContent(Session& session, const TensorSpec& spec,
                                           const Sha256Digest& digest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<TensorState> Publish(const std::shared_ptr<Session>& session, TensorDraft draft,
                                      Leftovers& left) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TensorState StateOf(const TensorEntry& entry) const;
  void Advance(const std::shared_ptr<Session>& session, const std::shared_ptr<Upload>& upload,
               int64_t max_bytes);
  void CatchUp(const std::shared_ptr<Session>& session, const std::shared_ptr<Upload>& upload);
  void Complete(const std::shared_ptr<Session>& session, const std::shared_ptr<Upload>& upload,
                const absl::Status& verdict) ABSL_LOCKS_EXCLUDED(mutex_);
  void CheckIndices(const std::shared_ptr<Session>& session, const std::shared_ptr<Upload>& upload,
                    const std::shared_ptr<SparseCheck>& check);
  absl::Status CheckDevice(std::string_view device) ABSL_LOCKS_EXCLUDED(mutex_);
  void BringTo(const std::string& device, const std::shared_ptr<TensorBytes>& bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Where the options say so, tensors that are on a device leave memory of the host: the store
  // looks at those that have come or were used since.
  void NoteMayLeave(const std::shared_ptr<Session>& session, TensorEntry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveHost() ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts what devices have lost since the last call.
  void CountLost() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasLostMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False while the tensor is being written, since it is not known yet.
  bool CountIfLost(TensorEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(Session& session, int64_t stream) ABSL_LOCKS_EXCLUDED(mutex_);
  SessionState StateOf(const Session& session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const StoreOptions options_;
  const Clock& clock_;
  const std::shared_ptr<Account> account_;
  mutable Mutex mutex_;
  // By the hash of its token: what a search for a token takes tells nothing about other tokens.
  absl::flat_hash_map<Sha256Digest, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mutex_);
  // The keys of those sessions that are all of an owner in one.
  std::map<std::string, Sha256Digest, std::less<>> keys_of_owners_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::weak_ptr<Account>> accounts_of_owners_ ABSL_GUARDED_BY(mutex_);
  struct StoreDevice {
    std::shared_ptr<DeviceCopies> copies;
    uint64_t generation = 0;  // With which losses were counted last.
  };
  absl::flat_hash_map<std::string, StoreDevice> devices_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int64_t, int64_t>, Due> due_ ABSL_GUARDED_BY(mutex_);  // By time and number.
  int64_t looks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<TensorOfSession> may_leave_ ABSL_GUARDED_BY(mutex_);
  std::vector<TensorOfSession> unsettled_ ABSL_GUARDED_BY(mutex_);  // They may be lost.
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t max_new_bytes_ ABSL_GUARDED_BY(mutex_);
  Load counts_ ABSL_GUARDED_BY(mutex_);              // What is counted.
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;  // The last of all that have one.
  // Its thread uses the other members: it is stopped first.
  std::shared_ptr<ThreadPool> background_;
  KeptForms forms_;
};

}  // namespace gemmd
