// SPDX-License-Identifier: Apache-2.0
//
// The service of FakeTensors: its calls and its state.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "tests/client/tensor_faults.h"

namespace gemmd {

// The stream of a session, open until the client or the test ends it.
class SessionStream : public grpc::ServerWriteReactor<v1::OpenSessionResponse> {
 public:
  SessionStream(std::string token, const grpc::Status& status) {
    if (!status.ok()) {
      End(status);
      return;
    }
    response_.set_token(std::move(token));
    response_.set_linger_ns(30'000'000'000);
    response_.set_lease_ns(600'000'000'000);
    response_.set_max_session_bytes(1 << 30);
    StartWrite(&response_);
  }
  void End(const grpc::Status& status) {
    if (!has_ended_.exchange(true)) Finish(status);
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override {}  // The service destroys it, after the server.

 private:
  v1::OpenSessionResponse response_;
  std::atomic<bool> has_ended_ = false;
};

struct StoredTensor {
  v1::TensorInfo info;
  std::string bytes;
};

struct RunningUpload {
  v1::PutBegin begin;
  std::string bytes;
  std::map<int64_t, int64_t> has;  // Received ranges: from the first byte to one past the last.
  std::optional<v1::TensorInfo> done;
};

class FakeTensorsService final
    : public v1::Tensors::WithCallbackMethod_OpenSession<v1::Tensors::Service> {
 public:
  explicit FakeTensorsService(TensorFaults faults) : faults_(std::move(faults)) {}

  grpc::ServerWriteReactor<v1::OpenSessionResponse>* OpenSession(
      grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) override;
  grpc::Status Put(grpc::ServerContext* context,
                   grpc::ServerReaderWriter<v1::PutResponse, v1::PutRequest>* stream) override;
  grpc::Status Get(grpc::ServerContext* context, const v1::GetRequest* request,
                   grpc::ServerWriter<v1::GetResponse>* writer) override;
  grpc::Status List(grpc::ServerContext* context, const v1::ListTensorsRequest* request,
                    v1::ListTensorsResponse* response) override;
  grpc::Status Describe(grpc::ServerContext* context, const v1::TensorRef* request,
                        v1::TensorInfo* response) override;
  grpc::Status Delete(grpc::ServerContext* context, const v1::TensorRef* request,
                      v1::DeleteTensorResponse* response) override;
  grpc::Status KeepAlive(grpc::ServerContext* context, const v1::KeepAliveRequest* request,
                         v1::TensorInfo* response) override;
  grpc::Status Compress(grpc::ServerContext* context, const v1::CompressRequest* request,
                        v1::TensorInfo* response) override;

  // See FakeTensors.
  void BreakSessions(bool forgets);

  // Keeps a tensor like one that a product makes.
  v1::TensorInfo Keep(const v1::PutBegin& begin, std::string bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  grpc::Status Authenticate(const grpc::ServerContextBase& context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  int sessions_opened_ ABSL_GUARDED_BY(mutex_) = 0;
  int puts_ ABSL_GUARDED_BY(mutex_) = 0;
  int chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> deleted_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::PutBegin> begun_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, StoredTensor> tensors_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Duration> times_left_ ABSL_GUARDED_BY(mutex_);

 private:
  StoredTensor* Find(const v1::TensorRef& ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  grpc::Status BeginOrJoin(const v1::PutRequest& request, std::string& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillState(const std::string& id, v1::PutState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::map<int64_t, int64_t> MissingOf(const RunningUpload& upload);
  std::optional<v1::TensorInfo> DoneOf(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  grpc::Status Take(const std::string& id, const v1::PutChunk& chunk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TensorFaults faults_;
  bool never_ = false;
  int offered_chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  int sent_chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  int last_tensor_ ABSL_GUARDED_BY(mutex_) = 0;
  int last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::string> tokens_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, RunningUpload> uploads_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<SessionStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
