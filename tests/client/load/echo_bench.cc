// SPDX-License-Identifier: Apache-2.0
//
// The number of small calls a second that gemmload's engine makes, compared to a bare gRPC callback
// client, against the same bare callback server in this process, in turns of a second. Prints both
// and the ratio.
// usage: load_echo_bench [CONCURRENCY [ROUNDS]]
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/load/client_machine.h"
#include "client/load/load_run.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace gemmd {
namespace {

constexpr int64_t kRoundNs = 1'000'000'000;

// Answers at once with a D of the right size.
class EchoService : public v1::Gemm::WithCallbackMethod_Multiply<v1::Gemm::Service> {
  grpc::ServerUnaryReactor* Multiply(grpc::CallbackServerContext* context,
                                     const v1::MultiplyRequest* request,
                                     v1::MultiplyResponse* response) override {
    response->mutable_d()->set_data(request->a().data());
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

// The minimum that a callback client must do: keeps calls in flight and counts them.
class BareClient {
 public:
  explicit BareClient(const std::string& address)
      : stub_(v1::Gemm::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
  }

  double CallsPerSecond(const v1::MultiplyRequest& request, int concurrency) {
    request_ = &request;
    calls_ = 0;
    const int64_t start_ns = SteadyNowNs();
    until_ns_ = start_ns + kRoundNs;
    {
      absl::MutexLock lock(&mutex_);
      in_flight_ = concurrency;
    }
    for (int i = 0; i < concurrency; ++i) Start();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &BareClient::IsIdle));
    return static_cast<double>(calls_.load()) /
           (static_cast<double>(SteadyNowNs() - start_ns) * 1e-9);
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::MultiplyResponse response;
  };

  void Start() {
    Call* const call = new Call;
    call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    stub_->async()->Multiply(&call->context, request_, &call->response,
                             [this, call](const grpc::Status& status) {
                               delete call;
                               if (!status.ok()) std::abort();
                               calls_.fetch_add(1, std::memory_order_relaxed);
                               if (SteadyNowNs() < until_ns_) return Start();
                               absl::MutexLock lock(&mutex_);
                               --in_flight_;
                             });
  }
  bool IsIdle() const { return in_flight_ == 0; }

  std::unique_ptr<v1::Gemm::Stub> stub_;
  const v1::MultiplyRequest* request_ = nullptr;
  int64_t until_ns_ = 0;
  std::atomic<int64_t> calls_ = 0;
  absl::Mutex mutex_;
  int in_flight_ = 0;
};

void Compare(const std::string& address, int concurrency, int rounds) {
  Mix mix(1);
  mix[0].m = mix[0].n = mix[0].k = 8;
  std::vector<Payload> payloads;
  payloads.push_back(MakePayload(mix[0], OperandValues::kIntegers, 1).value());
  const MixPicker picker(mix, 1);
  Verifier verifier(payloads, 0, 1);
  LoadTargets targets;
  ClientOptions options;
  options.max_attempts = 1;  // As gemmload sets it without --retries.
  targets.clients.push_back(Client::Create(address, options).value());
  targets.payloads = &payloads;
  targets.picker = &picker;
  targets.verifier = &verifier;
  const LoadStep step = {
      .loop = ClosedLoop{.concurrency = concurrency}, .warmup_ns = 0, .duration_ns = kRoundNs};
  const StopRequests stop = 0;
  BareClient bare(address);

  bare.CallsPerSecond(*payloads[0].request, concurrency);  // Warm-up.
  RunLoad(targets, step, stop, nullptr);
  double bare_sum = 0;
  double load_sum = 0;
  for (int round = 0; round < rounds; ++round) {
    const int64_t start_ns = ProcessCpuNs();
    const double bare_rate = bare.CallsPerSecond(*payloads[0].request, concurrency);
    const int64_t between_ns = ProcessCpuNs();
    const double load_rate = RunLoad(targets, step, stop, nullptr).rate;
    const int64_t end_ns = ProcessCpuNs();
    // CPU time per call at both ends, which is meaningful on a busy machine, too. Rounds take a
    // second.
    std::printf("bare %8.0f/s %5.1f us of CPU  gemmload %8.0f/s %5.1f us of CPU  ratio %.3f\n",
                bare_rate, static_cast<double>(between_ns - start_ns) * 1e-3 / bare_rate, load_rate,
                static_cast<double>(end_ns - between_ns) * 1e-3 / load_rate, load_rate / bare_rate);
    bare_sum += bare_rate;
    load_sum += load_rate;
  }
  std::printf(
      "%d calls in flight, %d rounds of 1 s: gemmload makes %.3f of the bare client's calls a "
      "second (wanted: at least 0.9, on an idle machine)\n",
      concurrency, rounds, load_sum / bare_sum);
}

int Main(int concurrency, int rounds) {
  EchoService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  Compare(absl::StrCat("127.0.0.1:", port), concurrency, rounds);
  server->Shutdown();
  return 0;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) {
  // As in gemmload's main function.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const int concurrency = argc > 1 ? std::atoi(argv[1]) : 16;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  return gemmd::Main(concurrency, rounds);
}
