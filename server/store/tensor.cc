// SPDX-License-Identifier: Apache-2.0
#include "server/store/tensor.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {

absl::StatusOr<TensorSpec> MakeTensorSpec(const MatrixLayout& layout, int64_t matrices,
                                          std::vector<float> scale,
                                          std::optional<TensorBlocks> blocks) {
  ASSIGN_OR_RETURN(const ByteCount count, BytesOf("spec", layout, matrices));
  TensorSpec spec{.layout = layout,
                  .matrices = matrices,
                  .scale = std::move(scale),
                  .blocks = blocks,
                  .bytes = count.full};
  if (!blocks) return spec;
  constexpr int64_t kFactorAlignment = 16;
  const int64_t lines = blocks->is_k_along_columns ? layout.columns : layout.rows;
  const int64_t k = blocks->is_k_along_columns ? layout.rows : layout.columns;
  ASSIGN_OR_RETURN(const int64_t factors,
                   FactorBytes("spec.scale.blocks", blocks->scale, lines, k, matrices));
  const std::optional<int64_t> all =
      (Checked(count.full) + Checked(kFactorAlignment - 1) + Checked(factors)).value();
  if (!all) {
    return Invalid("spec.scale.blocks", "2^63 bytes or more together with the matrices", "less");
  }
  spec.blocks->offset = (count.full + kFactorAlignment - 1) / kFactorAlignment * kFactorAlignment;
  spec.bytes = spec.blocks->offset + factors;
  return spec;
}

absl::Status WithName(const absl::Status& status, const Tensor& tensor) {
  if (!absl::IsFailedPrecondition(status)) return status;
  const std::string name = tensor.name.empty() ? "a tensor without a name" : Shown(tensor.name);
  return absl::FailedPreconditionError(
      Concat("tensor lost: got ", name, ", handle ", tensor.handle.ToHex(),
             ", which was on a device that is gone, want one that is uploaded or computed anew"));
}

TensorBytes::TensorBytes(HostMemory host, Account& account, Account::Charge charge,
                         Account::Charge addresses)
    : PlacedBytes(std::move(host)),
      account_(account.shared_from_this()),
      addresses_(std::move(addresses)),
      charge_(std::move(charge)) {}

TensorBytes::~TensorBytes() = default;

int64_t TensorBytes::charged_bytes() const {
  MutexLock lock(&room_mutex_);
  return charge_.bytes();
}

absl::Status TensorBytes::TakeRoom() {
  MutexLock lock(&room_mutex_);
  if (charge_.bytes() == bytes()) return absl::OkStatus();
  account_->MakeRoom(bytes());
  ASSIGN_OR_RETURN(charge_, account_->Take(bytes()));
  return absl::OkStatus();
}

void TensorBytes::GiveRoomBack() {
  Account::Charge charge;
  MutexLock lock(&room_mutex_);
  charge = std::move(charge_);
}

int64_t TensorBytes::form_bytes() {
  int64_t bytes = 0;
  MutexLock lock(&forms_mutex);
  for (const std::shared_ptr<KeptForm>& form : forms) bytes += form->bytes();
  return bytes;
}

void TensorBytes::DropForms() {
  std::vector<std::shared_ptr<KeptForm>> dropped;
  MutexLock lock(&forms_mutex);
  dropped.swap(forms);
}

absl::StatusOr<std::shared_ptr<TensorBytes>> TensorBytes::Allocate(
    int64_t bytes, Account& account, const std::shared_ptr<ThreadPool>& background,
    int64_t freed_at_once_bytes, bool is_for_workers) {
  ASSIGN_OR_RETURN(Account::Charge charge, account.Take(bytes));
  ASSIGN_OR_RETURN(HostMemory host, HostMemory::Allocate(bytes, is_for_workers));
  std::unique_ptr<TensorBytes> owned(new TensorBytes(std::move(host), account, std::move(charge)));
  return Share(std::move(owned), background, freed_at_once_bytes);
}

absl::StatusOr<std::shared_ptr<TensorBytes>> TensorBytes::AllocateUncharged(
    int64_t bytes, Account& account, Account::Charge addresses,
    const std::shared_ptr<ThreadPool>& background) {
  ASSIGN_OR_RETURN(HostMemory host, HostMemory::AllocatePrivate(bytes));
  std::unique_ptr<TensorBytes> owned(
      new TensorBytes(std::move(host), account, Account::Charge(), std::move(addresses)));
  return Share(std::move(owned), background, kFreedAtOnceBytes);
}

