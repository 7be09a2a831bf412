// SPDX-License-Identifier: Apache-2.0
//
// Products that run as one although their operands and results are tensors: each has the bits that
// it has alone, on the simulator and in a worker, however the whole ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/select.h"
#include "server/product/scheduler.h"
#include "server/store/product_tensors.h"
#include "tests/server/device/scripted_device.h"
#include "tests/server/device/shared_host.h"
#include "tests/server/product/joinable_product.h"
#include "tests/server/worker/worker_rig.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using Operand = OperandRole;
using Shape = JoinableProduct::Shape;

constexpr int64_t kWindowNs = 1'000'000;

std::unique_ptr<Device> MakeWorker() {
  auto device = std::make_unique<WorkerDevice>(QuickOptions());
  EXPECT_THAT(device->WaitUntilStarted(), IsOk());
  return device;
}

class JoinedResultsTest : public testing::TestWithParam<DeviceKind> {
 protected:
  // A product of tensors, and its expected result.
  struct Product {
    Product(RandomSource& random, const Kernel& simulated, Shape shape,
            const std::vector<std::byte>* shared_b)
        : inline_one(random, simulated, shape, shared_b) {}
    JoinableProduct inline_one;
    std::string name;  // Its tensors are NAME.a, NAME.b and NAME.d.
    std::string b;
    std::string d;
    bool is_in_place = false;  // C is D.
  };
  struct Running {
    std::unique_ptr<ProductTensors> tensors;
    JobId id = 0;
    std::future<std::unique_ptr<Submission>> result;
  };

  JoinedResultsTest() {
    auto watched = std::make_unique<ScriptedDevice>(
        GetParam() == DeviceKind::kSim ? std::make_unique<ScriptedDevice>(SharedSimulator())
                                       : MakeWorker());
    watched->on_submit = [this](const Job& job, const Device::Done&) {
      MutexLock lock(&mutex_);
      sizes_.push_back(job.members.size());
    };
    watched_ = watched.get();
    device_ = WithTensors(std::move(watched), store_);
    devices_ = {device_.get()};
    scheduler_ = std::make_unique<Scheduler>(devices_, clock_,
                                             JoinRules{.limits = {}, .window_ns = kWindowNs});
  }

  // The numbers of members of the jobs so far; 0 for a job that is not joined.
  std::vector<size_t> TakeSizes() {
    MutexLock lock(&mutex_);
    return std::exchange(sizes_, {});
  }
  // Ends the held jobs with the status, or passes them on.
  void Release(const absl::Status& status = absl::OkStatus()) {
    watched_->RunJobs(true);
    while (watched_->held() > 0) watched_->CompleteNext(status);
  }

