// SPDX-License-Identifier: Apache-2.0
#include "tests/client/fake_tensors_service.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/operand_size.h"
#include "gemmd/tensor.h"

namespace gemmd {
namespace {

grpc::Status Broken() { return {grpc::StatusCode::UNAVAILABLE, "the test broke it"}; }

grpc::Status NoSuchTensor() {
  return {grpc::StatusCode::NOT_FOUND, "tensor: got none of that name"};
}

}  // namespace

grpc::ServerWriteReactor<v1::OpenSessionResponse>* FakeTensorsService::OpenSession(
    grpc::CallbackServerContext* /*context*/, const v1::OpenSessionRequest* request) {
  absl::SleepFor(faults_.session_delay);
  absl::MutexLock lock(&mutex_);
  ++sessions_opened_;
  std::string token = request->token();
  const bool is_known = token.empty() || tokens_.count(token) > 0;
  if (token.empty()) token = absl::StrCat("token", ++last_token_);
  if (is_known) tokens_.insert(token);
  grpc::Status status;
  if (!is_known) status = {grpc::StatusCode::UNAUTHENTICATED, "session: got an unknown token"};
  if (faults_.broken_sessions.count(sessions_opened_) > 0) {
    status = {grpc::StatusCode::UNAVAILABLE, "session: broken"};
  }
  streams_.push_back(std::make_unique<SessionStream>(token, status));
  return streams_.back().get();
}

grpc::Status FakeTensorsService::Put(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::PutResponse, v1::PutRequest>* stream) {
  v1::PutRequest request;
  if (!stream->Read(&request)) return grpc::Status::OK;
  v1::PutResponse response;
  std::string id;
  {
    absl::MutexLock lock(&mutex_);
    peers_.insert(context->peer());
    ++puts_;
    if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
    if (faults_.broken_puts.count(puts_) > 0) return Broken();
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
      if (const auto done = DoneOf(id)) {
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

grpc::Status FakeTensorsService::Get(grpc::ServerContext* context, const v1::GetRequest* request,
                                     grpc::ServerWriter<v1::GetResponse>* writer) {
  v1::GetResponse response;
  std::string bytes;
  {
    absl::MutexLock lock(&mutex_);
    peers_.insert(context->peer());
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

grpc::Status FakeTensorsService::List(grpc::ServerContext* context,
                                      const v1::ListTensorsRequest* /*request*/,
                                      v1::ListTensorsResponse* response) {
  absl::MutexLock lock(&mutex_);
  if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
  int64_t bytes = 0;
  for (const auto& [handle, tensor] : tensors_) {
    *response->add_tensors() = tensor.info;
    bytes += tensor.info.bytes();
  }
  response->set_session_bytes(bytes);
  response->set_max_session_bytes(1 << 30);
  response->set_free_bytes((1 << 30) - bytes);
  return grpc::Status::OK;
}

grpc::Status FakeTensorsService::Describe(grpc::ServerContext* context,
                                          const v1::TensorRef* request, v1::TensorInfo* response) {
  absl::MutexLock lock(&mutex_);
  if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
  const StoredTensor* const tensor = Find(*request);
  if (tensor == nullptr) return NoSuchTensor();
  *response = tensor->info;
  return grpc::Status::OK;
}

grpc::Status FakeTensorsService::Delete(grpc::ServerContext* context, const v1::TensorRef* request,
                                        v1::DeleteTensorResponse* /*response*/) {
  absl::MutexLock lock(&mutex_);
  if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
  const StoredTensor* const tensor = Find(*request);
  if (tensor == nullptr) return NoSuchTensor();
  const std::string handle = tensor->info.handle();
  deleted_.push_back(handle);
  tensors_.erase(handle);
  return grpc::Status::OK;
}

grpc::Status FakeTensorsService::KeepAlive(grpc::ServerContext* context,
                                           const v1::KeepAliveRequest* request,
                                           v1::TensorInfo* response) {
  absl::MutexLock lock(&mutex_);
  if (const grpc::Status status = Authenticate(*context); !status.ok()) return status;
  StoredTensor* const tensor = Find(request->tensor());
  if (tensor == nullptr) return NoSuchTensor();
  if (request->has_lease_ns()) tensor->info.set_lease_ns(request->lease_ns());
  if (request->has_pinned()) tensor->info.set_pinned(request->pinned());
  *response = tensor->info;
  return grpc::Status::OK;
}

grpc::Status FakeTensorsService::Compress(grpc::ServerContext* context,
                                          const v1::CompressRequest* request,
                                          v1::TensorInfo* response) {
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

void FakeTensorsService::BreakSessions(bool forgets) {
  absl::MutexLock lock(&mutex_);
  if (forgets) tokens_.clear();
  for (const auto& stream : streams_) stream->End(Broken());
}

v1::TensorInfo FakeTensorsService::Keep(const v1::PutBegin& begin, std::string bytes) {
  StoredTensor tensor;
  tensor.info.set_handle(absl::StrCat("handle----", 100000 + ++last_tensor_));
  tensor.info.set_name(begin.keep().name());
  *tensor.info.mutable_spec() = begin.spec();
  tensor.info.set_bytes(static_cast<int64_t>(bytes.size()));
  tensor.info.set_pinned(begin.keep().pinned());
  tensor.info.set_lease_ns(begin.keep().lease_ns());
  tensor.bytes = std::move(bytes);
  for (auto other = tensors_.begin(); other != tensors_.end();) {
    const bool is_replaced =
        !tensor.info.name().empty() && other->second.info.name() == tensor.info.name();
    other = is_replaced ? tensors_.erase(other) : std::next(other);
  }
  const v1::TensorInfo info = tensor.info;
  tensors_.emplace(info.handle(), std::move(tensor));
  return info;
}

grpc::Status FakeTensorsService::Authenticate(const grpc::ServerContextBase& context) {
  times_left_.push_back(absl::FromChrono(context.deadline()) - absl::Now());
  const auto token = context.client_metadata().find("gemmd-session");
  if (token != context.client_metadata().end() &&
      tokens_.count(std::string(token->second.data(), token->second.size())) > 0) {
    return grpc::Status::OK;
  }
  return {grpc::StatusCode::UNAUTHENTICATED, "gemmd-session: got an unknown token"};
}

StoredTensor* FakeTensorsService::Find(const v1::TensorRef& ref) {
  for (auto& [handle, tensor] : tensors_) {
    if (handle == ref.handle()) return &tensor;
    if (!ref.name().empty() && tensor.info.name() == ref.name()) return &tensor;
  }
  return nullptr;
}

grpc::Status FakeTensorsService::BeginOrJoin(const v1::PutRequest& request, std::string& id) {
  if (request.has_join()) {
    id = request.join();
    if (uploads_.count(id) > 0) return grpc::Status::OK;
    return {grpc::StatusCode::NOT_FOUND, "upload: got an unknown id"};
  }
  const int64_t bytes = SizeOperand("spec", ShapeOf(request.begin().spec()))->full;
  begun_.push_back(request.begin());
  if (bytes > faults_.max_bytes) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrCat("tensors: got ", bytes, " bytes, want at most ", faults_.max_bytes)};
  }
  id = absl::StrCat("upload----", 100000 + uploads_.size());
  RunningUpload& upload = uploads_[id];
  upload.begin = request.begin();
  upload.bytes.resize(static_cast<size_t>(bytes));
  for (const auto& [handle, tensor] : tensors_) {
    const auto digest = Sha256Of(std::as_bytes(std::span(tensor.bytes)));
    if (digest != request.begin().sha256()) continue;
    upload.done = Keep(upload.begin, tensor.bytes);
    return grpc::Status::OK;
  }
  if (bytes == 0) upload.done = Keep(upload.begin, "");
  return grpc::Status::OK;
}

void FakeTensorsService::FillState(const std::string& id, v1::PutState& state) {
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

std::map<int64_t, int64_t> FakeTensorsService::MissingOf(const RunningUpload& upload) {
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

std::optional<v1::TensorInfo> FakeTensorsService::DoneOf(const std::string& id) {
  return uploads_[id].done;
}

grpc::Status FakeTensorsService::Take(const std::string& id, const v1::PutChunk& chunk) {
  RunningUpload& upload = uploads_[id];
  const size_t at = static_cast<size_t>(chunk.offset());
  const size_t bytes = chunk.data().size();
  if (at + bytes > upload.bytes.size() || static_cast<int64_t>(bytes) > faults_.max_chunk_bytes) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "chunk: got bytes outside of the tensor"};
  }
  ++chunks_;
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

}  // namespace gemmd
