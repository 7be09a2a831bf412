// SPDX-License-Identifier: Apache-2.0
//
// The resident tensors: sessions, which own them, uploads, names, leases and quotas.
//
// Only its owner can find a tensor; for everybody else it does not exist. A holder of a use keeps
// the tensor's bytes, whatever happens to its name, lease or session.
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

// A time that never comes.
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A session's entry for a tensor.
struct TensorEntry {
  std::shared_ptr<const Tensor> tensor;
  int64_t lease_ns = 0;
  bool pinned = false;
  int64_t used_ns = 0;  // When its last use ended.
  int users = 0;        // Products and answers that use it now.
  int64_t products = 0;
  int64_t lost_edition = -1;  // The edition with which it was counted as lost.
  int64_t look_ns = kNever;   // When the store checks whether its lease has ended.
  bool may_leave = false;     // A candidate for leaving host memory.

  bool HasExpired(int64_t now_ns) const {
    return !pinned && users == 0 && now_ns - used_ns >= lease_ns;
  }
};

// The owner of a session, if owners are known by name.
struct SessionOwner {
  bool is_known = false;
  // Authenticated: the owner has a single session, which all its OpenSession calls share.
  bool has_one_session = false;
  std::string rule = {};                                    // The rule that names the owner.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();  // Limit for all its sessions together.
  int64_t max_device_bytes =
      std::numeric_limits<int64_t>::max();  // Limit on all devices, likewise.
};

// A session, which owns tensors. Non-constant members are guarded by the store's lock.
struct Session {
  // The key of shared bytes. Sparse tensors share bytes only if all else is equal too, because the
  // validity of indices depends on that, and so do tensors with factors of blocks, because forms
  // contain them.
  struct Content {
    Sha256Digest digest = {};
    MatrixLayout layout;  // Empty for others.
    int64_t matrices = 0;
    std::optional<TensorBlocks> blocks;

    friend bool operator==(const Content&, const Content&) = default;
    template <typename Hash>
    friend Hash AbslHashValue(Hash hash, const Content& content) {
      return Hash::combine(std::move(hash), content.digest);
    }
  };
  static Content ContentOf(const TensorSpec& spec, const Sha256Digest& digest) {
    Content content{.digest = digest, .layout = {}, .matrices = 0, .blocks = std::nullopt};
    if (spec.layout.is_sparse() || spec.blocks) {
      content.layout = spec.layout;
      content.matrices = spec.matrices;
      content.blocks = spec.blocks;
    }
    return content;
  }
  // `digest` is that of the token.
  static std::string IdOf(const Sha256Digest& digest);

  Session(const RandomId& session_token, const Sha256Digest& digest, std::string session_peer,
          SessionOwner session_owner, std::shared_ptr<Account> session_account, int64_t now_ns)
      : token(session_token),
        id(IdOf(digest)),
        opened_ns(now_ns),
        peer(std::move(session_peer)),
        owner(std::move(session_owner)),
        account(std::move(session_account)),
        used_ns(now_ns) {}

  const RandomId token;
  // Public name: the token itself would grant access.
  const std::string id;
  const int64_t opened_ns;
  const std::string peer;  // A host, or the name of a known owner.
  // An owner has a single session, whose tensors outlive its connections.
  SessionOwner owner;
  const std::shared_ptr<Account> account;
  int64_t number = 0;        // Unique among sessions, tensors and uploads.
  int64_t used_ns;           // When its last use ended.
  int64_t look_ns = kNever;  // When the store checks whether it is idle.
  int users = 0;             // Streams, calls and products.
  // The streams that keep it open, by number, with their callbacks for a drop by an operator.
  absl::flat_hash_map<int64_t, std::function<void()>> streams;
  bool is_over = false;  // It cannot be found, and nothing can be added to it.
  absl::flat_hash_map<RandomId, TensorEntry> tensors;
  absl::flat_hash_map<std::string, RandomId> names;
  struct PendingUpload {
    std::shared_ptr<Upload> upload;
    int64_t number = 0;
    int64_t look_ns = kNever;  // When the store checks whether its lease has ended.
  };
  absl::flat_hash_map<RandomId, PendingUpload> uploads;
  absl::flat_hash_map<Content, std::weak_ptr<TensorBytes>> contents;
};

