// SPDX-License-Identifier: Apache-2.0
#include "tests/client/fake_service.h"

#include <chrono>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gemmd/v1/instructions.pb.h"
#include "gemmd/v1/statistics.pb.h"
#include "grpcpp/health_check_service_interface.h"

namespace gemmd {
namespace {

grpc::Status Unscripted() {
  return {grpc::StatusCode::UNIMPLEMENTED, "the test has no script for this"};
}

// Stays open until the client cancels the call.
class OpenCall : public grpc::ServerUnaryReactor {
 public:
  explicit OpenCall(std::atomic<int>& abandoned) : abandoned_(abandoned) {}
  void OnCancel() override {
    abandoned_.fetch_add(1);
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  std::atomic<int>& abandoned_;
};

}  // namespace

class FakeServer::Gemm : public v1::Gemm::WithCallbackMethod_Multiply<v1::Gemm::Service> {
 public:
  explicit Gemm(FakeScript script) : script_(std::move(script)) {}

  grpc::ServerUnaryReactor* Multiply(grpc::CallbackServerContext* context,
                                     const v1::MultiplyRequest* request,
                                     v1::MultiplyResponse* response) override {
    calls_.fetch_add(1);
    {
      absl::MutexLock lock(&mutex_);
      peers_.insert(context->peer());
    }
    const std::optional<grpc::Status> status =
        script_.multiply ? script_.multiply(*context, *request, *response) : Unscripted();
    if (!status.has_value()) return new OpenCall(abandoned_);
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(*status);
    return reactor;
  }

  grpc::Status MultiplyStream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::MultiplyStreamResponse, v1::MultiplyStreamRequest>* stream)
      override {
    return script_.multiply_stream ? script_.multiply_stream(*context, *stream) : Unscripted();
  }

  int calls() const { return calls_.load(); }
  int abandoned() const { return abandoned_.load(); }
  int peers() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int>(peers_.size());
  }

 private:
  FakeScript script_;
  std::atomic<int> calls_ = 0;
  std::atomic<int> abandoned_ = 0;
  mutable absl::Mutex mutex_;
  std::set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
};

class FakeServer::Registry : public v1::Registry::Service {
 public:
  explicit Registry(FakeScript script) : script_(std::move(script)) {}

  grpc::Status ListKernels(grpc::ServerContext* /*context*/, const v1::ListKernelsRequest* request,
                           v1::ListKernelsResponse* response) override {
    return script_.list_kernels ? script_.list_kernels(*request, *response) : Unscripted();
  }
  grpc::Status ListDevices(grpc::ServerContext* /*context*/,
                           const v1::ListDevicesRequest* /*request*/,
                           v1::ListDevicesResponse* response) override {
    return script_.list_devices ? script_.list_devices(*response) : Unscripted();
  }
  grpc::Status Explain(grpc::ServerContext* /*context*/, const v1::ExplainRequest* request,
                       v1::ExplainResponse* response) override {
    return script_.explain ? script_.explain(*request, *response) : Unscripted();
  }
  grpc::Status GetServerInfo(grpc::ServerContext* /*context*/,
                             const v1::GetServerInfoRequest* /*request*/,
                             v1::GetServerInfoResponse* response) override {
    return script_.get_server_info ? script_.get_server_info(*response) : Unscripted();
  }
  grpc::Status GetStatistics(grpc::ServerContext* /*context*/,
                             const v1::GetStatisticsRequest* /*request*/,
                             v1::GetStatisticsResponse* response) override {
    return script_.get_statistics ? script_.get_statistics(*response) : Unscripted();
  }
  grpc::Status ListInstructions(grpc::ServerContext* /*context*/,
                                const v1::ListInstructionsRequest* request,
                                v1::ListInstructionsResponse* response) override {
    return script_.list_instructions ? script_.list_instructions(*request, *response)
                                     : Unscripted();
  }
  grpc::Status DescribeFragment(grpc::ServerContext* /*context*/,
                                const v1::DescribeFragmentRequest* request,
                                v1::DescribeFragmentResponse* response) override {
    return script_.describe_fragment ? script_.describe_fragment(*request, *response)
                                     : Unscripted();
  }

 private:
  FakeScript script_;
};

FakeServer::FakeServer(FakeScript script)
    : gemm_(std::make_unique<Gemm>(script)),
      registry_(std::make_unique<Registry>(std::move(script))) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(gemm_.get());
  builder.RegisterService(registry_.get());
  server_ = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
  SetServing(true);
}

FakeServer::~FakeServer() {
  // A deadline in the past cancels calls that are still open.
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

int FakeServer::multiply_calls() const { return gemm_->calls(); }
int FakeServer::abandoned_calls() const { return gemm_->abandoned(); }
int FakeServer::connections() const { return gemm_->peers(); }
void FakeServer::SetServing(bool is_serving) {
  // A server may report the same state twice, as this one does: once for all services, once for
  // this one.
  server_->GetHealthCheckService()->SetServingStatus(is_serving);
  server_->GetHealthCheckService()->SetServingStatus("gemmd.v1.Gemm", is_serving);
}

FakeScript ComputingScript() {
  FakeScript script;
  script.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest& request,
                       v1::MultiplyResponse& response) -> std::optional<grpc::Status> {
    const size_t m = static_cast<size_t>(request.m());
    const size_t n = static_cast<size_t>(request.n());
    const size_t k = static_cast<size_t>(request.k());
    const auto floats = [](const std::string& bytes) {
      std::vector<float> values(bytes.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    };
    const std::vector<float> a = floats(request.a().data());
    const std::vector<float> b = floats(request.b().data());
    std::vector<float> d(m * n);
    for (size_t i = 0; i < m; ++i) {
      for (size_t l = 0; l < k; ++l) {
        for (size_t j = 0; j < n; ++j) d[i * n + j] += a[i * k + l] * b[l * n + j];
      }
    }
    response.set_request_id(request.request_id());
    response.set_kernel("fake_f32");
    response.set_device("fake");
    response.set_operations(2 * request.m() * request.n() * request.k());
    response.mutable_timing()->set_compute_ns(1000);
    response.mutable_timing()->set_total_ns(1500);
    v1::Matrix& matrix = *response.mutable_d();
    matrix.set_type(v1::ELEMENT_TYPE_F32);
    matrix.set_rows(request.m());
    matrix.set_columns(request.n());
    matrix.set_batch(1);
    matrix.set_leading_dimension(request.n());
    matrix.set_batch_stride(static_cast<int64_t>(d.size() * sizeof(float)));
    matrix.set_data(d.data(), d.size() * sizeof(float));
    return grpc::Status::OK;
  };
  return script;
}

FakeScript KeepingScript(v1::MultiplyRequest& sent) {
  FakeScript script;
  script.multiply = [&](grpc::CallbackServerContext&, const v1::MultiplyRequest& request,
                        v1::MultiplyResponse&) {
    sent = request;
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "kernel: got nothing");
  };
  return script;
}

}  // namespace gemmd