  void Upload(const std::string& name, const MatrixLayout& layout, const std::string& bytes) {
    const auto spec = MakeTensorSpec(layout, 1, {}).value();
    const auto upload = store_.Begin(session_, spec, {.name = name}, {}, "")->upload;
    EXPECT_THAT(store_.Write(session_, upload, 0, {PieceOf(bytes)}), IsOk());
  }
  static std::string BytesOf(const Source& source) {
    std::string bytes;
    for (const Piece piece : source.pieces) {
      bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    return bytes;
  }

  // Uploads its tensors; B and D may be those of other products.
  Product& Add(Shape shape, const Product* of_b = nullptr, const Product* of_d = nullptr,
               bool is_in_place = false) {
    const std::vector<std::byte>* const b = of_b == nullptr ? nullptr : &shared_b_;
    Product& product = products_.emplace_back(random_, simulated_, shape, b);
    product.name = std::to_string(products_.size());
    product.b = b == nullptr ? product.name + ".b" : of_b->b;
    product.d = of_d == nullptr ? product.name + ".d" : of_d->d;
    product.is_in_place = is_in_place;
    if (is_in_place) product.inline_one.AddEpilogue(bias_);
    const Job& job = product.inline_one.job;
    Upload(product.name + ".a", job.problem.a, BytesOf(job.a));
    if (b == nullptr) Upload(product.b, job.problem.b, BytesOf(job.b));
    if (of_d == nullptr) UploadD(product);
    return product;
  }
  // Uploads D's contents before the product.
  void UploadD(const Product& product) {
    const Job& job = product.inline_one.job;
    const std::string before =
        product.is_in_place ? BytesOf(job.c) : std::string(static_cast<size_t>(job.d_bytes), 'x');
    Upload(product.d, job.problem.d, before);
  }

  Running Submit(const Product& product, double alpha = 1) {
    Running running;
    running.tensors = ProductTensors::Make(store_, session_.token().ToHex()).value();
    ProductTensors& tensors = *running.tensors;
    auto owned = std::make_unique<Submission>();
    Submission& submission = *owned;
    submission.device = device_.get();
    Job& job = submission.job;
    job = product.inline_one.job;
    job.kernel = &kernel_;
    job.problem.alpha = alpha;
    job.workspace_bytes = kernel_.workspace_bytes(job.problem).value();
    const auto read = [&](Operand operand, const std::string& name, const Source& source) {
      ProductTensors::Names names;
      names.read[static_cast<size_t>(operand)] = name;
      EXPECT_THAT(tensors.Find(names), IsOk());
      tensors.SetPart(operand, 0, source.bytes);
    };
    read(Operand::kA, product.name + ".a", job.a);
    read(Operand::kB, product.b, job.b);
    if (product.is_in_place) read(Operand::kC, product.d, job.c);
    EXPECT_THAT(tensors.Find({.written = product.d}), IsOk());
    EXPECT_THAT(tensors.Place(job), IsOk());
    scheduler_->SetTime(submission, Predict(kernel_, job.problem, device_->profile()));
    submission.caller = "one";
    auto promise = std::make_shared<std::promise<std::unique_ptr<Submission>>>();
    running.result = promise->get_future();
    submission.done = [promise](std::unique_ptr<Submission> result) {
      promise->set_value(std::move(result));
    };
    running.id = scheduler_->Submit(std::move(owned));
    return running;
  }
  std::vector<Running> SubmitAll() {
    std::vector<Running> all;
    for (const Product& product : products_) all.push_back(Submit(product));
    return all;
  }
  // Launches the waiting jobs.
  void EndWindow() {
    clock_.Advance(kWindowNs);
    scheduler_->EndExpired();
  }
  // Checks that it succeeded. Returns how many products ran as one.
  int64_t End(Running& running) {
    const std::unique_ptr<Submission> result = Awaited(std::move(running.result), "a product");
    EXPECT_THAT(result->outcome.status, IsOk());
    EXPECT_THAT(running.tensors->Finish(result->outcome.status.ok()), IsOk());
    return result->joined;
  }
  // Afterwards, tensors are where the device reads them, and their results are to be overwritten.
  void RunEachAlone() {
    for (const Product& product : products_) {
      Running running = Submit(product, /*alpha=*/-1);
      EndWindow();
      EXPECT_EQ(End(running), 1);
    }
    EXPECT_THAT(TakeSizes(), Each(0));
  }
  void RunAllAsOne() {
    std::vector<Running> all = SubmitAll();
    EndWindow();
    for (Running& running : all) EXPECT_EQ(End(running), static_cast<int64_t>(all.size()));
  }

  std::string BytesIn(const std::string& tensor) {
    const TensorStore::TensorUse use = store_.Find(session_, tensor).value();
    std::promise<absl::Status> brought;
    use->bytes->BringToHost([&](const absl::Status& status) { brought.set_value(status); });
    EXPECT_THAT(Awaited(brought.get_future(), "the bytes of a tensor"), IsOk());
    return std::string(reinterpret_cast<const char*>(use->bytes->host()),
                       static_cast<size_t>(use->bytes->bytes()));
  }
  static std::string Alone(const Product& product) {
    const std::vector<std::byte> d = ResultOf(product.inline_one.job, std::byte{0x5a});
    return std::string(reinterpret_cast<const char*>(d.data()), d.size());
  }
  void ExpectBitsOfAlone() {
    for (const Product& product : products_) {
      EXPECT_TRUE(BytesIn(product.d) == Alone(product)) << product.name;
    }
  }

  // The row of the catalogue that computes the same as the simulated one.
  static const Kernel& KernelOf(const Kernel& simulated) {
    if (GetParam() == DeviceKind::kSim) return simulated;
    for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
      if (ShareInstruction(kernel, simulated) && kernel.batch_invariant) return kernel;
    }
    std::abort();
  }