// Which results left on a device are also copied to host memory: the others are lost with the
// device.
enum class HostCopies : uint8_t { kPinned, kAll, kNone };

struct StoreOptions {
  int64_t max_sessions = 1000;
  int64_t max_bytes = int64_t{1} << 30;          // What all tensors may take.
  int64_t max_session_bytes = int64_t{1} << 29;  // What those of one session may take.
  // The part of the devices' memory for tensors that those of one session may take; 1: no limit.
  double session_device_share = 1;
  absl::Duration linger = absl::Seconds(30);
  // Pinned tensors outlive a night without their client, and not a client that never returns.
  absl::Duration pinned_linger = absl::Hours(24);
  // For tensors whose owner asks for no time of its own.
  absl::Duration lease = absl::Minutes(10);
  HostCopies host_copies = HostCopies::kPinned;
};

// A tensor's handle or name, as given by a caller.
using TensorName = std::variant<RandomId, std::string>;

class TensorStore {
 public:
  // Max tensors and uploads of one session; each takes at least kTensorBytes.
  static constexpr size_t kMaxTensors = 4096;
  static constexpr int64_t kTensorBytes = 1024;

  // Keeps a session alive. Movable. Threads: one at a time; const functions: any.
  class SessionUse {
   public:
    SessionUse() = default;
    SessionUse(SessionUse&& other) noexcept;
    SessionUse& operator=(SessionUse&& other) noexcept;
    ~SessionUse();

    // Precondition: this is a use of a session.
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

  // Keeps a tensor alive, and restarts its lease at the end. Movable. Not thread-safe.
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

  // The load of one session.
  struct OwnerLoad {
    std::string name;  // Session::id.
    int64_t tensors = 0;
    int64_t bytes = 0;
    // The rule that names its owner, or the host or user of its peer.
    std::string caller = {};
  };
  static constexpr size_t kMaxOwners = 10;

  // Counters and current values.
  struct Load {
    int64_t sessions = 0;
    int64_t max_sessions = 0;
    int64_t tensors = 0;
    int64_t uploads = 0;
    int64_t bytes = 0;  // Bytes in the account for all tensors.
    int64_t max_bytes = 0;
    // Since the start:
    int64_t uploads_complete = 0;
    int64_t uploads_known = 0;       // Uploads for which nothing had to be sent.
    int64_t uploads_resumed = 0;     // Uploads resumed after all streams had ended.
    int64_t uploads_mismatched = 0;  // Uploads with a wrong hash.
    int64_t tensors_expired = 0;
    int64_t sessions_dropped = 0;        // By operators.
    int64_t tensors_lost = 0;            // Tensors lost with the only device that had them.
    std::vector<OwnerLoad> owners = {};  // The largest, at most kMaxOwners.
    // By the owners' rule, if owners are known by name.
    std::map<std::string, int64_t> bytes_of_rules = {};
  };

  // Borrows the clock.
  TensorStore(const StoreOptions& options, const Clock& clock);
  ~TensorStore();

  const StoreOptions& options() const { return options_; }

  // Adds a device on which products run, with the copies in its memory; null if it has no memory of
  // its own. Call before any other function.
  void AddDevice(std::string name, std::shared_ptr<DeviceCopies> copies)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Copies a tensor that is on a device alone to host memory, if the options say so. Does not wait
  // for the copy: returns the errors known at once, as if the host has no room; later ones are left
  // to the next user of the bytes. Errors: those of PlacedBytes::BringToHost.
  absl::Status KeepOnHost(const TensorState& tensor) const {
    return KeepOnHost(*tensor.tensor->bytes, tensor.pinned);
  }

