// SPDX-License-Identifier: Apache-2.0
//
// What kernels of the host derive from tensors, kept beside them: a weight is widened or made dense
// once and not for every product. Forms are a cache. They count in their session's account, and go
// where a tensor needs the room, where memory is short, and where the tensor's bytes change.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "server/store/account.h"
#include "server/store/background.h"
#include "server/store/tensor.h"
#include "server/system/mutex.h"

namespace gemmd {

// What is derived, and from which part of the tensor.
struct FormKey {
  uint32_t form = 0;  // DerivedOperand::form.
  int64_t bytes = 0;
  int64_t offset = 0;  // Where the part begins in the tensor's bytes.
  MatrixLayout layout;

  friend bool operator==(const FormKey&, const FormKey&) = default;
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

class KeptForms {
 public:
  // A tensor has so many forms at most: of its parts, and for several kernels.
  static constexpr size_t kMostOfTensor = 8;

  // `background` gives memory back.
  explicit KeptForms(std::shared_ptr<Background> background) : background_(std::move(background)) {}

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

  const std::shared_ptr<Background> background_;
  std::atomic<int64_t> uses_ = 0;
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<KeptForm>> forms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
