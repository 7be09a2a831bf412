// SPDX-License-Identifier: Apache-2.0
//
// The service of tensors beside the store, which outlives it.
#include "server/wire/tensor_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "server/product/product_runner.h"
#include "server/wire/gate.h"
#include "tests/server/device/scripted_device.h"
#include "tests/server/store/padded_spec.h"
#include "tests/server/wire/running_server.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

class TensorServiceTest : public testing::Test {
 protected:
  TensorServiceTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::Tensors::NewStub(NewChannel("127.0.0.1:" + std::to_string(port_)));
  }

  // Ends gRPC's server and the service, in this order, as the daemon does at its end.
  void EndService() {
    server_->Shutdown();
    server_->Wait();
    server_.reset();
    service_.reset();
  }

  SteadyClock clock_;
  ScriptedDevice device_{"fake", DeviceProfile{}};
  const std::vector<ServedDevice> served_ = {{&device_, absl::OkStatus()}};
  const std::vector<Device*> devices_ = {&device_};
  Scheduler scheduler_{devices_, clock_};
  Stats stats_{1};
  Admission admission_{{.max_requests = 10, .max_bytes = int64_t{1} << 30}};
  TensorStore store_{{.max_bytes = int64_t{1} << 30, .max_session_bytes = int64_t{1} << 30},
                     clock_};
  ProductRunner runner_{served_, scheduler_, admission_, stats_, clock_, int64_t{1} << 30, &store_};
  const Gate gate_{nullptr};
  ReceiveQuota quota_{int64_t{1} << 30};
  SendWatch watch_{{}, clock_};
  HandlerTimes times_;
  std::unique_ptr<grpc::Service> service_ =
      MakeTensorService({runner_, gate_, quota_, watch_, times_, clock_});
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Tensors::Stub> stub_;
};

// Overwrites short blocks that this thread has freed, and keeps them.
std::vector<std::unique_ptr<char[]>> OverwriteFreed() {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (size_t bytes = 16; bytes <= 4096; bytes += 16) {
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(std::make_unique<char[]>(bytes));
      std::memset(blocks.back().get(), 0xff, bytes);
    }
  }
  return blocks;
}

// A thread of the store tells the streams of an upload one after the other how it ended. The first
// one holds it up while the client of the next one leaves and the service ends.
TEST_F(TensorServiceTest, AnUploadMayEndAfterTheService) {
  grpc::ClientContext opening;
  AllowTime(opening);
  const auto opened = stub_->OpenSession(&opening, {});
  v1::OpenSessionResponse session;
  ASSERT_TRUE(opened->Read(&session));

  // Its description, with its factors, is long enough to be counted.
  constexpr int kRows = 2048;
  v1::PutRequest begin;
  v1::TensorSpec& wire = *begin.mutable_begin()->mutable_spec();
  wire.set_type(v1::ELEMENT_TYPE_S8);
  wire.set_rows(kRows);
  wire.set_columns(4);
  wire.mutable_scale()->mutable_values()->Resize(kRows, 1.0f);
  grpc::ClientContext putting;
  AllowTime(putting);
  putting.AddMetadata("gemmd-session", session.token());
  const auto put = stub_->Put(&putting);
  ASSERT_TRUE(put->Write(begin));
  v1::PutResponse state;
  ASSERT_TRUE(put->Read(&state));

  absl::Notification is_held;
  absl::Notification may_go_on;
  std::future<void> ending;
  {
    const TensorStore::SessionUse use = store_.Use(session.token()).value();
    const std::shared_ptr<Upload> upload = store_.Join(use, state.state().upload()).value();
    // They come in any order; the stream of the client is the last one of hardly any.
    for (size_t i = 1; i < Upload::kMaxStreams; ++i) {
      const Upload::StreamId stream = store_.Attach(upload).value();
      upload->Listen(stream, [&](const auto&) {
        if (!is_held.HasBeenNotified()) is_held.Notify();
        may_go_on.WaitForNotification();
      });
    }
    TensorSpec spec = PaddedSpec(ElementType::kS8, kRows, 4);
    spec.scale.assign(kRows, 1.0f);
    const TensorState tensor =
        store_.Publish(use, store_.MakeDraft(use, std::move(spec), {}).value()).value();
    ending = std::async(std::launch::async, [upload, tensor] { upload->End(tensor); });
    is_held.WaitForNotification();
  }
  putting.TryCancel();
  EXPECT_FALSE(put->Finish().ok());
  opening.TryCancel();
  (void)opened->Finish();
  EndService();
  const auto overwritten = OverwriteFreed();
  may_go_on.Notify();
  Awaited(std::move(ending), "the end of the upload");
}

}  // namespace
}  // namespace gemmd
