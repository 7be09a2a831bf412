// SPDX-License-Identifier: Apache-2.0
#include "client/restorable_tensors.h"

#include <openssl/evp.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

v1::TensorRef HandleRef(const std::string& handle) {
  v1::TensorRef ref;
  ref.set_handle(handle);
  return ref;
}

v1::TensorRef NameRef(const std::string& name) {
  v1::TensorRef ref;
  ref.set_name(name);
  return ref;
}

std::string TextOf(const v1::PutBegin& begin) {
  const std::string& name = begin.keep().name();
  return name.empty() ? "restorable tensor" : absl::StrCat("restorable tensor ", name);
}

bool HasItsHash(const RestorableTensors::Source& source) {
  return HashOf(source.data, source.tail) == source.begin.sha256();
}

absl::StatusOr<std::optional<v1::TensorInfo>> PutAgain(const std::string& handle,
                                                       const RestorableTensors::Source& source,
                                                       const RestorableTensors::Calls& calls) {
  const auto known = calls.describe(HandleRef(handle));
  if (known.ok()) return std::nullopt;
  if (!absl::IsNotFound(known.status())) return known.status();
  if (const std::string& name = source.begin.keep().name(); !name.empty()) {
    // A newer tensor must not be replaced by an older one.
    const auto other = calls.describe(NameRef(name));
    if (other.ok()) {
      return absl::NotFoundError(absl::StrCat(
          TextOf(source.begin), ": got another tensor of that name, want none: it was replaced"));
    }
    if (!absl::IsNotFound(other.status())) return other.status();
  }
  auto info = calls.put(source);
  if (info.ok()) return *std::move(info);
  if (absl::IsDataLoss(info.status()) && !HasItsHash(source)) {
    return absl::FailedPreconditionError(
        absl::StrCat(TextOf(source.begin),
                     ": got other bytes in its memory than Put did, want them unchanged as long as "
                     "it is restorable; it needs a new Put"));
  }
  return info.status();
}

}  // namespace

std::string HashOf(std::span<const std::byte> data, std::span<const std::byte> tail) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> state(EVP_MD_CTX_new(),
                                                                      EVP_MD_CTX_free);
  std::string digest(static_cast<size_t>(EVP_MD_size(EVP_sha256())), '\0');
  const bool is_made =
      state != nullptr && EVP_DigestInit_ex(state.get(), EVP_sha256(), nullptr) == 1 &&
      EVP_DigestUpdate(state.get(), data.data(), data.size()) == 1 &&
      EVP_DigestUpdate(state.get(), tail.data(), tail.size()) == 1 &&
      EVP_DigestFinal_ex(state.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) ==
          1;
  return is_made ? digest : "";
}

bool HasTensorAsD(const v1::MultiplyRequest& request) {
  return request.has_d() && request.d().has_tensor();
}

bool NamesTensors(const v1::MultiplyRequest& request) {
  return request.a().has_tensor() || request.b().has_tensor() || request.c().has_tensor() ||
         HasTensorAsD(request);
}

std::vector<v1::TensorRef*> TensorRefsOf(v1::TensorRef& request) { return {&request}; }

std::vector<v1::TensorRef*> TensorRefsOf(v1::ListTensorsRequest& /*request*/) { return {}; }

std::vector<v1::TensorRef*> TensorRefsOf(v1::KeepAliveRequest& request) {
  return {request.mutable_tensor()};
}

std::vector<v1::TensorRef*> TensorRefsOf(v1::CompressRequest& request) {
  std::vector<v1::TensorRef*> refs = {request.mutable_tensor()};
  if (request.has_mask()) refs.push_back(request.mutable_mask());
  return refs;
}

std::vector<v1::TensorRef*> TensorRefsOf(v1::MultiplyRequest& request) {
  std::vector<v1::TensorRef*> refs;
  const auto add = [&](bool has_operand, auto mutable_operand) {
    if (!has_operand) return;
    v1::Operand& operand = *(request.*mutable_operand)();
    if (operand.has_tensor()) refs.push_back(operand.mutable_tensor()->mutable_tensor());
  };
  add(request.has_a(), &v1::MultiplyRequest::mutable_a);
  add(request.has_b(), &v1::MultiplyRequest::mutable_b);
  add(request.has_c(), &v1::MultiplyRequest::mutable_c);
  return refs;
}

