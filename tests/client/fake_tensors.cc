// SPDX-License-Identifier: Apache-2.0
#include "tests/client/fake_tensors.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/operand_size.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/registry.grpc.pb.h"

namespace gemmd {
namespace {

grpc::Status Broken() { return {grpc::StatusCode::UNAVAILABLE, "the test broke it"}; }

grpc::Status NoSuchTensor() {
  return {grpc::StatusCode::NOT_FOUND, "tensor: got none of that name"};
}

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

struct RunningUpload {
  v1::PutBegin begin;
  std::string bytes;
  std::map<int64_t, int64_t> has;  // Received ranges: from the first byte to one past the last.
  std::optional<v1::TensorInfo> done;
};

}  // namespace

class FakeTensors::Service final
    : public v1::Tensors::WithCallbackMethod_OpenSession<v1::Tensors::Service> {
 public:
  explicit Service(TensorFaults faults) : faults_(std::move(faults)) {}

  grpc::ServerWriteReactor<v1::OpenSessionResponse>* OpenSession(
      grpc::CallbackServerContext* /*context*/, const v1::OpenSessionRequest* request) override {
    absl::SleepFor(faults_.session_delay);
    absl::MutexLock lock(&mutex_);
    ++seen_.sessions_opened;
    std::string token = request->token();
    const bool is_known = token.empty() || tokens_.count(token) > 0;
    if (token.empty()) token = absl::StrCat("token", ++last_token_);
    if (is_known) tokens_.insert(token);
    grpc::Status status;
    if (!is_known) status = {grpc::StatusCode::UNAUTHENTICATED, "session: got an unknown token"};
    if (faults_.broken_sessions.count(seen_.sessions_opened) > 0) {
      status = {grpc::StatusCode::UNAVAILABLE, "session: broken"};
    }
    streams_.push_back(std::make_unique<SessionStream>(token, status));
    return streams_.back().get();
  }

  grpc::Status Put(grpc::ServerContext* context,
                   grpc::ServerReaderWriter<v1::PutResponse, v1::PutRequest>* stream) override {
    v1::PutRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    v1::PutResponse response;
    std::string id;
    {
      absl::MutexLock lock(&mutex_);
      seen_.peers.insert(context->peer());
      ++seen_.puts;
      if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
      if (faults_.broken_puts.count(seen_.puts) > 0) return Broken();
      const grpc::Status status = BeginOrJoin(request, id);
      if (!status.ok()) return status;
      FillState(id, *response.mutable_state());
    }
    stream->Write(response);
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        if (faults_.ignores_chunks) {
          while (!context->IsCancelled()) {
            mutex_.AwaitWithTimeout(absl::Condition(&never_), absl::Milliseconds(20));
          }
          return grpc::Status::CANCELLED;
        }
        if (const auto done = uploads_[id].done) {
          *response.mutable_tensor() = *done;
          break;
        }
      }
      // If the client has closed its side, another stream may still send the rest.
      if (!stream->Read(&request)) return grpc::Status::OK;
      absl::MutexLock lock(&mutex_);
      if (faults_.broken_put_chunks.count(++offered_chunks_) > 0) return Broken();
      if (const grpc::Status status = Take(id, request.chunk()); !status.ok()) return status;
    }
    stream->Write(response);
    return grpc::Status::OK;
  }

  grpc::Status Get(grpc::ServerContext* context, const v1::GetRequest* request,
                   grpc::ServerWriter<v1::GetResponse>* writer) override {
    v1::GetResponse response;
    std::string bytes;
    {
      absl::MutexLock lock(&mutex_);
      seen_.peers.insert(context->peer());
      if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
      const StoredTensor* const tensor = Find(request->tensor());
      if (tensor == nullptr) return NoSuchTensor();
      *response.mutable_tensor() = tensor->info;
      const size_t from = static_cast<size_t>(request->offset());
      if (from > tensor->bytes.size()) return {grpc::StatusCode::OUT_OF_RANGE, "offset"};
      bytes = tensor->bytes.substr(
          from, request->has_bytes() ? static_cast<size_t>(request->bytes()) : std::string::npos);
    }
    writer->Write(response);
    const size_t most = static_cast<size_t>(faults_.max_chunk_bytes);
    for (size_t at = 0; at < bytes.size(); at += most) {
      {
        absl::MutexLock lock(&mutex_);
        if (faults_.broken_get_chunks.count(++sent_chunks_) > 0) return Broken();
      }
      const int64_t offset = request->offset() + static_cast<int64_t>(at);
      response.mutable_chunk()->set_offset(faults_.sends_wrong_offsets ? offset + 1 : offset);
      response.mutable_chunk()->set_data(bytes.substr(at, most));
      writer->Write(response);
    }
    return grpc::Status::OK;
  }

  grpc::Status List(grpc::ServerContext* context, const v1::ListTensorsRequest* /*request*/,
                    v1::ListTensorsResponse* response) override {
    absl::MutexLock lock(&mutex_);
    if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
    int64_t bytes = 0;
    for (const auto& [handle, tensor] : seen_.tensors) {
      *response->add_tensors() = tensor.info;
      bytes += tensor.info.bytes();
    }
    response->set_session_bytes(bytes);
    response->set_max_session_bytes(1 << 30);
    response->set_free_bytes((1 << 30) - bytes);
    return grpc::Status::OK;
  }

  grpc::Status Describe(grpc::ServerContext* context, const v1::TensorRef* request,
                        v1::TensorInfo* response) override {
    absl::MutexLock lock(&mutex_);
    if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
    const StoredTensor* const tensor = Find(*request);
    if (tensor == nullptr) return NoSuchTensor();
    *response = tensor->info;
    return grpc::Status::OK;
  }

  grpc::Status Delete(grpc::ServerContext* context, const v1::TensorRef* request,
                      v1::DeleteTensorResponse* /*response*/) override {
    absl::MutexLock lock(&mutex_);
    if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
    const StoredTensor* const tensor = Find(*request);
    if (tensor == nullptr) return NoSuchTensor();
    const std::string handle = tensor->info.handle();
    seen_.deleted.push_back(handle);
    seen_.tensors.erase(handle);
    return grpc::Status::OK;
  }

  grpc::Status KeepAlive(grpc::ServerContext* context, const v1::KeepAliveRequest* request,
                         v1::TensorInfo* response) override {
    absl::MutexLock lock(&mutex_);
    if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
    StoredTensor* const tensor = Find(request->tensor());
    if (tensor == nullptr) return NoSuchTensor();
    if (request->has_lease_ns()) tensor->info.set_lease_ns(request->lease_ns());
    if (request->has_pinned()) tensor->info.set_pinned(request->pinned());
    *response = tensor->info;
    return grpc::Status::OK;
  }

  grpc::Status Compress(grpc::ServerContext* context, const v1::CompressRequest* request,
                        v1::TensorInfo* response) override {
    absl::MutexLock lock(&mutex_);
    if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
    const StoredTensor* const tensor = Find(request->tensor());
    if (tensor == nullptr) return NoSuchTensor();
    v1::PutBegin begin;
    *begin.mutable_spec() = tensor->info.spec();
    begin.mutable_spec()->set_sparsity(v1::SPARSITY_2_4);
    *begin.mutable_keep() = request->keep();
    *response = Keep(begin, tensor->bytes);
    return grpc::Status::OK;
  }

  void BreakSessions(bool forgets) {
    absl::MutexLock lock(&mutex_);
    if (forgets) tokens_.clear();
    for (const auto& stream : streams_) stream->End(Broken());
  }

  // Keeps a tensor like one that a product makes.
  v1::TensorInfo Keep(const v1::PutBegin& begin, std::string bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    StoredTensor tensor;
    tensor.info.set_handle(absl::StrCat("handle----", 100000 + ++last_tensor_));
    tensor.info.set_name(begin.keep().name());
    *tensor.info.mutable_spec() = begin.spec();
    tensor.info.set_bytes(static_cast<int64_t>(bytes.size()));
    tensor.info.set_pinned(begin.keep().pinned());
    tensor.info.set_lease_ns(begin.keep().lease_ns());
    tensor.bytes = std::move(bytes);
    for (auto other = seen_.tensors.begin(); other != seen_.tensors.end();) {
      const bool is_replaced =
          !tensor.info.name().empty() && other->second.info.name() == tensor.info.name();
      other = is_replaced ? seen_.tensors.erase(other) : std::next(other);
    }
    const v1::TensorInfo info = tensor.info;
    seen_.tensors.emplace(info.handle(), std::move(tensor));
    return info;
  }

  grpc::Status Authenticate(const grpc::ServerContextBase& context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    seen_.times_left.push_back(absl::FromChrono(context.deadline()) - absl::Now());
    const auto token = context.client_metadata().find("gemmd-session");
    if (token != context.client_metadata().end() &&
        tokens_.count(std::string(token->second.data(), token->second.size())) > 0) {
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::UNAUTHENTICATED, "gemmd-session: got an unknown token"};
  }

  mutable absl::Mutex mutex_;
  Seen seen_ ABSL_GUARDED_BY(mutex_);

 private:
  StoredTensor* Find(const v1::TensorRef& ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto& [handle, tensor] : seen_.tensors) {
      if (handle == ref.handle()) return &tensor;
      if (!ref.name().empty() && tensor.info.name() == ref.name()) return &tensor;
    }
    return nullptr;
  }

  grpc::Status BeginOrJoin(const v1::PutRequest& request, std::string& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (request.has_join()) {
      id = request.join();
      if (uploads_.count(id) > 0) return grpc::Status::OK;
      return {grpc::StatusCode::NOT_FOUND, "upload: got an unknown id"};
    }
    const int64_t bytes = SizeOperand("spec", ShapeOf(request.begin().spec()))->full;
    seen_.begun.push_back(request.begin());
    if (bytes > faults_.max_bytes) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED,
              absl::StrCat("tensors: got ", bytes, " bytes, want at most ", faults_.max_bytes)};
    }
    id = absl::StrCat("upload----", 100000 + uploads_.size());
    RunningUpload& upload = uploads_[id];
    upload.begin = request.begin();
    upload.bytes.resize(static_cast<size_t>(bytes));
    for (const auto& [handle, tensor] : seen_.tensors) {
      const auto digest = Sha256Of(std::as_bytes(std::span(tensor.bytes)));
      if (digest != request.begin().sha256()) continue;
      upload.done = Keep(upload.begin, tensor.bytes);
      return grpc::Status::OK;
    }
    if (bytes == 0) upload.done = Keep(upload.begin, "");
    return grpc::Status::OK;
  }

  void FillState(const std::string& id, v1::PutState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const RunningUpload& upload = uploads_[id];
    state.set_upload(id);
    state.set_max_chunk_bytes(faults_.max_chunk_bytes);
    if (upload.done.has_value()) return;
    for (const auto& [offset, bytes] : MissingOf(upload)) {
      v1::ByteRange& range = *state.add_missing();
      range.set_offset(offset);
      range.set_bytes(bytes);
    }
    if (faults_.wants_too_much) state.mutable_missing(0)->set_bytes(int64_t{1} << 62);
  }

  static std::map<int64_t, int64_t> MissingOf(const RunningUpload& upload) {
    std::map<int64_t, int64_t> missing;
    int64_t at = 0;
    for (const auto& [offset, end] : upload.has) {
      if (offset > at) missing[at] = offset - at;
      at = std::max(at, end);
    }
    const int64_t bytes = static_cast<int64_t>(upload.bytes.size());
    if (at < bytes) missing[at] = bytes - at;
    return missing;
  }

  grpc::Status Take(const std::string& id, const v1::PutChunk& chunk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    RunningUpload& upload = uploads_[id];
    const size_t at = static_cast<size_t>(chunk.offset());
    const size_t bytes = chunk.data().size();
    if (at + bytes > upload.bytes.size() || static_cast<int64_t>(bytes) > faults_.max_chunk_bytes) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "chunk: got bytes outside of the tensor"};
    }
    ++seen_.chunks;
    upload.bytes.replace(at, bytes, chunk.data());
    int64_t& end = upload.has[chunk.offset()];
    end = std::max(end, chunk.offset() + static_cast<int64_t>(bytes));
    if (!MissingOf(upload).empty()) return grpc::Status::OK;
    const std::string& wanted = upload.begin.sha256();
    if (!wanted.empty() && wanted != Sha256Of(std::as_bytes(std::span(upload.bytes)))) {
      return {grpc::StatusCode::DATA_LOSS, "sha256: got bytes of another hash"};
    }
    upload.done = Keep(upload.begin, upload.bytes);
    return grpc::Status::OK;
  }

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