  RandomSource random_;
  const Kernel& simulated_ = SimulatedKernel("mma.m16n8k16.f32.f16.f16.f32");
  const Kernel& kernel_ = KernelOf(simulated_);
  const std::vector<std::byte> shared_b_ = RandomBytes(random_, 2 * 8 * 16);
  const std::vector<std::byte> bias_ = RandomBytes(random_, 4 * 8);
  FakeClock clock_;
  TensorStore store_{{}, clock_};
  const TensorStore::SessionUse session_ = store_.OpenSession("", "a").value();
  std::deque<Product> products_;
  Mutex mutex_;
  std::vector<size_t> sizes_ ABSL_GUARDED_BY(mutex_);
  ScriptedDevice* watched_ = nullptr;
  std::unique_ptr<Device> device_;
  std::vector<Device*> devices_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_P(JoinedResultsTest, BatchedOnesHaveTheirOwnBits) {
  for (int i = 0; i < 5; ++i) Add({.m = 17, .n = 8, .k = 16});
  RunEachAlone();
  RunAllAsOne();
  EXPECT_THAT(TakeSizes(), ElementsAre(5));
  ExpectBitsOfAlone();
  EXPECT_EQ(scheduler_->load(*device_).batched_requests, 5);
}

TEST_P(JoinedResultsTest, StackedOnesHaveTheirOwnBits) {
  Product first_of_b(random_, simulated_, {.m = 1, .n = 8, .k = 16}, &shared_b_);
  first_of_b.b = "b";
  Upload("b", first_of_b.inline_one.job.problem.b, BytesOf(first_of_b.inline_one.job.b));
  for (const int64_t m : {3, 1, 20}) Add({.m = m, .n = 8, .k = 16}, &first_of_b);
  RunEachAlone();
  RunAllAsOne();
  EXPECT_THAT(TakeSizes(), ElementsAre(3));
  ExpectBitsOfAlone();
  EXPECT_EQ(scheduler_->load(*device_).stacked_requests, 3);
}

// Each reads the D that it overwrites.
TEST_P(JoinedResultsTest, ThoseInPlaceHaveTheirOwnBits) {
  for (int i = 0; i < 3; ++i) Add({.m = 5, .n = 8, .k = 16}, nullptr, nullptr, true);
  // The first run copies the tensors to the device; its results do not matter.
  RunAllAsOne();
  TakeSizes();
  std::vector<std::string> once;
  for (const Product& product : products_) {
    EXPECT_TRUE(BytesIn(product.d) == Alone(product)) << product.name;
    once.push_back(BytesIn(product.d));
  }
  RunAllAsOne();
  EXPECT_THAT(TakeSizes(), ElementsAre(3));
  std::vector<std::string> joined;
  for (const Product& product : products_) joined.push_back(BytesIn(product.d));
  // The same again, alone.
  for (size_t i = 0; i < products_.size(); ++i) {
    Upload(products_[i].d, products_[i].inline_one.job.problem.d, once[i]);
    Running alone = Submit(products_[i]);
    EndWindow();
    EXPECT_EQ(End(alone), 1);
    EXPECT_TRUE(BytesIn(products_[i].d) == joined[i]) << i;
  }
}

TEST_P(JoinedResultsTest, OfSeveralInOnePlaceTheLastIsLeft) {
  Product& first = Add({.m = 17, .n = 8, .k = 16});
  for (int i = 0; i < 3; ++i) Add({.m = 17, .n = 8, .k = 16}, nullptr, &first);
  RunEachAlone();
  RunAllAsOne();
  EXPECT_THAT(TakeSizes(), ElementsAre(4));
  EXPECT_TRUE(BytesIn(first.d) == Alone(products_.back()));
}

TEST_P(JoinedResultsTest, WhatIsElsewhereLetsEachRunApart) {
  for (int i = 0; i < 3; ++i) Add({.m = 17, .n = 8, .k = 16});
  const TensorStore::TensorUse d = store_.Find(session_, products_[1].d).value();
  RunEachAlone();
  // Another writer overwrites one of the results elsewhere.
  DeviceCopies* const elsewhere = reinterpret_cast<DeviceCopies*>(&clock_);
  d->bytes->TakeWriting(elsewhere, [] {});
  std::vector<Running> all = SubmitAll();
  EndWindow();
  EXPECT_THAT(TakeSizes(), ElementsAre(0, 0));
  d->bytes->EndWriting(elsewhere, /*has_begun=*/false, /*is_ok=*/false);
  EXPECT_THAT(TakeSizes(), ElementsAre(0));
  for (Running& running : all) EXPECT_EQ(End(running), 3);
  ExpectBitsOfAlone();
}

TEST_P(JoinedResultsTest, AllAreToldOfAFailureAndCanBeRunAgain) {
  for (int i = 0; i < 3; ++i) Add({.m = 17, .n = 8, .k = 16});
  RunEachAlone();
  for (const absl::Status& status :
       {absl::AbortedError("lost"), absl::FailedPreconditionError("tensor lost: block 1")}) {
    watched_->RunJobs(false);
    std::vector<Running> all = SubmitAll();
    EndWindow();
    Release(status);
    for (Running& running : all) {
      const absl::Status told = Awaited(std::move(running.result), "a product")->outcome.status;
      EXPECT_THAT(running.tensors->Finish(false), IsOk());
      if (absl::IsAborted(status)) {
        EXPECT_EQ(told, status);
      } else {  // It has no tensor of its own.
        EXPECT_THAT(told, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("try again")));
      }
    }
  }
  TakeSizes();
  RunAllAsOne();
  EXPECT_THAT(TakeSizes(), ElementsAre(3));
  ExpectBitsOfAlone();
}

