// SPDX-License-Identifier: Apache-2.0
//
// What a resident tensor is, its bytes, and what kernels of the host derive from them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "server/store/account.h"
#include "server/store/digest.h"
#include "server/store/placed_bytes.h"
#include "server/system/mutex.h"
#include "server/system/threads.h"

namespace gemmd {

class KeptForm;

// A matrix, or a batch of matrices of one shape that follow each other without a gap.
struct TensorSpec {
  MatrixLayout layout;  // As it is stored.
  int64_t matrices = 1;
  std::vector<float> scale;  // None, one, or one for each row or column.
  int64_t bytes = 0;         // What all matrices take, with the padding of the last line.
};

// Completes the specification of a valid layout. Errors: InvalidArgument where the matrices take
// 2^63 bytes or more.
absl::StatusOr<TensorSpec> MakeTensorSpec(const MatrixLayout& layout, int64_t matrices,
                                          std::vector<float> scale);

// How a tensor is kept.
struct Keeping {
  std::string name;
  int64_t lease_ns = 0;  // 0: the default one.
  bool pinned = false;
};

// The bytes of a tensor, or of several tensors of one content. They are there as long as somebody
// holds them: the session, a product, an answer that is being sent. Their room in memory of the
// host is charged from the beginning, wherever they are: what leaves a device finds it, unless it
// has been given back.
class TensorBytes final : public PlacedBytes {
 public:
  // Longer memory is given back to the system by the background: it takes a millisecond for 16 MiB.
  static constexpr int64_t kFreedAtOnceBytes = int64_t{16} << 20;

  // Errors: ResourceExhausted where the account or the machine has no room.
  static absl::StatusOr<std::shared_ptr<TensorBytes>> Allocate(
      int64_t bytes, Account& account, const std::shared_ptr<ThreadPool>& background,
      int64_t freed_at_once_bytes = kFreedAtOnceBytes, bool is_for_workers = false);

  int64_t charged_bytes() const ABSL_LOCKS_EXCLUDED(room_mutex_);
  Account* device_account() const override { return account_->on_devices(); }

  // What kernels of the host derive from the bytes, and what they would have used once; made by
  // KeptForms alone.
  Mutex forms_mutex;
  std::vector<std::shared_ptr<KeptForm>> forms ABSL_GUARDED_BY(forms_mutex);
  std::vector<FormKey> wanted_forms ABSL_GUARDED_BY(forms_mutex);
  // What the forms take.
  int64_t form_bytes() ABSL_LOCKS_EXCLUDED(forms_mutex);
  ~TensorBytes();

  // The hash of the bytes, where they were hashed and nobody has changed them since. Guarded by the
  // store's lock.
  std::optional<Sha256Digest> digest;
  // Whether several tensors have had the bytes. Guarded by the store's lock.
  bool are_shared = false;
  // Whether memory of the host gives the bytes up as soon as a device has them. Guarded by the
  // store's lock.
  bool shall_leave_host = false;

 private:
  TensorBytes(HostMemory host, Account& account, Account::Charge charge);
  // Whoever uses a form keeps it, and nobody else gets it.
  void DropForms() override ABSL_LOCKS_EXCLUDED(forms_mutex);

  absl::Status TakeRoom() override ABSL_LOCKS_EXCLUDED(room_mutex_);
  void GiveRoomBack() override ABSL_LOCKS_EXCLUDED(room_mutex_);

  const std::shared_ptr<Account> account_;
  mutable Mutex room_mutex_;
  Account::Charge charge_ ABSL_GUARDED_BY(room_mutex_);
};

// A tensor that is being made: its room is taken, and nobody can find it yet.
struct TensorDraft {
  TensorSpec spec;
  Keeping keep;
  std::shared_ptr<TensorBytes> bytes;
  Account::Charge charge;  // What it takes beside its bytes.
};

// Constant, but for its bytes.
struct Tensor {
  RandomId handle;
  int64_t number = 0;  // Later ones have higher numbers.
  std::string name;    // Empty where it has none.
  TensorSpec spec;
  std::shared_ptr<TensorBytes> bytes;
  Account::Charge charge;  // What it takes beside its bytes.
};

// Names the tensor where the status says that it is lost.
absl::Status WithName(const absl::Status& status, const Tensor& tensor);

// Where the bytes of a tensor are.
struct TensorPlace {
  std::string device;  // "host", or the device's name.
  int64_t bytes = 0;
};

// A tensor at one moment.
struct TensorState {
  std::shared_ptr<const Tensor> tensor;
  int64_t kept_bytes = 0;
  bool pinned = false;
  int64_t lease_ns = 0;
  int64_t expires_in_ns = 0;
  std::vector<TensorPlace> places;
  bool lost = false;
  int64_t products = 0;
};

// One form. The tensor has it as long as it is valid, and a product as long as it uses it.
class KeptForm {
 public:
  KeptForm(const FormKey& key, std::weak_ptr<TensorBytes> tensor, const Account* account,
           std::shared_ptr<TensorBytes> memory)
      : key_(key), tensor_(std::move(tensor)), account_(account), memory_(std::move(memory)) {}

  std::byte* data() const { return memory_->host(); }
  int64_t bytes() const { return key_.bytes; }

 private:
  friend class KeptForms;
  const FormKey key_;
  const std::weak_ptr<TensorBytes> tensor_;
  const Account* const account_;  // For comparison only.
  const std::shared_ptr<TensorBytes> memory_;
  std::atomic<bool> is_made_ = false;
  std::atomic<int64_t> last_use_ = 0;  // Counted in uses of all forms.
};

// A cache of what kernels of the host derive from tensors: a weight is widened or made dense once
// and not for every product. Forms count in their session's account, and are dropped if a tensor
// needs the room, if memory is short, and if the tensor's bytes change.
class KeptForms {
 public:
  // A tensor has so many forms at most: of its parts, and for several kernels.
  static constexpr size_t kMaxOfTensor = 8;

  // `background` gives memory back.
  explicit KeptForms(std::shared_ptr<ThreadPool> background) : background_(std::move(background)) {}

  struct Use {
    std::shared_ptr<KeptForm> form;  // Null: it is not kept.
    bool is_made = false;            // Otherwise the user makes it, and calls End.
  };
  // A form is kept from the second use on: many tensors are used once. There is none where the
  // account has no room, or where another user is making it. Threads: any.
  Use Take(const std::shared_ptr<TensorBytes>& tensor, Account& account, const FormKey& key)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The form is made, or never will be.
  void End(const std::shared_ptr<KeptForm>& form, bool is_made) ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives forms up where the account has less room than so many bytes: those that were used least
  // recently, first the account's own.
  void MakeRoom(const Account& account, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mutex_);

  // What the forms that the account pays for take.
  int64_t BytesOf(const Account& account) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Those that are there.
  std::vector<std::shared_ptr<KeptForm>> All() const ABSL_LOCKS_EXCLUDED(mutex_);
  static void Drop(const std::shared_ptr<KeptForm>& form);

  const std::shared_ptr<ThreadPool> background_;
  std::atomic<int64_t> uses_ = 0;
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<KeptForm>> forms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