  // Opens a session, or joins the token's session, or the single session of an owner. `peer`
  // identifies the caller for sharing places; for an owner, its name. The limits of a single
  // session are those given last. The use belongs to a stream; `on_drop` tells the stream, on any
  // thread and possibly after the use has ended, that the session was dropped. Errors:
  // Unauthenticated for an unknown token, or one of another owner's session; ResourceExhausted for
  // too many sessions; Unavailable once the store is closed.
  absl::StatusOr<SessionUse> OpenSession(
      std::string_view token, std::string_view peer, const SessionOwner& owner = {},
      std::function<void()> on_drop = [] {}) ABSL_LOCKS_EXCLUDED(mutex_);
  // `owner` is empty if the token alone grants access. Without a token, uses the owner's single
  // session. Errors: Unauthenticated.
  absl::StatusOr<SessionUse> Use(std::string_view token, std::string_view owner = {})
      ABSL_LOCKS_EXCLUDED(mutex_);

  // A snapshot of a session, for operators.
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
    int64_t lingers_ns = 0;  // 0 while it is in use, and after the linger time.
    int64_t tensors = 0;
    int64_t pinned = 0;
    int64_t uploads = 0;
    int64_t bytes = 0;               // Bytes in its account.
    std::vector<OwnTensor> largest;  // At most kMaxLargest, largest first.
  };
  struct SessionList {
    std::vector<SessionState> sessions;
    int64_t left_out = 0;
  };
  // At most `limit` sessions, largest first. Releases the lock between sessions.
  SessionList ListSessions(size_t limit) const ABSL_LOCKS_EXCLUDED(mutex_);

  struct Dropped {
    std::string caller;
    int64_t tensors = 0;
    int64_t freed_bytes = 0;
    int64_t held_bytes = 0;  // Held by running calls until they end.
  };
  // The status for the session's streams, and for running calls that would add to it.
  static absl::Status SessionDropped();
  // Ends a session with its uploads and all its tensors, including pinned ones. Current users of a
  // tensor keep its bytes. Errors: NotFound.
  absl::StatusOr<Dropped> DropSession(std::string_view id) ABSL_LOCKS_EXCLUDED(mutex_);

  // The result of Begin: the tensor if its bytes were already there, or the upload.
  struct Beginning {
    std::optional<TensorState> tensor;
    std::shared_ptr<Upload> upload;
  };
  // The complete tensor is brought to `device`, if given and if it has space. If the host has no
  // room for it and the options allow it to be on a device alone, its bytes are passed to the
  // device as they come, unless it is sparse. Errors: InvalidArgument for too long a name or a
  // negative lease; NotFound for an unknown device; ResourceExhausted for a quota, or too many
  // tensors; Unavailable once the store is closed.
  absl::StatusOr<Beginning> Begin(const SessionUse& session, TensorSpec spec, Keeping keep,
                                  const std::optional<Sha256Digest>& digest,
                                  std::string_view device = "") ABSL_LOCKS_EXCLUDED(mutex_);
  // Errors: NotFound; Unavailable once the store is closed; ResourceExhausted if memory is short.
  absl::StatusOr<std::shared_ptr<Upload>> Join(const SessionUse& session, std::string_view id)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // See Upload::Attach and Detach.
  absl::StatusOr<Upload::StreamId> Attach(const std::shared_ptr<Upload>& upload);
  void Leave(const std::shared_ptr<Upload>& upload, Upload::StreamId stream);
  // Returns false and calls `later` as Upload::Write does. Errors: those of Upload::Write;
  // ResourceExhausted if memory is short (the upload can be joined later).
  absl::StatusOr<bool> Write(const SessionUse& session, const std::shared_ptr<Upload>& upload,
                             int64_t offset, absl::Span<const absl::Span<const std::byte>> pieces,
                             Upload::Waiter later = {}, Upload::StreamId stream = 0);

  // Uses a tensor. Errors: NotFound.
  absl::StatusOr<TensorUse> Find(const SessionUse& session, const TensorName& name)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Uses several tensors at once; the TensorUses must be empty. Errors: NotFound; the tensors
  // before it are then in use.
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
  // Errors: NotFound; InvalidArgument a negative lease; Aborted if other tensors get the name again
  // and again while it is to be pinned; those of KeepOnHost if it is to be pinned, and then nothing
  // changes, unless a product has written it meanwhile.
  absl::StatusOr<TensorState> KeepAlive(const SessionUse& session, const TensorName& name,
                                        std::optional<int64_t> lease_ns, std::optional<bool> pinned)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Temporary memory, charged to the tensor's session, for which forms make room. Errors:
  // ResourceExhausted.
  absl::StatusOr<std::shared_ptr<TensorBytes>> Lend(const TensorUse& use, int64_t bytes) const;
  // Bytes that its session may take now without dropping forms.
  int64_t FreeBytes(const TensorUse& use) const { return use.session_->account->free(); }