TEST_P(JoinedResultsTest, ACancelledOneTakesNoOtherWithIt) {
  for (int i = 0; i < 3; ++i) Add({.m = 17, .n = 8, .k = 16});
  RunEachAlone();
  watched_->RunJobs(false);
  std::vector<Running> all = SubmitAll();
  EndWindow();
  scheduler_->Cancel(all[1].id);
  Release();
  for (Running& running : all) EXPECT_EQ(End(running), 3);
  ExpectBitsOfAlone();
  // All of them, separately and together.
  watched_->RunJobs(false);
  std::vector<Running> none = SubmitAll();
  EndWindow();
  for (const Running& running : none) scheduler_->Cancel(running.id);
  Release(AbortedLaunch());
  for (Running& running : none) {
    const std::unique_ptr<Submission> result = Awaited(std::move(running.result), "a product");
    EXPECT_THAT(result->outcome.status,
                StatusIs(absl::StatusCode::kCancelled, "cancelled while it ran"));
    EXPECT_THAT(running.tensors->Finish(false), IsOk());
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, JoinedResultsTest,
                         testing::Values(DeviceKind::kSim, DeviceKind::kCuda),
                         [](const auto& suite) {
                           return suite.param == DeviceKind::kSim ? "Simulator" : "Worker";
                         });

}  // namespace
}  // namespace gemmd
