// SPDX-License-Identifier: Apache-2.0
//
// Registry, health and reflection over the wire.
#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "tests/server/wire/running_server.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

class RegistryTest : public ::testing::Test {
 protected:
  template <typename Call, typename Request, typename Response>
  grpc::Status Ask(Call call, const Request& request, Response* response) {
    grpc::ClientContext context;
    AllowTime(context);
    return (running_.registry().*call)(&context, request, response);
  }

  RunningServer running_{TestDevice::kCpu};
};

TEST_F(RegistryTest, ListsTheWholeCatalogueInOrder) {
  v1::ListKernelsResponse response;
  ASSERT_TRUE(Ask(&v1::Registry::Stub::ListKernels, v1::ListKernelsRequest(), &response).ok());
  ASSERT_EQ(response.kernels_size(), static_cast<int>(Catalog().size()));
  const Target target = HostTarget();
  for (int i = 0; i < response.kernels_size(); ++i) {
    const v1::Kernel& wire = response.kernels(i);
    const Kernel& kernel = *(Catalog().begin() + i);
    EXPECT_EQ(wire.name(), kernel.name);
    EXPECT_NE(wire.description(), "");
    ASSERT_EQ(wire.availability_size(), 1);
    EXPECT_EQ(wire.availability(0).device(), "cpu");
    EXPECT_EQ(wire.availability(0).available(), kernel.available(target).ok());
    EXPECT_EQ(wire.availability(0).reason().empty(), wire.availability(0).available());
  }
}

TEST_F(RegistryTest, FiltersByPattern) {
  v1::ListKernelsRequest request;
  request.set_name_pattern("openblas.f64*");
  v1::ListKernelsResponse response;
  ASSERT_TRUE(Ask(&v1::Registry::Stub::ListKernels, request, &response).ok());
  ASSERT_GT(response.kernels_size(), 0);
  for (const v1::Kernel& kernel : response.kernels())
    EXPECT_THAT(kernel.name(), HasSubstr("openblas.f64"));
}

TEST_F(RegistryTest, ListsTheDevice) {
  ASSERT_TRUE(MultiplySmall(running_.gemm()).ok());
  v1::ListDevicesResponse response;
  ASSERT_TRUE(Ask(&v1::Registry::Stub::ListDevices, v1::ListDevicesRequest(), &response).ok());
  ASSERT_EQ(response.devices_size(), 1);
  const v1::Device& device = response.devices(0);
  EXPECT_EQ(device.name(), "cpu");
  EXPECT_EQ(device.kind(), "cpu");
  EXPECT_TRUE(device.ready());
  EXPECT_EQ(device.threads(), 1);
  EXPECT_GT(device.memory_bytes(), 0);
  EXPECT_EQ(device.not_ready_reason(), "");
  EXPECT_EQ(device.multiprocessors(), 0);
  EXPECT_EQ(device.completed_requests(), 1);
  EXPECT_GT(device.rates_size(), 0);
}

TEST_F(RegistryTest, ExplainsTheChoiceAndEveryRefusal) {
  v1::ExplainRequest request;
  *request.mutable_request() = IntegerRequest(0, 0, 0);
  request.mutable_request()->set_m(4095);
  request.mutable_request()->set_n(4097);
  request.mutable_request()->set_k(4093);
  v1::ExplainResponse response;
  const grpc::Status status = Ask(&v1::Registry::Stub::Explain, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.device(), "cpu");
  ASSERT_GT(response.candidates_size(), 1);
  std::set<std::string> named;
  for (const v1::Candidate& candidate : response.candidates()) {
    EXPECT_TRUE(named.insert(candidate.kernel()).second);
    EXPECT_GT(candidate.predicted_ns(), 0);
    EXPECT_EQ(candidate.expected_ns(), candidate.predicted_ns());  // There was no product yet.
    EXPECT_NE(candidate.reason(), "");
  }
  // In the order of preference: none is slower than a later one by more than the noise of the
  // rates.
  for (int i = 0; i < response.candidates_size(); ++i) {
    const double at_least_ns = 0.9 * static_cast<double>(response.candidates(i).predicted_ns());
    for (int j = i + 1; j < response.candidates_size(); ++j) {
      EXPECT_GE(static_cast<double>(response.candidates(j).predicted_ns()), at_least_ns - 1)
          << response.candidates(i).kernel() << ", " << response.candidates(j).kernel();
    }
  }
  for (const v1::Refusal& refusal : response.refusals()) {
    EXPECT_TRUE(named.insert(refusal.kernel()).second);
    EXPECT_NE(refusal.reason(), "");
  }
  EXPECT_EQ(named.size(), Catalog(DeviceKind::kCpu).size());
  EXPECT_EQ(response.operations(), int64_t{2} * 4095 * 4097 * 4093);
  EXPECT_EQ(response.bytes_written(), int64_t{4} * 4095 * 4097);
}

