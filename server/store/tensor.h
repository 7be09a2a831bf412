// SPDX-License-Identifier: Apache-2.0
//
// Resident tensors: specification, bytes, and the data that host kernels derive from them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "kernels/matrix/block_scale.h"
#include "kernels/problem.h"
#include "server/store/account.h"
#include "server/store/digest.h"
#include "server/store/placed_bytes.h"
#include "server/system/mutex.h"
#include "server/system/threads.h"

namespace gemmd {

class KeptForm;

// Factors of blocks that a tensor keeps, after its matrices.
struct TensorBlocks {
  BlockScale scale;
  bool is_k_along_columns = false;  // Whether k runs down the columns, or along the rows.
  int64_t offset = 0;               // Of the factors in the tensor's bytes, a multiple of 16.

  friend bool operator==(const TensorBlocks&, const TensorBlocks&) = default;
};

// A matrix, or a batch of matrices of one shape without gaps in between.
struct TensorSpec {
  MatrixLayout layout;  // The stored layout.
  int64_t matrices = 1;
  std::vector<float> scale;  // No factor, one, or one per row or column.
  std::optional<TensorBlocks> blocks;
  int64_t bytes = 0;  // Of all matrices, with the padding of the last line, and of the factors.

  bool has_factors() const { return !scale.empty() || blocks.has_value(); }
};

// Completes the specification of a valid layout. Errors: InvalidArgument if the matrices, or these
// and the factors, take 2^63 bytes or more, and for blocks of less than one element.
absl::StatusOr<TensorSpec> MakeTensorSpec(const MatrixLayout& layout, int64_t matrices,
                                          std::vector<float> scale,
                                          std::optional<TensorBlocks> blocks = std::nullopt);

// How a tensor is kept.
struct Keeping {
  std::string name;
  int64_t lease_ns = 0;  // 0: the default one.
  bool pinned = false;
};

// The bytes of a tensor, or of several tensors with the same content. They exist as long as
// somebody holds them: the session, a product, an answer being sent. Host memory is charged from
// the beginning, wherever the bytes are, so that copies evicted from a device have space, unless it
// has been given back, or there was no room for them at the beginning.
class TensorBytes final : public PlacedBytes {
 public:
  // Larger memory is returned to the system in the background: 16 MiB take a millisecond.
  static constexpr int64_t kFreedAtOnceBytes = int64_t{16} << 20;

  // Errors: ResourceExhausted if the account or the machine has no memory left.
  static absl::StatusOr<std::shared_ptr<TensorBytes>> Allocate(
      int64_t bytes, Account& account, const std::shared_ptr<ThreadPool>& background,
      int64_t freed_at_once_bytes = kFreedAtOnceBytes, bool is_for_workers = false);
  // For at least HostMemory::kMappedBytes that are written on a device first: host memory is
  // charged once they are brought there, and has no pages before. Until then it costs addresses
  // only: it is never in SharedMemory, so that a worker that reads it on the host needs a copy for
  // each launch. `addresses` is kept as long as the bytes. Errors: ResourceExhausted if the
  // machine has no addresses left.
  static absl::StatusOr<std::shared_ptr<TensorBytes>> AllocateUncharged(
      int64_t bytes, Account& account, Account::Charge addresses,
      const std::shared_ptr<ThreadPool>& background);

  int64_t charged_bytes() const ABSL_LOCKS_EXCLUDED(room_mutex_);
  // Makes room by Account::MakeRoom.
  absl::Status TakeRoom() override ABSL_LOCKS_EXCLUDED(room_mutex_);
  Account* device_account() const override { return account_->on_devices(); }

  // Forms that host kernels derive from the bytes, and forms requested once; managed by KeptForms.
  Mutex forms_mutex;
  std::vector<std::shared_ptr<KeptForm>> forms ABSL_GUARDED_BY(forms_mutex);
  std::vector<FormKey> wanted_forms ABSL_GUARDED_BY(forms_mutex);
  // Bytes of the forms.
  int64_t form_bytes() ABSL_LOCKS_EXCLUDED(forms_mutex);
  ~TensorBytes();