std::shared_ptr<TensorBytes> TensorBytes::Share(std::unique_ptr<TensorBytes> bytes,
                                                const std::shared_ptr<ThreadPool>& background,
                                                int64_t freed_at_once_bytes) {
  const auto give_back = [background, freed_at_once_bytes](TensorBytes* tensor) {
    std::unique_ptr<TensorBytes> owned(tensor);
    if (owned->bytes() <= freed_at_once_bytes) return;
    // The charge is released at once: the system reclaims memory many times faster than it can be
    // filled.
    owned->GiveRoomBack();
    background->Run([owned = std::move(owned)]() mutable { owned.reset(); });
  };
  return std::shared_ptr<TensorBytes>(bytes.release(), give_back);
}

KeptForms::Use KeptForms::Take(const std::shared_ptr<TensorBytes>& tensor, Account& account,
                               const FormKey& key) {
  {
    MutexLock lock(&tensor->forms_mutex);
    for (const std::shared_ptr<KeptForm>& form : tensor->forms) {
      if (!(form->key_ == key)) continue;
      if (!form->is_made_) return {};
      form->last_use_ = ++uses_;
      return {form, true};
    }
    auto& wanted = tensor->wanted_forms;
    if (std::find(wanted.begin(), wanted.end(), key) == wanted.end()) {
      if (wanted.size() == kMaxOfTensor) wanted.erase(wanted.begin());
      wanted.push_back(key);
      return {};
    }
    if (tensor->forms.size() == kMaxOfTensor) return {};
  }
  auto memory = TensorBytes::Allocate(key.bytes, account, background_, HostMemory::kMappedBytes,
                                      /*is_for_workers=*/true);
  if (!memory.ok()) return {};
  auto form = std::make_shared<KeptForm>(key, tensor, &account, *std::move(memory));
  form->last_use_ = ++uses_;
  {
    MutexLock lock(&tensor->forms_mutex);
    tensor->forms.push_back(form);
  }
  MutexLock lock(&mutex_);
  std::erase_if(forms_, [](const auto& other) { return other.expired(); });
  forms_.push_back(form);
  return {form, false};
}

void KeptForms::End(const std::shared_ptr<KeptForm>& form, bool is_made) {
  if (is_made) {
    form->is_made_ = true;
  } else {
    Drop(form);
  }
}

void KeptForms::Drop(const std::shared_ptr<KeptForm>& form) {
  const std::shared_ptr<TensorBytes> tensor = form->tensor_.lock();
  if (tensor == nullptr) return;
  MutexLock lock(&tensor->forms_mutex);
  std::erase(tensor->forms, form);
}

std::vector<std::shared_ptr<KeptForm>> KeptForms::All() const {
  std::vector<std::shared_ptr<KeptForm>> all;
  MutexLock lock(&mutex_);
  for (const auto& form : forms_) {
    if (auto valid = form.lock()) all.push_back(std::move(valid));
  }
  return all;
}

void KeptForms::MakeRoom(const Account& account, int64_t bytes) {
  if (account.free() >= bytes) return;
  if (bytes > account.limit() - (account.used() - BytesOf(account))) return;
  struct Evictable {
    bool is_others;
    int64_t last_use;  // A snapshot: it changes while others use the form.
    std::shared_ptr<KeptForm> form;
  };
  std::vector<Evictable> evictable;
  for (std::shared_ptr<KeptForm>& form : All()) {
    const bool is_others = form->account_ != &account;
    const int64_t last_use = form->last_use_;
    evictable.push_back({is_others, last_use, std::move(form)});
  }
  std::sort(evictable.begin(), evictable.end(), [](const Evictable& a, const Evictable& b) {
    return std::tie(a.is_others, a.last_use) < std::tie(b.is_others, b.last_use);
  });
  for (Evictable& one : evictable) {
    Drop(one.form);
    one.form = nullptr;  // Frees its memory, unless a product still uses it.
    if (account.free() >= bytes) return;
  }
}

void KeptForms::DropAll() {
  for (const std::shared_ptr<KeptForm>& form : All()) Drop(form);
}

int64_t KeptForms::BytesOf(const Account& account) const {
  int64_t bytes = 0;
  for (const std::shared_ptr<KeptForm>& form : All()) {
    if (form->account_ == &account) bytes += form->bytes();
  }
  return bytes;
}

}  // namespace gemmd