// Keeps requests. Answers those whose D stays with a tensor of f32 zeros, others with nothing.
class FakeTensors::Gemm : public v1::Gemm::Service {
 public:
  explicit Gemm(FakeTensors::Service& tensors) : tensors_(tensors) {}

  grpc::Status Multiply(grpc::ServerContext* context, const v1::MultiplyRequest* request,
                        v1::MultiplyResponse* response) override {
    absl::MutexLock lock(&tensors_.mutex_);
    if (const grpc::Status status = tensors_.Authenticate(*context); !status.ok()) return status;
    tensors_.seen_.products.push_back(*request);
    response->mutable_d()->set_type(v1::ELEMENT_TYPE_F32);
    if (!request->d().has_new_tensor()) return grpc::Status::OK;
    v1::PutBegin begin;
    begin.mutable_spec()->set_type(v1::ELEMENT_TYPE_F32);
    begin.mutable_spec()->set_rows(request->m());
    begin.mutable_spec()->set_columns(request->n());
    *begin.mutable_keep() = request->d().new_tensor();
    const std::string zeros(static_cast<size_t>(request->m() * request->n()) * sizeof(float), '\0');
    *response->mutable_tensor() = tensors_.Keep(begin, zeros);
    return grpc::Status::OK;
  }

  FakeTensors::Service& tensors_;
};

// Says when the server started.
class FakeTensors::Registry : public v1::Registry::Service {
 public:
  grpc::Status GetStatistics(grpc::ServerContext* /*context*/,
                             const v1::GetStatisticsRequest* /*request*/,
                             v1::GetStatisticsResponse* response) override {
    response->set_started_unix_ns(start);
    return grpc::Status::OK;
  }

  std::atomic<int64_t> start = 1;
};

FakeTensors::FakeTensors(TensorFaults faults)
    : service_(std::make_unique<Service>(std::move(faults))),
      gemm_(std::make_unique<Gemm>(*service_)),
      registry_(std::make_unique<Registry>()) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(service_.get());
  builder.RegisterService(gemm_.get());
  builder.RegisterService(registry_.get());
  server_ = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
}

FakeTensors::~FakeTensors() {
  // A deadline in the past cancels calls that are still open.
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

void FakeTensors::BreakSessions(bool forgets) { service_->BreakSessions(forgets); }
void FakeTensors::Restart() {
  ++registry_->start;
  service_->BreakSessions(true);
}
FakeTensors::Seen FakeTensors::seen() const {
  absl::MutexLock lock(&service_->mutex_);
  return service_->seen_;
}

}  // namespace gemmd