void RestorableTensors::Add(const std::string& handle, Source source) {
  const std::string name = source.begin.keep().name();
  if (!name.empty()) Forget(NameRef(name));
  auto tensor = std::make_shared<Tensor>();
  tensor->source = std::move(source);
  tensor->handles = {handle};
  absl::MutexLock lock(&mutex_);
  by_handle_[handle] = tensor;
  if (!name.empty()) by_name_[name] = tensor;
}

std::string RestorableTensors::Forget(const v1::TensorRef& ref) {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Tensor> tensor = Find(ref);
  if (tensor == nullptr) return "";
  Erase(tensor);
  AwaitRest(*tensor);
  return tensor->handles.back();
}

void RestorableTensors::Overwrite(v1::TensorRef& ref) {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Tensor> tensor = Find(ref);
  if (tensor == nullptr) return;
  tensor->is_overwritten = true;
  AwaitRest(*tensor);
  if (ref.has_handle()) ref.set_handle(tensor->handles.back());
}

void RestorableTensors::SetKeep(const v1::TensorInfo& info) {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Tensor> tensor = Find(HandleRef(info.handle()));
  if (tensor == nullptr) return;
  tensor->source.begin.mutable_keep()->set_pinned(info.pinned());
  tensor->source.begin.mutable_keep()->set_lease_ns(info.lease_ns());
}

bool RestorableTensors::IsEmpty() const {
  absl::MutexLock lock(&mutex_);
  return by_handle_.empty();
}

std::vector<RestorableTensors::Use> RestorableTensors::Translate(
    const std::vector<v1::TensorRef*>& refs) {
  std::vector<Use> uses;
  absl::MutexLock lock(&mutex_);
  if (by_handle_.empty()) return uses;
  for (v1::TensorRef* const ref : refs) {
    const std::shared_ptr<Tensor> tensor = Find(*ref);
    if (tensor == nullptr) continue;
    if (ref->has_handle()) ref->set_handle(tensor->handles.back());
    if (!tensor->is_overwritten) uses.push_back({tensor->handles.back(), tensor->times_restored()});
  }
  return uses;
}

absl::StatusOr<bool> RestorableTensors::Restore(const Use& use, SteadyTime deadline,
                                                const Calls& calls) {
  std::shared_ptr<Tensor> tensor;
  Source source;
  std::string handle;
  {
    absl::MutexLock lock(&mutex_);
    tensor = Find(HandleRef(use.handle));
    if (tensor == nullptr) return false;
    const auto is_at_rest = [&] { return !tensor->is_being_restored; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&is_at_rest), deadline - SteadyTime::Now())) {
      return absl::DeadlineExceededError(
          absl::StrCat(TextOf(tensor->source.begin), ": another call restores it still"));
    }
    if (tensor->times_restored() != use.times_restored) return true;
    if (tensor->is_overwritten || by_handle_.find(use.handle) == by_handle_.end()) return false;
    tensor->is_being_restored = true;
    source = tensor->source;
    handle = tensor->handles.back();
  }
  const auto info = PutAgain(handle, source, calls);
  absl::MutexLock lock(&mutex_);
  tensor->is_being_restored = false;
  if (!info.ok()) return info.status();
  if (!info->has_value()) return false;
  tensor->handles.push_back((*info)->handle());
  // If the tensor was forgotten during the restoration, the thread that forgot it waits for the new
  // handle, to delete it.
  if (by_handle_.find(use.handle) != by_handle_.end()) {
    by_handle_[(*info)->handle()] = tensor;
  }
  return true;
}

std::shared_ptr<RestorableTensors::Tensor> RestorableTensors::Find(const v1::TensorRef& ref) const {
  const bool has_handle = ref.has_handle();
  const auto& tensors = has_handle ? by_handle_ : by_name_;
  const auto it = tensors.find(has_handle ? ref.handle() : ref.name());
  return it == tensors.end() ? nullptr : it->second;
}

void RestorableTensors::AwaitRest(const Tensor& tensor) {
  const auto is_at_rest = [&] { return !tensor.is_being_restored; };
  mutex_.Await(absl::Condition(&is_at_rest));
}

void RestorableTensors::Erase(const std::shared_ptr<Tensor>& tensor) {
  for (const std::string& handle : tensor->handles) by_handle_.erase(handle);
  const auto named = by_name_.find(tensor->source.begin.keep().name());
  if (named != by_name_.end() && named->second == tensor) by_name_.erase(named);
}

}  // namespace gemmd
