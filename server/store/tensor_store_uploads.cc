// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/store/leftovers.h"
#include "server/store/sparse_check.h"
#include "server/store/tensor_store.h"

namespace gemmd {
namespace {

// Hashed by the thread that brings a chunk: more than it brings, so that a gap that has closed is
// caught up with, and less than takes a gRPC thread 5 ms.
constexpr int64_t kHashedByCaller = int64_t{3} << 19;

// Hashed by the background at once, between other tasks.
constexpr int64_t kHashedByBackground = int64_t{8} << 20;

// Bytes of a sparse tensor whose indices it looks at, likewise.
constexpr int64_t kCheckedByBackground = int64_t{16} << 20;

}  // namespace

std::shared_ptr<TensorBytes> TensorStore::FindContent(Session& session, const TensorSpec& spec,
                                                      const Sha256Digest& digest) {
  const auto found = session.contents.find(Session::ContentOf(spec, digest));
  if (found == session.contents.end()) return nullptr;
  std::shared_ptr<TensorBytes> bytes = found->second.lock();
  const bool is_same = bytes != nullptr && bytes->bytes() == spec.bytes && bytes->digest == digest;
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
  Beginning beginning;
  {
    Leftovers left;
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(CheckRoom(owner, spec.bytes));
    std::shared_ptr<TensorBytes> known = digest ? FindContent(owner, spec, *digest) : nullptr;
    if (known != nullptr) {
      known->are_shared = true;
      ASSIGN_OR_RETURN(TensorDraft draft,
                       MakeDraft(owner, std::move(spec), std::move(keep), std::move(known)));
      ASSIGN_OR_RETURN(beginning.tensor, Publish(owner, std::move(draft), left));
      ++counts_.uploads_known;
    }
  }
  if (beginning.tensor) {
    BringTo(std::string(device), beginning.tensor->tensor->bytes);
    return beginning;
  }
  const int64_t lease_ns = std::min(LeaseOf(keep), absl::ToInt64Nanoseconds(options_.lease));
  ASSIGN_OR_RETURN(TensorDraft draft, MakeDraft(owner, std::move(spec), std::move(keep), nullptr));
  ASSIGN_OR_RETURN(Account::Charge overhead, owner.account->Take(Upload::kOverheadBytes));
  beginning.upload = std::make_shared<Upload>(id, lease_ns, std::move(draft), std::move(overhead),
                                              digest, clock_.NowNs(), device);
  {
    MutexLock lock(&mutex_);
    owner.uploads.emplace(id, beginning.upload);
  }
  Advance(session.session_, beginning.upload, 0);  // A tensor without bytes is complete.
  return beginning;
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
  if (!found->second->has_streams()) ++counts_.uploads_resumed;
  return found->second;
}

Upload::StreamId TensorStore::Attach(const std::shared_ptr<Upload>& upload,
                                     Upload::Listener listener) {
  return upload->Attach(std::move(listener), clock_.NowNs());
}

void TensorStore::Leave(const std::shared_ptr<Upload>& upload, Upload::StreamId stream) {
  upload->Detach(stream, clock_.NowNs());
}

absl::Status TensorStore::Write(const SessionUse& session, const std::shared_ptr<Upload>& upload,
                                int64_t offset,
                                absl::Span<const absl::Span<const std::byte>> pieces) {
  {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(CheckMemory(0));  // Its memory is counted, but used only now.
  }
  RETURN_IF_ERROR(upload->Write(offset, pieces, clock_.NowNs()));
  Advance(session.session_, upload, kHashedByCaller);
  return absl::OkStatus();
}

void TensorStore::Advance(const std::shared_ptr<Session>& session,
                          const std::shared_ptr<Upload>& upload, int64_t most_bytes) {
  switch (upload->Advance(most_bytes)) {
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
  }
}

void TensorStore::CatchUp(const std::shared_ptr<Session>& session,
                          const std::shared_ptr<Upload>& upload) {
  background_->Post([this, session, upload] {
    upload->EndCatchingUp();
    Advance(session, upload, kHashedByBackground);
  });
}

void TensorStore::CheckIndices(const std::shared_ptr<Session>& session,
                               const std::shared_ptr<Upload>& upload,
                               const std::shared_ptr<SparseCheck>& check) {
  background_->Post([this, session, upload, check] {
    const absl::StatusOr<bool> is_over = check->Advance(kCheckedByBackground);
    if (is_over.ok() && !*is_over) return CheckIndices(session, upload, check);
    Complete(session, upload, is_over.status());
  });
}

void TensorStore::Complete(const std::shared_ptr<Session>& session,
                           const std::shared_ptr<Upload>& upload, const absl::Status& verdict) {
  absl::StatusOr<TensorState> result = verdict.ok() ? Leftovers::NoSuchUpload() : verdict;
  {
    Leftovers left;
    MutexLock lock(&mutex_);
    const bool is_there = session->uploads.erase(upload->id()) > 0;
    TensorDraft draft = upload->TakeDraft();
    if (!verdict.ok()) {
      if (absl::IsDataLoss(verdict)) ++counts_.uploads_mismatched;
    } else if (is_there) {
      ++counts_.uploads_complete;
      if (upload->digest()) {
        draft.bytes->digest = upload->digest();
        session->contents[Session::ContentOf(draft.spec, *upload->digest())] = draft.bytes;
      }
      draft.bytes->shall_leave_host = options_.host_copies == HostCopies::kNone;
      result = Publish(*session, std::move(draft), left);
    }
  }
  if (result.ok()) BringTo(upload->device(), result->tensor->bytes);
  upload->End(result);
}

}  // namespace gemmd
