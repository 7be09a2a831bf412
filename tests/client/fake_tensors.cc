// SPDX-License-Identifier: Apache-2.0
#include "tests/client/fake_tensors.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gemmd/v1/registry.grpc.pb.h"
#include "tests/client/fake_tensors_service.h"

namespace gemmd {

// Keeps requests. Answers those whose D stays with a tensor of f32 zeros, others with nothing.
class FakeTensors::Gemm : public v1::Gemm::Service {
 public:
  explicit Gemm(FakeTensorsService& tensors) : tensors_(tensors) {}

  grpc::Status Multiply(grpc::ServerContext* context, const v1::MultiplyRequest* request,
                        v1::MultiplyResponse* response) override {
    absl::MutexLock lock(&tensors_.mutex_);
    if (const grpc::Status status = tensors_.Authenticate(*context); !status.ok()) return status;
    products.push_back(*request);
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

  FakeTensorsService& tensors_;
  std::vector<v1::MultiplyRequest> products;  // Under the lock of the tensors.
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
    : service_(std::make_unique<FakeTensorsService>(std::move(faults))),
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

const std::string& FakeTensors::address() const { return address_; }
void FakeTensors::BreakSessions(bool forgets) { service_->BreakSessions(forgets); }
void FakeTensors::Restart() {
  ++registry_->start;
  service_->BreakSessions(true);
}
int FakeTensors::sessions_opened() const {
  absl::MutexLock lock(&service_->mutex_);
  return service_->sessions_opened_;
}
int FakeTensors::puts() const {
  absl::MutexLock lock(&service_->mutex_);
  return service_->puts_;
}
int FakeTensors::chunks() const {
  absl::MutexLock lock(&service_->mutex_);
  return service_->chunks_;
}
int FakeTensors::connections() const {
  absl::MutexLock lock(&service_->mutex_);
  return static_cast<int>(service_->peers_.size());
}
std::vector<std::string> FakeTensors::deleted() const {
  absl::MutexLock lock(&service_->mutex_);
  return service_->deleted_;
}
std::vector<v1::PutBegin> FakeTensors::begun() const {
  absl::MutexLock lock(&service_->mutex_);
  return service_->begun_;
}
std::vector<v1::MultiplyRequest> FakeTensors::products() const {
  absl::MutexLock lock(&service_->mutex_);
  return gemm_->products;
}
std::string FakeTensors::bytes_of(const std::string& handle) const {
  absl::MutexLock lock(&service_->mutex_);
  const auto tensor = service_->tensors_.find(handle);
  return tensor == service_->tensors_.end() ? "" : tensor->second.bytes;
}
std::vector<absl::Duration> FakeTensors::times_left() const {
  absl::MutexLock lock(&service_->mutex_);
  return service_->times_left_;
}
size_t FakeTensors::tensors() const {
  absl::MutexLock lock(&service_->mutex_);
  return service_->tensors_.size();
}

}  // namespace gemmd