  // The hash of the bytes, if they were hashed and not changed since. Guarded by the store's lock.
  std::optional<Sha256Digest> digest;
  // Whether several tensors share, or shared, the bytes. Guarded by the store's lock.
  bool are_shared = false;
  // Whether host memory is given back as soon as a device has the bytes. Guarded by the store's
  // lock.
  bool shall_leave_host = false;

 private:
  TensorBytes(HostMemory host, Account& account, Account::Charge charge,
              Account::Charge addresses = {});
  static std::shared_ptr<TensorBytes> Share(std::unique_ptr<TensorBytes> bytes,
                                            const std::shared_ptr<ThreadPool>& background,
                                            int64_t freed_at_once_bytes);
  // Current users keep their form, but no new user gets it.
  void DropForms() override ABSL_LOCKS_EXCLUDED(forms_mutex);

  void GiveRoomBack() override ABSL_LOCKS_EXCLUDED(room_mutex_);
  bool has_room() const override { return charged_bytes() == bytes(); }

  const std::shared_ptr<Account> account_;
  const Account::Charge addresses_;
  mutable Mutex room_mutex_;
  Account::Charge charge_ ABSL_GUARDED_BY(room_mutex_);
};

// A tensor being created: its bytes are charged, but it cannot be found yet.
struct TensorDraft {
  TensorSpec spec;
  Keeping keep;
  std::shared_ptr<TensorBytes> bytes;
  Account::Charge charge;  // Its overhead besides its bytes.
};

// Constant, except its bytes.
struct Tensor {
  RandomId handle;
  int64_t number = 0;  // Increases with creation.
  std::string name;    // Empty if it has none.
  TensorSpec spec;
  std::shared_ptr<TensorBytes> bytes;
  Account::Charge charge;  // Its overhead besides its bytes.
};

// Adds the tensor's name to a "tensor lost" status.
absl::Status WithName(const absl::Status& status, const Tensor& tensor);

// Where the bytes of a tensor are.
struct TensorPlace {
  std::string device;  // "host", or the device's name.
  int64_t bytes = 0;
};

// A snapshot of a tensor's state.
struct TensorState {
  std::shared_ptr<const Tensor> tensor;
  int64_t kept_bytes = 0;
  bool pinned = false;
  int64_t lease_ns = 0;
  int64_t expires_in_ns = 0;
  absl::InlinedVector<TensorPlace, 1> places;
  bool lost = false;
  int64_t products = 0;
};

// One form. Held by the tensor while it is valid, and by products while they use it.
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
  std::atomic<int64_t> last_use_ = 0;  // Time of the last use, counted in uses of all forms.
};

// A cache of data that host kernels derive from tensors: a weight is widened or expanded once, not
// for every product. Forms are charged to their session's account, and are dropped if a tensor
// needs the space, if memory is short, or if the tensor's bytes change.
class KeptForms {
 public:
  // Max forms of a tensor, for all its parts and kernels.
  static constexpr size_t kMaxOfTensor = 8;

  // `background` returns memory to the system.
  explicit KeptForms(std::shared_ptr<ThreadPool> background) : background_(std::move(background)) {}

  struct Use {
    std::shared_ptr<KeptForm> form;  // Null: no form is kept.
    bool is_made = false;            // If false, the user makes it, and calls End.
  };
  // A form is kept from the second use on, because many tensors are used once. Returns none if the
  // account has no space, or another user is making the form. Threads: any.
  Use Take(const std::shared_ptr<TensorBytes>& tensor, Account& account, const FormKey& key)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Reports whether the form was made.
  void End(const std::shared_ptr<KeptForm>& form, bool is_made) ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops forms, least recently used first and the account's own first, until the account has
  // `bytes` free. Drops none if its own limit is too low for that.
  void MakeRoom(const Account& account, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mutex_);

  // Bytes of the forms charged to the account.
  int64_t BytesOf(const Account& account) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // All existing forms.
  std::vector<std::shared_ptr<KeptForm>> All() const ABSL_LOCKS_EXCLUDED(mutex_);
  static void Drop(const std::shared_ptr<KeptForm>& form);

  const std::shared_ptr<ThreadPool> background_;
  std::atomic<int64_t> uses_ = 0;
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<KeptForm>> forms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
