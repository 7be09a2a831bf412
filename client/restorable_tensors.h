// SPDX-License-Identifier: Apache-2.0
//
// Tensors that the client puts again once the server has lost them (PutOptions::restorable).
//
// Callers keep the handle that a tensor had when it was put. Requests are sent with its current
// one, so a restored tensor is known by every handle that it has had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "client/transfer.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/resident.pb.h"

namespace gemmd {

// The SHA-256 digest of `data` followed by `tail`.
std::string HashOf(std::span<const std::byte> data, std::span<const std::byte> tail);

// The references to tensors in a request; of a product, those of its operands. D may be one, too.
bool HasTensorAsD(const v1::MultiplyRequest& request);
bool NamesTensors(const v1::MultiplyRequest& request);
std::vector<v1::TensorRef*> TensorRefsOf(v1::TensorRef& request);
std::vector<v1::TensorRef*> TensorRefsOf(v1::ListTensorsRequest& request);
std::vector<v1::TensorRef*> TensorRefsOf(v1::KeepAliveRequest& request);
std::vector<v1::TensorRef*> TensorRefsOf(v1::CompressRequest& request);
std::vector<v1::TensorRef*> TensorRefsOf(v1::MultiplyRequest& request);

// Threads: any.
class RestorableTensors {
 public:
  // What a tensor was made of. `begin` has the hash of all bytes.
  struct Source {
    v1::PutBegin begin;
    std::span<const std::byte> data;  // The caller's memory.
    std::vector<std::byte> tail;
    int connections = 0;
  };

  // A restorable tensor that a request names, as it was when the request was sent.
  struct Use {
    std::string handle;
    int64_t times_restored = 0;
  };

  // Adds a complete upload. Forgets another tensor of the same name, which it has replaced.
  void Add(const std::string& handle, Source source) ABSL_LOCKS_EXCLUDED(mutex_);

  // Forgets a tensor, if it is restorable, after waiting until nothing reads its source. Returns
  // its current handle, or an empty string.
  std::string Forget(const v1::TensorRef& tensor) ABSL_LOCKS_EXCLUDED(mutex_);

  // The tensor, into which D goes, no longer has the bytes of its source: it is not restorable any
  // more. Writes its current handle into the reference.
  void Overwrite(v1::TensorRef& tensor) ABSL_LOCKS_EXCLUDED(mutex_);

  // The tensor is kept in another way from now on.
  void SetKeep(const v1::TensorInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether no handle needs translation.
  bool IsEmpty() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Writes current handles into a request, and returns the restorable tensors that it names.
  std::vector<Use> Translate(const std::vector<v1::TensorRef*>& refs) ABSL_LOCKS_EXCLUDED(mutex_);

  // The calls of a restoration.
  struct Calls {
    absl::FunctionRef<absl::StatusOr<v1::TensorInfo>(const v1::TensorRef&)> describe;
    absl::FunctionRef<absl::StatusOr<v1::TensorInfo>(const Source&)> put;
  };

  // Puts the tensor again if the server does not have it; concurrent callers wait for one upload.
  // Returns whether the tensor has been restored since the use. Errors: those of the calls;
  // NotFound if another tensor has its name now; FailedPrecondition if the bytes at the source have
  // changed; DeadlineExceeded.
  absl::StatusOr<bool> Restore(const Use& use, SteadyTime deadline, const Calls& calls)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Tensor {
    Source source;
    std::vector<std::string> handles;  // The current one is the last.
    bool is_being_restored = false;
    bool is_overwritten = false;
    int64_t times_restored() const { return static_cast<int64_t>(handles.size()) - 1; }
  };

  std::shared_ptr<Tensor> Find(const v1::TensorRef& ref) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitRest(const Tensor& tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(const std::shared_ptr<Tensor>& tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Tensor>> by_handle_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<Tensor>> by_name_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