TEST_F(RegistryTest, ExplainNamesTheKernelThatMultiplyTakes) {
  const v1::MultiplyRequest multiply = IntegerRequest(33, 44, 55);
  v1::ExplainRequest request;
  *request.mutable_request() = multiply;
  v1::ExplainResponse explained;
  ASSERT_TRUE(Ask(&v1::Registry::Stub::Explain, request, &explained).ok());
  grpc::ClientContext context;
  AllowTime(context);
  v1::MultiplyResponse product;
  ASSERT_TRUE(running_.gemm().Multiply(&context, multiply, &product).ok());
  EXPECT_EQ(explained.candidates(0).kernel(), product.kernel());
}

TEST_F(RegistryTest, ExplainRefusesWhatMultiplyRefuses) {
  v1::ExplainRequest request;
  v1::ExplainResponse response;
  EXPECT_EQ(Ask(&v1::Registry::Stub::Explain, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  *request.mutable_request() = IntegerRequest(1, 1, 1);
  request.mutable_request()->set_kernel("nothing.like.this");
  EXPECT_EQ(Ask(&v1::Registry::Stub::Explain, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(RegistryTest, TellsWhatItHasCounted) {
  ASSERT_TRUE(MultiplySmall(running_.gemm()).ok());
  v1::GetStatisticsResponse response;
  ASSERT_TRUE(Ask(&v1::Registry::Stub::GetStatistics, v1::GetStatisticsRequest(), &response).ok());
  EXPECT_GT(response.uptime_ns(), 0);
  EXPECT_FALSE(response.draining());
  EXPECT_EQ(response.admissions(), 1);
  EXPECT_EQ(response.admitted_requests(), 0);
  EXPECT_EQ(response.max_admitted_requests(), 4096);
  EXPECT_EQ(response.max_admitted_bytes(), int64_t{4} << 30);
  EXPECT_EQ(response.refusals_size(), 4 + kRefusalReasons);
  ASSERT_EQ(response.devices_size(), 1);
  const v1::DeviceStatistics& device = response.devices(0);
  EXPECT_EQ(device.name(), "cpu");
  EXPECT_TRUE(device.ready());
  ASSERT_EQ(device.ends_size(), 1);
  EXPECT_EQ(device.ends(0).name(), "OK");
  EXPECT_EQ(device.ends(0).count(), 1);
  EXPECT_EQ(device.operations(), 2 * 3 * 4 * 5);
  EXPECT_EQ(device.bytes_read(), 4 * (3 * 5 + 5 * 4));
  EXPECT_EQ(device.bytes_written(), 4 * 3 * 4);
  EXPECT_GT(device.busy_ns(), 0);
  EXPECT_EQ(device.total().counts_size(), device.total().bounds_ns_size() + 1);
  EXPECT_EQ(device.canaries_passed(), 1);
  EXPECT_FALSE(device.has_gpu());
  ASSERT_EQ(response.kernels_size(), 1);
  EXPECT_EQ(response.kernels(0).device_kind(), "cpu");
  EXPECT_EQ(response.kernels(0).products(), 1);
  EXPECT_GT(response.kernels(0).compute_ns(), 0);
}

TEST_F(RegistryTest, TellsVersionLimitsAndLibraries) {
  v1::GetServerInfoResponse response;
  const int64_t before_ns = absl::GetCurrentTimeNanos();
  ASSERT_TRUE(Ask(&v1::Registry::Stub::GetServerInfo, v1::GetServerInfoRequest(), &response).ok());
  EXPECT_GE(response.unix_ns(), before_ns);
  EXPECT_LE(response.unix_ns(), absl::GetCurrentTimeNanos());
  EXPECT_EQ(response.version(), GEMMD_VERSION);
  EXPECT_EQ(response.default_device(), "cpu");
  EXPECT_FALSE(response.draining());
  EXPECT_GT(response.uptime_ns(), 0);
  EXPECT_EQ(response.limits().max_message_bytes(), int64_t{512} << 20);
  EXPECT_EQ(response.limits().max_concurrent_streams(), 100);
  EXPECT_EQ(response.limits().max_stream_requests(), 1024);
  std::set<std::string> names;
  for (const v1::Library& library : response.libraries()) {
    EXPECT_NE(library.version(), "") << library.name();
    names.insert(library.name());
  }
  for (const char* name : {"gRPC", "Protobuf", "oneDNN", "OpenBLAS"})
    EXPECT_EQ(names.count(name), 1u);
}

// Calls a method without generated code and returns the raw answer.
grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& request, std::string* response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  AllowTime(context);
  grpc::CompletionQueue queue;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer bytes(&slice, 1);
  const auto call = stub.PrepareUnaryCall(&context, method, bytes, &queue);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  grpc::Slice whole;
  if (status.ok() && answer.DumpToSingleSlice(&whole).ok()) {
    response->assign(reinterpret_cast<const char*>(whole.begin()), whole.size());
  }
  return status;
}

TEST_F(RegistryTest, RefusesWhatItCannotRead) {
  const std::string method = "/gemmd.v1.Registry/ListKernels";
  std::string response;
  grpc::Status status = CallRaw(running_.channel(), method, "\xff\xff", &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "message: got bytes that are not a message of this method");
  v1::ListKernelsRequest request;
  google::protobuf::UnknownFieldSet* const unknown =
      request.GetReflection()->MutableUnknownFields(&request);
  for (int i = 0; i < 1000; ++i) unknown->AddGroup(1000);
  status = CallRaw(running_.channel(), method, request.SerializeAsString(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), testing::HasSubstr("of unknown fields, want at most 1024"));
  unknown->Clear();
  request.set_name_pattern(std::string(size_t{1} << 20, '*'));
  status = CallRaw(running_.channel(), method, request.SerializeAsString(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "request: got 1048580 bytes, want at most 4096");
  request.set_name_pattern(std::string(129, '*'));
  status = CallRaw(running_.channel(), method, request.SerializeAsString(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "name_pattern: got 129 bytes, want at most 128");
  EXPECT_TRUE(CallRaw(running_.channel(), method, "", &response).ok());
  v1::ListKernelsResponse all;
  EXPECT_TRUE(all.ParseFromString(response));
  EXPECT_EQ(all.kernels_size(), static_cast<int>(Catalog().size()));
}

TEST_F(RegistryTest, NamesThatMatchNothingGiveAnEmptyList) {
  v1::ListKernelsRequest request;
  request.set_name_pattern("nothing*");
  v1::ListKernelsResponse response;
  ASSERT_TRUE(Ask(&v1::Registry::Stub::ListKernels, request, &response).ok());
  EXPECT_EQ(response.kernels_size(), 0);
}

TEST_F(RegistryTest, HealthKnowsEveryService) {
  // HealthCheckRequest{service = 1}, HealthCheckResponse{status = 1}, SERVING = 1.
  for (const std::string service : {"", "gemmd.v1.Gemm", "gemmd.v1.Registry"}) {
    const std::string request =
        service.empty() ? "" : std::string("\x0a") + static_cast<char>(service.size()) + service;
    std::string response;
    ASSERT_TRUE(
        CallRaw(running_.channel(), "/grpc.health.v1.Health/Check", request, &response).ok())
        << service;
    EXPECT_EQ(response, "\x08\x01") << service;
  }
  std::string response;
  EXPECT_EQ(CallRaw(running_.channel(), "/grpc.health.v1.Health/Check", "\x0a\x01x", &response)
                .error_code(),
            grpc::StatusCode::NOT_FOUND);
}

// The health of the service: SERVING is 1, NOT_SERVING 2; 0 if the call fails.
int HealthOf(RunningServer& running, const std::string& service) {
  const std::string request =
      service.empty() ? "" : std::string("\x0a") + static_cast<char>(service.size()) + service;
  std::string response;
  const bool is_known =
      CallRaw(running.channel(), "/grpc.health.v1.Health/Check", request, &response).ok();
  return is_known && response.size() == 2 ? response[1] : 0;
}

TEST(ReadinessTest, HealthProductsAndListsFollowTheDevice) {
  RunningServer running(TestDevice::kFake);
  running.fake().RunJobs(true);
  const std::vector<std::string> services = {"", "gemmd.v1.Gemm", "fake"};
  const auto expect = [&](int health, grpc::StatusCode product, const std::string& why) {
    for (const std::string& service : services) EXPECT_EQ(HealthOf(running, service), health);
    EXPECT_EQ(HealthOf(running, "gemmd.v1.Registry"), 1);
    const grpc::Status status = MultiplySmall(running.gemm());
    EXPECT_EQ(status.error_code(), product);
    EXPECT_EQ(status.error_message(), why);
    grpc::ClientContext context;
    AllowTime(context);
    v1::ListDevicesResponse response;
    ASSERT_TRUE(running.registry().ListDevices(&context, v1::ListDevicesRequest(), &response).ok());
    EXPECT_EQ(response.devices(0).ready(), why.empty());
    EXPECT_EQ(response.devices(0).not_ready_reason(), why);
  };
  expect(1, grpc::StatusCode::OK, "");
  running.fake().SetReadiness(absl::UnavailableError("device: fake is starting again"));
  expect(2, grpc::StatusCode::UNAVAILABLE, "device: fake is starting again");
  running.fake().SetReadiness(absl::OkStatus());
  expect(1, grpc::StatusCode::OK, "");
  running.server().EnterLameDuck();
  running.fake().SetReadiness(absl::OkStatus());
  EXPECT_EQ(HealthOf(running, ""), 2);
  EXPECT_EQ(HealthOf(running, "fake"), 2);
}

// Parametrized by the version of the service.
class ReflectionTest : public RegistryTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(ReflectionTest, ListsTheServices) {
  // ServerReflectionRequest{list_services = 7: ""} on a stream of one message.
  grpc::GenericStub stub(running_.channel());
  grpc::ClientContext context;
  AllowTime(context);
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection." + GetParam() + ".ServerReflection/ServerReflectionInfo",
      &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  const grpc::Slice request("\x3a\x00", 2);
  call->WriteLast(grpc::ByteBuffer(&request, 1), grpc::WriteOptions(), nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::Slice whole;
  ASSERT_TRUE(answer.DumpToSingleSlice(&whole).ok());
  const std::string text(reinterpret_cast<const char*>(whole.begin()), whole.size());
  EXPECT_THAT(text, HasSubstr("gemmd.v1.Gemm"));
  EXPECT_THAT(text, HasSubstr("gemmd.v1.Registry"));
  EXPECT_THAT(text, HasSubstr("grpc.health.v1.Health"));
  EXPECT_THAT(text, HasSubstr("grpc.reflection.v1.ServerReflection"));
  EXPECT_THAT(text, HasSubstr("grpc.reflection.v1alpha.ServerReflection"));
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok());
}

INSTANTIATE_TEST_SUITE_P(Versions, ReflectionTest, ::testing::Values("v1", "v1alpha"));

}  // namespace
}  // namespace gemmd