  // Call before a product reads tensors and writes `written`, if any (possibly one of them).
  // Ignores uses without a tensor. Errors: FailedPrecondition if other tensors share, or shared,
  // the bytes to be written.
  absl::Status BeginProduct(absl::Span<const TensorUse* const> read, const TensorUse& written)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the uses that have a tensor, all at once. The uses keep their tensors until destroyed.
  void End(absl::Span<TensorUse* const> uses) ABSL_LOCKS_EXCLUDED(mutex_);
  // The kept form that a kernel derives from the tensor, if any.
  KeptForms::Use TakeForm(const TensorUse& use, const FormKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  KeptForms& forms() { return *forms_; }
  // Bytes that another tensor of the session may take now, including the space of forms.
  int64_t FreeBytes(const SessionUse& session) const;
  // The tensor's current state, even if it can no longer be found.
  TensorState StateOf(const TensorUse& use) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reserves memory for a new tensor. `is_result`: if the host has no room for it, and it has at
  // least HostMemory::kMappedBytes, it may be written on a device alone if it fits there; its bytes
  // are then not charged, and a writer on the host calls TakeRoom first. Errors: those of Begin.
  absl::StatusOr<TensorDraft> MakeDraft(const SessionUse& session, TensorSpec spec, Keeping keep,
                                        bool is_result = false) ABSL_LOCKS_EXCLUDED(mutex_);
  // Publishes it to its session. Errors: Unavailable if the system has no random numbers.
  absl::StatusOr<TensorState> Publish(const SessionUse& session, TensorDraft draft)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses new sessions and uploads from now on.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_closed() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Refuses larger tensors until changed, because memory is short; a negative number also refuses
  // joining and writing uploads.
  void SetMaxNewBytes(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends expired entries; the store also does so periodically. Entries that are not due cost
  // nothing.
  void Expire() ABSL_LOCKS_EXCLUDED(mutex_);
  // The number of sessions, tensors and uploads checked for expiry since the start, including by
  // calls.
  int64_t looks() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Visits every session; for display.
  Load load() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Bytes of all tensors and uploads.
  int64_t used_bytes() const { return account_->used(); }

 private:
  struct Leftovers;

  // An entry to check at a certain time: a session, or one of its tensors or uploads.
  struct Due {
    enum class Kind : uint8_t { kSession, kTensor, kUpload };
    Session* session = nullptr;  // Owns the due entry while it is open.
    Kind kind = Kind::kSession;
    RandomId id = {};
  };
  struct TensorOfSession {
    std::weak_ptr<Session> session;
    RandomId handle;
  };

  // Schedules the check of an entry, replacing an earlier schedule; `look_ns` stores the time.
  void LookAt(int64_t at_ns, int64_t number, int64_t& look_ns, const Due& due)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAt(int64_t at_ns, Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    LookAt(at_ns, session.number, session.look_ns, {.session = &session});
  }
  void LookAt(int64_t at_ns, Session& session, TensorEntry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAt(int64_t at_ns, Session& session, Session::PendingUpload& pending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Checks up to `max_expired` due entries; returns true if more are due.
  bool ExpireDue(int64_t now_ns, int max_expired, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireTensor(Session& session, const RandomId& handle, int64_t now_ns, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireUpload(Session& session, const RandomId& id, int64_t now_ns, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using Uploads = absl::flat_hash_map<RandomId, Session::PendingUpload>;
  void EraseUpload(Session& session, Uploads::iterator upload, Leftovers& left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndUse(Session& session, int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Schedules the check of an unused session at the end of its linger time, unless it is checked
  // earlier.
  void LookOnceIdle(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool IsEmpty(const Session& session) {
    return session.tensors.empty() && session.uploads.empty();
  }

  int64_t LeaseOf(const Keeping& keep) const;
  absl::Status CheckKeeping(const Keeping& keep) const;
  absl::Status CheckMemory(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status CheckCount(const Session& session, size_t count);
  absl::Status CheckRoom(const Session& session, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Account> AccountOf(std::string_view name, const SessionOwner& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Account> AccountOfSession(std::string_view peer, const SessionOwner& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetLimits(Account& account, const SessionOwner& owner) const;
  // Sets the session's limit on devices if that is a share of their memory, which is known once
  // they have started.
  void LimitShareOfDevices(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status KeepOnHost(TensorBytes& bytes, bool pinned) const;
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
  // The bytes that the session has already, which another tensor may share, or null. Brings them to
  // the host if the options want that tensor there. Errors: those of KeepOnHost.
  absl::StatusOr<std::shared_ptr<TensorBytes>> FindKnown(Session& session, const TensorSpec& spec,
                                                         const Sha256Digest& digest, bool pinned)
      ABSL_LOCKS_EXCLUDED(mutex_);
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
  std::shared_ptr<DeviceCopies> CopiesOn(const std::string& device) ABSL_LOCKS_EXCLUDED(mutex_);
  void BringTo(const std::string& device, const std::shared_ptr<TensorBytes>& bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the host has no room for a new tensor that may be on a device alone, even without
  // forms. `more_bytes` are those that its maker needs besides.
  bool LacksRoom(const SessionUse& session, const TensorSpec& spec, const Keeping& keep,
                 int64_t more_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Host addresses for bytes that are to be on the device alone; null: on any device. Errors:
  // ResourceExhausted if the device can never hold them, the owner's limit on devices is lower, or
  // such bytes of all sessions take too many addresses.
  absl::StatusOr<std::shared_ptr<TensorBytes>> AllocateUncharged(int64_t bytes, Account& account,
                                                                 const DeviceCopies* device)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes an upload pass its bytes to the device.
  void PassTo(std::shared_ptr<DeviceCopies> device, const std::shared_ptr<Session>& session,
              Upload& upload);
  // If the options say so, tensors on a device leave host memory: the store checks tensors that are
  // new, or were used since.
  void NoteMayLeave(const std::shared_ptr<Session>& session, TensorEntry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveHost() ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts tensors lost by devices since the last call.
  void CountLost() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasLostMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false while the tensor is being written, because its state is not known yet.
  bool CountIfLost(TensorEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(Session& session, int64_t stream) ABSL_LOCKS_EXCLUDED(mutex_);
  SessionState StateOf(const Session& session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const StoreOptions options_;
  const Clock& clock_;
  const std::shared_ptr<Account> account_;
  const std::shared_ptr<Account> addresses_;  // Of bytes allocated without a charge.
  mutable Mutex mutex_;
  // By the hash of the token, so that the time of a search reveals nothing about other tokens.
  absl::flat_hash_map<Sha256Digest, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mutex_);
  // The keys of single sessions, by owner.
  std::map<std::string, Sha256Digest, std::less<>> keys_of_owners_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::weak_ptr<Account>> accounts_of_owners_ ABSL_GUARDED_BY(mutex_);
  struct StoreDevice {
    std::shared_ptr<DeviceCopies> copies;
    uint64_t generation = 0;  // The generation when losses were last counted.
  };
  absl::flat_hash_map<std::string, StoreDevice> devices_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int64_t, int64_t>, Due> due_
      ABSL_GUARDED_BY(mutex_);  // Sorted by time and number.
  int64_t looks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<TensorOfSession> may_leave_ ABSL_GUARDED_BY(mutex_);
  std::vector<TensorOfSession> unsettled_ ABSL_GUARDED_BY(mutex_);  // Tensors that may be lost.
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t max_new_bytes_ ABSL_GUARDED_BY(mutex_);
  Load counts_ ABSL_GUARDED_BY(mutex_);              // Counters.
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;  // The last number assigned.
  // Its thread uses the other members: the destructor stops it first.
  std::shared_ptr<ThreadPool> background_;
  const std::shared_ptr<KeptForms> forms_;
};

}  // namespace gemmd
