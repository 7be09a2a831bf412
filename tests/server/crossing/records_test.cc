// SPDX-License-Identifier: Apache-2.0
//
// What the daemon and a worker share: records, the layout of jobs, the staging area. Also the
// policy of restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/kernel.h"
#include "kernels/per_operand.h"
#include "server/crossing/channel.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/device/worker_process.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

Problem SomeProblem() {
  Problem problem;
  problem.m = 3;
  problem.n = 5;
  problem.k = 7;
  problem.a = TightLayout("a", ElementType::kF16, Order::kRowMajor, 3, 7).value();
  problem.b = TightLayout("b", ElementType::kF16, Order::kRowMajor, 7, 5).value();
  problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, 3, 5).value();
  return problem;
}

JobRequest SomeJob() {
  JobRequest request;
  request.id = 1;
  request.problem = SomeProblem();
  const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
  while (!kernels[request.kernel].supports(request.problem).ok()) ++request.kernel;
  return request;
}

TEST(SpinTimeTest, LastsAsLongAsRecordsComeRegularly) {
  constexpr int64_t kBase = 1000;
  SpinTime spin(kBase);
  EXPECT_EQ(spin.ns(), kBase);
  spin.Saw(100);
  EXPECT_EQ(spin.ns(), kBase);
  spin.Saw(3 * kBase);
  EXPECT_EQ(spin.ns(), 6 * kBase);
  spin.Saw(4 * kBase);
  EXPECT_EQ(spin.ns(), 8 * kBase);
  // Rarer ones are not waited for, and neither is the first one after a pause.
  spin.Saw(4 * kBase + 1);
  EXPECT_EQ(spin.ns(), kBase);
  spin.Saw(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(spin.ns(), kBase);
}

TEST(SpinTimeTest, IsNothingWithFewProcessors) {
  SpinTime spin(0);
  spin.Saw(0);
  EXPECT_EQ(spin.ns(), 0);
  spin.Saw(1);
  EXPECT_EQ(spin.ns(), 0);
}

class ChannelTest : public testing::Test {
 protected:
  ChannelTest() {
    FileDescriptor other;
    front_ = Channel::Create(other).value();
    socket_ = dup(other.get());
    worker_ = Channel::Open(std::move(other), front_.rings()).value();
  }
  ~ChannelTest() override { close(socket_); }

  // Writes into the memory of the rings, as a broken worker might.
  void Overwrite(uint64_t from, uint64_t to) const {
    const Staging rings = Staging::Map(front_.rings()).value();
    const absl::Span<std::byte> bytes = rings.matrices();
    size_t found = 0;
    for (size_t i = 0; i + sizeof(from) <= bytes.size(); i += sizeof(from)) {
      if (std::memcmp(&bytes[i], &from, sizeof(from)) != 0) continue;
      std::memcpy(&bytes[i], &to, sizeof(to));
      ++found;
    }
    EXPECT_EQ(found, 1u);
  }

  Channel front_;
  Channel worker_;
  int socket_ = -1;  // The worker's end.
};

TEST_F(ChannelTest, RecordsGoThrough) {
  Result sent;
  sent.id = 42;
  sent.status.Set(absl::AbortedError("lost"));
  sent.compute_ns = 7;
  ASSERT_THAT(SendRecord(worker_, sent), IsOk());
  Packet packet;
  ASSERT_THAT(front_.Receive(packet), IsOk());
  const absl::StatusOr<Result> got = ParseRecord<Result>(packet);
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->id, 42u);
  EXPECT_EQ(got->compute_ns, 7);
  EXPECT_EQ(got->status.get(), absl::AbortedError("lost"));
  EXPECT_THAT(ParseRecord<Hello>(packet), StatusIs(kInvalid, HasSubstr("record: got kind 5")));
  EXPECT_THAT(front_.TryReceive(packet), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_FALSE(front_.HasNews());
  EXPECT_FALSE(worker_.HasNews()) << "it got what it sent";
}

// Neither side sleeps while a record is available, and no record is lost.
TEST_F(ChannelTest, BothSidesWakeEachOther) {
  constexpr uint64_t kRecords = 20000;
  std::thread worker([this] {
    Packet packet;
    for (uint64_t i = 1; i <= kRecords; ++i) {
      // Polls for some records, and sleeps for others.
      ASSERT_THAT(worker_.Receive(packet, i % 3 == 0 ? 1000 : 0), IsOk());
      const absl::StatusOr<Result> got = ParseRecord<Result>(packet);
      ASSERT_THAT(got, IsOk());
      ASSERT_EQ(got->id, i);
      ASSERT_THAT(SendRecord(worker_, *got), IsOk());
    }
  });
  uint64_t sent = 0;
  Packet packet;
  for (uint64_t i = 1; i <= kRecords; ++i) {
    while (sent < std::min(kRecords, i + i % 7)) {
      Result request;
      request.id = ++sent;
      ASSERT_THAT(SendRecord(front_, request), IsOk());
    }
    ASSERT_THAT(front_.Receive(packet, i % 5 == 0 ? 1000 : 0), IsOk());
    ASSERT_EQ(ParseRecord<Result>(packet)->id, i);
  }
  worker.join();
}

TEST_F(ChannelTest, WaitsNoLongerThanItsLimit) {
  constexpr timespec kLimit = {.tv_sec = 0, .tv_nsec = 1'000'000};
  Packet packet;
  EXPECT_THAT(worker_.Receive(packet, 0, &kLimit), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(worker_.Receive(packet, 1000, &kLimit), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(SendRecord(front_, Result()), IsOk());
  EXPECT_THAT(worker_.Receive(packet, 0, &kLimit), IsOk());
}

TEST_F(ChannelTest, ControlWordsLieBesideTheRings) {
  front_.control().are_aborted[3] = true;
  EXPECT_TRUE(worker_.control().are_aborted[3]);
  worker_.control().started_ids[3] = 7;
  front_.Close();
  EXPECT_EQ(front_.control().started_ids[3], 7u) << "which request was lost with the worker";
}

TEST_F(ChannelTest, WhatWasSentBeforeTheEndIsTaken) {
  ASSERT_THAT(SendRecord(worker_, Result()), IsOk());
  worker_.Close();
  close(socket_);
  socket_ = -1;
  Packet packet;
  EXPECT_THAT(front_.Receive(packet), IsOk());
  EXPECT_THAT(front_.Receive(packet), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(front_.TryReceive(packet), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(SendRecord(worker_, Result()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(worker_.TryReceive(packet), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(SendRates(worker_, {.kernel_rates = {1}}), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ChannelTest, HoldsSoManyRecordsAndNoMore) {
  for (uint64_t round = 0; round < 3; ++round) {
    Result result;
    for (result.id = 0; result.id < Channel::kSlots; ++result.id) {
      ASSERT_THAT(SendRecord(worker_, result), IsOk());
    }
    EXPECT_THAT(SendRecord(worker_, result),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("takes no records, 64 wait")));
    Packet packet;
    for (uint64_t i = 0; i < Channel::kSlots; ++i) {
      ASSERT_THAT(front_.TryReceive(packet), IsOk());
      EXPECT_EQ(ParseRecord<Result>(packet)->id, i);
    }
    EXPECT_THAT(front_.TryReceive(packet), StatusIs(absl::StatusCode::kNotFound));
  }
}

TEST_F(ChannelTest, RingsThatCannotBeAreRefused) {
  constexpr uint64_t kSize = 4242;  // A value that occurs nowhere else.
  static_assert(kSize > sizeof(Packet::bytes));
  Packet packet;
  // The length prefix of a record. Only this field has the value 700.
  const std::string text(700, 'x');
  ASSERT_THAT(worker_.Send(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                                               text.size())),
              IsOk());
  Overwrite(text.size(), kSize);
  EXPECT_THAT(front_.TryReceive(packet),
              StatusIs(kInvalid, absl::StrCat("record: got 4242 bytes, want at most ",
                                              sizeof(packet.bytes))));
  Overwrite(kSize, text.size());
  EXPECT_THAT(front_.TryReceive(packet), IsOk());
  EXPECT_EQ(packet.size, text.size());
  // The count of records sent: 34, of which 33 were received.
  for (int i = 1; i < 33; ++i) {
    ASSERT_THAT(SendRecord(worker_, Result()), IsOk());
    ASSERT_THAT(front_.TryReceive(packet), IsOk());
  }
  ASSERT_THAT(SendRecord(worker_, Result()), IsOk());
  for (const uint64_t sent : {uint64_t{33 + 65}, uint64_t{32}, ~uint64_t{0}}) {
    Overwrite(34, sent);
    EXPECT_THAT(
        front_.TryReceive(packet),
        StatusIs(kInvalid, HasSubstr(absl::StrCat("records in the ring: got ", sent - 33))));
    Overwrite(sent, 34);
  }
  EXPECT_THAT(front_.TryReceive(packet), IsOk());
}

TEST_F(ChannelTest, WakeUpsForNothingKeepNobody) {
  const std::byte wake{0};
  for (int i = 0; i < 200; ++i) send(socket_, &wake, 1, MSG_DONTWAIT);
  front_.Sleep(nullptr);
  Packet packet;
  EXPECT_THAT(front_.TryReceive(packet), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(SendRecord(worker_, Result()), IsOk());
  EXPECT_THAT(front_.TryReceive(packet), IsOk());
}

TEST_F(ChannelTest, OtherFilesAreNoRings) {
  FileDescriptor socket(dup(socket_));
  const Staging other = Staging::Create(10000).value();
  EXPECT_THAT(Channel::Open(std::move(socket), other.descriptor()).status(),
              StatusIs(kInvalid, HasSubstr("rings: got 10000 bytes, want")));
  EXPECT_THAT(Channel::Open(FileDescriptor(), -1).status(), StatusIs(kInvalid));
}

TEST_F(ChannelTest, OtherRecordsAreRefused) {
  // Over the socket, as a program would send that does not know the rings.
  const auto receive = [this](const std::string& bytes) {
    EXPECT_EQ(send(socket_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    Packet packet;
    const absl::Status received = front_.Receive(packet);
    return received.ok() ? ParseRecord<JobRequest>(packet).status() : received;
  };
  JobRequest job = SomeJob();
  const auto bytes = [&job] {
    return std::string(reinterpret_cast<const char*>(&job), sizeof(job));
  };
  const auto wrong_size = [](int more) {
    const auto size = static_cast<int64_t>(sizeof(JobRequest));
    return absl::StrCat("record: got kind 4, ", size + more, " bytes, want kind 4, ", size,
                        " bytes");
  };
  EXPECT_THAT(receive(bytes()), IsOk());
  EXPECT_THAT(receive("x"), StatusIs(kInvalid, "record: got 1 bytes, want at least 8"));
  EXPECT_THAT(receive(bytes().substr(0, sizeof(job) - 1)), StatusIs(kInvalid, wrong_size(-1)));
  EXPECT_THAT(receive(bytes() + "x"), StatusIs(kInvalid, wrong_size(1)));
  const size_t most = sizeof(Packet::bytes);
  EXPECT_THAT(
      receive(std::string(most + 1, 'x')),
      StatusIs(kInvalid, absl::StrCat("record: got ", most + 1, " bytes, want at most ", most)));
  ++job.header.protocol;
  EXPECT_THAT(receive(bytes()),
              StatusIs(kInvalid, absl::StrCat("record.protocol: got ", kWorkerProtocol + 1,
                                              ", want ", kWorkerProtocol)));
  job = SomeJob();
  job.header.kind = static_cast<RecordKind>(77);
  EXPECT_THAT(receive(bytes()), StatusIs(kInvalid, HasSubstr("got kind 77")));
}

TEST(RecordTest, TextIsCut) {
  RecordText<8> text;
  text.Set("a longer text");
  EXPECT_EQ(text.view(), "a longe");
  text.Set("ab");
  EXPECT_EQ(text.view(), "ab");
  text.bytes.fill('x');  // As a broken worker might send it.
  EXPECT_EQ(text.view().size(), 8u);
}

TEST(RecordTest, StatusesThatAreNoneAreUnknown) {
  RecordStatus status;
  EXPECT_THAT(status.get(), IsOk());
  for (const int32_t code : {-1, 17, 1 << 30}) {
    status.code = code;
    EXPECT_THAT(status.get(), StatusIs(absl::StatusCode::kUnknown));
  }
}

TEST(RecordTest, JobsAreChecked) {
  EXPECT_THAT(CheckJob(SomeJob(), 4096), IsOk());
  const auto refused = [](void (*change)(JobRequest&), const std::string& why) {
    JobRequest job = SomeJob();
    change(job);
    EXPECT_THAT(CheckJob(job, 4096), StatusIs(kInvalid, why));
  };
  refused([](JobRequest& job) { job.kernel = 1 << 20; },
          absl::StrCat("kernel: got number 1048576, want less than ",
                       Catalog(DeviceKind::kCuda).size()));
  refused([](JobRequest& job) { job.problem.m = -1; }, "m: got -1, want 0 or more");
  refused([](JobRequest& job) { job.problem.m = int64_t{1} << 62; },
          "a.rows: got 3, want m = 4611686018427387904");
  refused(
      [](JobRequest& job) {
        job.problem.m = job.problem.a.rows = job.problem.d.rows = int64_t{1} << 62;
      },
      "a: got 1 matrices of 4611686018427387904x7 elements of type f16, want sizes in bytes below "
      "2^63");
  refused([](JobRequest& job) { job.problem.a.type = ElementType::kF32; },
          "b.type: got f16, want f32 with a.type f32");
}

// A valid product and a kernel of the catalogue, but one that does not support the product.
TEST(RecordTest, AKernelRunsOnlyWhatItSupports) {
  JobRequest job = SomeJob();
  Problem& problem = job.problem;
  problem.a = TightLayout("a", ElementType::kBf16, Order::kRowMajor, 3, 7).value();
  problem.b = TightLayout("b", ElementType::kBf16, Order::kRowMajor, 7, 5).value();
  ASSERT_THAT(Validate(problem), IsOk());
  EXPECT_THAT(CheckJob(job, 4096),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("a.type: got bf16")));
}

TEST(RecordTest, EnumeratorsAreChecked) {
  const auto check = [](auto member, const std::string& field) {
    JobRequest job = SomeJob();
    auto& value = member(job.problem);
    value = static_cast<std::remove_reference_t<decltype(value)>>(99);
    EXPECT_THAT(CheckJob(job, 4096),
                StatusIs(kInvalid, HasSubstr(field + ": got unknown value 99")));
  };
  check(
      [](Problem & p) -> auto& { return p.a.type; }, "a.type");
  check(
      [](Problem & p) -> auto& { return p.a.order; }, "a.order");
  check(
      [](Problem & p) -> auto& { return p.b.sparsity; }, "b.sparsity");
  check(
      [](Problem & p) -> auto& { return p.c.type; }, "c.type");
  check(
      [](Problem & p) -> auto& { return p.d.order; }, "d.order");
  check(
      [](Problem & p) -> auto& { return p.accumulation; }, "accumulation_type");
  check(
      [](Problem & p) -> auto& { return p.bit_operation; }, "bit_operation");
  check(
      [](Problem & p) -> auto& { return p.bias_axis; }, "bias.axis");
  check(
      [](Problem & p) -> auto& { return p.bias_type; }, "bias.type");
  check(
      [](Problem & p) -> auto& { return p.a_scale; }, "a.scale");
  check(
      [](Problem & p) -> auto& { return p.b_blocks.type; }, "b.scale.blocks.type");
  check(
      [](Problem & p) -> auto& { return p.b_scale; }, "b.scale");
  check(
      [](Problem & p) -> auto& { return p.activation; }, "activation");
}

TEST(CheckLaunchTest, EveryRangeLiesWithinTheSharedMemory) {
  constexpr int64_t kShared = 1000;
  const auto check = [](ByteRange& (*of)(LaunchRequest & request, OperandRole role),
                        OperandRole role) {
    LaunchRequest request;
    of(request, role) = {.offset = 990, .bytes = 10};
    EXPECT_THAT(CheckLaunch(request, 1, kShared), IsOk());
    of(request, role) = {.offset = 990, .bytes = 11};
    EXPECT_THAT(CheckLaunch(request, 1, kShared), StatusIs(kInvalid, HasSubstr("shared memory")));
  };
  for (const OperandRole role : kOperandRoles) {
    SCOPED_TRACE(NameOf(role));
    check(
        [](LaunchRequest & request, OperandRole one) -> auto& { return request.operands[one]; },
        role);
  }
  check([](LaunchRequest & request, OperandRole) -> auto& { return request.a_form; }, {});
  check([](LaunchRequest & request, OperandRole) -> auto& { return request.b_form; }, {});
  check([](LaunchRequest & request, OperandRole) -> auto& { return request.d; }, {});
}

TEST(PerOperandTest, RolesNameTheMembers) {
  PerOperand<int> numbers = {.a = 1, .b = 2, .c = 3, .bias = 4, .a_scale = 5, .b_scale = 6};
  int want = 0;
  for (const OperandRole role : kOperandRoles) EXPECT_EQ(numbers[role]++, ++want) << NameOf(role);
  EXPECT_EQ(std::as_const(numbers)[OperandRole::kBScale], 7);
  const Problem problem;
  EXPECT_EQ(&LayoutOf(problem, OperandRole::kA), &problem.a);
  EXPECT_EQ(&LayoutOf(problem, OperandRole::kB), &problem.b);
  EXPECT_EQ(&LayoutOf(problem, OperandRole::kC), &problem.c);
}

TEST(ArgsAtTest, AScaleIsFloatsOrTheFactorsOfBlocks) {
  Problem problem = SomeProblem();
  problem.a_scale = ScaleKind::kBlocks;
  problem.b_scale = ScaleKind::kVector;
  const std::array<float, 5> floats = {};
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(floats.data()), 20);
  PerOperand<absl::Span<const std::byte>> operands;
  operands.a_scale = operands.b_scale = bytes;
  const GemmArgs args = ArgsAt(problem, {}, operands, nullptr, {});
  EXPECT_EQ(args.a_factors, bytes.data());
  EXPECT_TRUE(args.a_scale.empty());
  EXPECT_EQ(args.b_factors, nullptr);
  EXPECT_EQ(args.b_scale, absl::MakeConstSpan(floats));
  EXPECT_EQ(AlignmentOf(problem, OperandRole::kAScale), 1u);
  EXPECT_EQ(AlignmentOf(problem, OperandRole::kBScale), alignof(float));
  EXPECT_EQ(AlignmentOf(problem, OperandRole::kA), 1u);
}

TEST(JobLayoutTest, FactorsOfBlocksHaveTheirBytes) {
  Problem problem = SomeProblem();
  problem.m = problem.a.rows = problem.d.rows = 10;
  problem.k = problem.a.columns = problem.b.rows = 300;
  problem.batch = 2;
  problem.a_scale = problem.b_scale = ScaleKind::kBlocks;
  problem.a_blocks = {.lines = 1, .depth = 128, .per_matrix = true};
  problem.b_blocks = {.type = FactorType::kUe8m0, .lines = 1 << 20, .depth = 128};
  const absl::StatusOr<JobLayout> layout = LayOutJob(problem);
  ASSERT_THAT(layout, IsOk());
  EXPECT_EQ(layout->a_scale.bytes, 2 * 10 * 3 * 4);
  EXPECT_EQ(layout->b_scale.bytes, 3);
  problem.m = problem.a.rows = problem.d.rows = 0;
  EXPECT_EQ(LayOutJob(problem)->a_scale.bytes, 0);
  EXPECT_EQ(LayOutJob(problem)->b_scale.bytes, 3);
  problem.m = problem.a.rows = problem.d.rows = 10;
  problem.alpha = 0;  // No factor is read.
  EXPECT_EQ(LayOutJob(problem)->a_scale.bytes, 0);
}

TEST(BlockTurnsTest, WritersWaitForAllAndReadersForWriters) {
  const BlockUses read = {{.block = 1}};
  const BlockUses write = {{.block = 1, .is_write = true}};
  BlockTurns turns;
  turns.Enter(1, read);
  turns.Enter(2, read);
  turns.Enter(3, write);
  turns.Enter(4, write, /*group=*/9);
  turns.Enter(5, write, /*group=*/9);
  const auto who_may = [&] {
    std::string may;
    for (const uint64_t user : {1, 2}) may += turns.HasTurn(user, read) ? '+' : '-';
    may += turns.HasTurn(3, write) ? '+' : '-';
    for (const uint64_t user : {4, 5}) may += turns.HasTurn(user, write, 9) ? '+' : '-';
    return may;
  };
  EXPECT_EQ(who_may(), "++---");
  turns.Leave(1, read);
  EXPECT_EQ(who_may(), "-+---") << "the first came again, behind the writers";
  turns.Leave(2, read);
  EXPECT_EQ(who_may(), "--+--");
  turns.Leave(3, write);
  EXPECT_EQ(who_may(), "---++") << "of one group";
  EXPECT_FALSE(turns.HasTurn(6, read)) << "although it has not entered";
  EXPECT_TRUE(turns.HasTurn(6, {{.block = 2, .is_write = true}})) << "of which nobody has a turn";
}

TEST(AlignedRangesTest, FollowEachOtherUntilTheyLeave63Bits) {
  AlignedRanges ranges(kJobAlignment);
  EXPECT_EQ(ranges.Take(1), kJobAlignment);
  EXPECT_EQ(ranges.Take(kJobAlignment), 2 * kJobAlignment);
  EXPECT_EQ(ranges.end(), 3 * kJobAlignment);
  ranges.Take(std::numeric_limits<int64_t>::max() - kJobAlignment);
  EXPECT_EQ(ranges.end(), std::nullopt);
}

TEST(JobLayoutTest, PutsInputsBeforeTheResultAndAlignsAll) {
  Problem problem = SomeProblem();
  problem.batch = 2;
  problem.b.batch_stride_bytes = 0;
  problem.c = problem.d;
  problem.beta = 1;
  problem.bias_axis = BiasAxis::kColumns;
  problem.bias_type = ElementType::kF16;
  const JobLayout layout = LayOutJob(problem).value();
  EXPECT_EQ(layout.a, (ByteRange{0, 2 * 3 * 7 * 2}));
  EXPECT_EQ(layout.b, (ByteRange{256, 7 * 5 * 2}));
  EXPECT_EQ(layout.c, (ByteRange{512, 2 * 3 * 5 * 4}));
  EXPECT_EQ(layout.bias, (ByteRange{768, 5 * 2}));
  EXPECT_EQ(layout.a_scale, (ByteRange{1024, 0}));
  EXPECT_EQ(layout.d, (ByteRange{1024, 2 * 3 * 5 * 4}));
  EXPECT_EQ(layout.input_bytes, 1024);
  EXPECT_EQ(layout.end, 1280);
}

TEST(JobLayoutTest, TakesNoPlaceForWhatIsNotRead) {
  Problem problem = SomeProblem();
  problem.alpha = 0;
  const JobLayout layout = LayOutJob(problem).value();
  EXPECT_EQ(layout.input_bytes, 0);
  EXPECT_EQ(layout.d, (ByteRange{0, 3 * 5 * 4}));
}

// Marks lie where the kernel writes, and nowhere else.
TEST(JobLayoutTest, MarksTheBytesThatAKernelWrites) {
  const auto mark_of = [](Problem problem, int64_t n, int64_t leading_dimension) {
    problem.n = problem.d.columns = n;
    problem.d.leading_dimension = leading_dimension;
    problem.d.batch_stride_bytes = problem.d.rows * problem.d.line_stride_bytes();
    return MarkOf(problem, LayOutJob(problem).value(), {}, {}).bytes;
  };
  EXPECT_EQ(mark_of(SomeProblem(), 5, 5), 16);
  EXPECT_EQ(mark_of(SomeProblem(), 5, 100), 16);
  EXPECT_EQ(mark_of(SomeProblem(), 1, 1), 12);  // Three rows.
  EXPECT_EQ(mark_of(SomeProblem(), 3, 4), 12);  // One of the rows, up to the gap.
  EXPECT_EQ(mark_of(SomeProblem(), 2, 4), 8);
  EXPECT_EQ(mark_of(SomeProblem(), 1, 4), 0);  // No mark: a result might have the same bytes.
  JobPlaces places;
  places.d.parts = 3;
  const std::vector<PlacedPart> parts = {
      {.bytes = 4}, {.block = 7, .bytes = 12}, {.block = 7, .offset = 12, .bytes = 44}};
  const Problem problem = SomeProblem();
  const JobMark mark = MarkOf(problem, LayOutJob(problem, places).value(), places, parts);
  EXPECT_EQ(mark.offset, 4);
  EXPECT_EQ(mark.bytes, 12);
}

TEST(JobLayoutTest, MoreThan63BitsAreExhausted) {
  Problem problem = SomeProblem();
  problem.batch = 4;
  problem.d.leading_dimension = int64_t{1} << 57;
  problem.d.batch_stride_bytes = 3 * (int64_t{1} << 59);
  problem.c = problem.d;  // Each of the two fits on its own.
  problem.beta = 1;
  EXPECT_THAT(Validate(problem), StatusIs(kInvalid, HasSubstr("2^63 bytes or more together")));
  EXPECT_THAT(LayOutJob(problem), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(StagingTest, IsSharedAndCannotChangeItsSize) {
  const Staging front = Staging::Create(10000).value();
  EXPECT_EQ(front.matrices().size(), 10000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(front.matrices().data()) % 4096, 0u);
  const Staging worker = Staging::Map(front.descriptor()).value();
  EXPECT_EQ(worker.matrices().size(), 10000u);
  worker.matrices().back() = std::byte{7};
  EXPECT_EQ(front.matrices().back(), std::byte{7});
  worker.control().started_ids[3] = 9;
  EXPECT_EQ(front.control().started_ids[3], 9u);
  front.control().aborted_ids[31] = 8;
  EXPECT_EQ(worker.control().aborted_ids[31], 8u);
  EXPECT_NE(ftruncate(front.descriptor(), 20000), 0);
  EXPECT_NE(ftruncate(front.descriptor(), 100), 0);
}

TEST(StagingTest, OtherFilesAreNone) {
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 10000), 0);
  EXPECT_THAT(Staging::Map(unsealed.get()), StatusIs(kInvalid));
  EXPECT_THAT(Staging::Map(-1), StatusIs(kInvalid));
  const Staging empty = Staging::Create(0).value();
  EXPECT_THAT(Staging::Map(empty.descriptor()), StatusIs(kInvalid));
  EXPECT_THAT(Staging::Create(int64_t{1} << 62), StatusIs(absl::StatusCode::kResourceExhausted));
}

constexpr RestartPolicy::Limits kRestarts = {.restarts = 5,
                                             .window_ns = 1000,
                                             .rest_ns = 7000,
                                             .first_pause_ns = 10,
                                             .longest_pause_ns = 35};

TEST(RestartPolicyTest, PausesLongerEachTimeAndThenRests) {
  RestartPolicy policy(kRestarts);
  EXPECT_EQ(policy.Next(0).ns, 0);
  EXPECT_EQ(policy.Next(1).ns, 10);
  EXPECT_EQ(policy.Next(2).ns, 20);
  EXPECT_EQ(policy.Next(3).ns, 35);
  EXPECT_FALSE(policy.Next(4).is_rest);
  EXPECT_EQ(policy.Next(999), (RestartPolicy::Pause{.ns = 7000, .is_rest = true}));
  // After the rest, counting starts over.
  EXPECT_EQ(policy.Next(7999), RestartPolicy::Pause());
  EXPECT_EQ(policy.Next(7999).ns, 10);
}

TEST(RestartPolicyTest, ForgetsWhatIsLongAgo) {
  RestartPolicy policy(kRestarts);
  for (int64_t now_ns = 0; now_ns < 5; ++now_ns) policy.Next(now_ns);
  EXPECT_EQ(policy.Next(1000), RestartPolicy::Pause{.ns = 35});  // The first restart is forgotten.
  policy.Forget();
  EXPECT_EQ(policy.Next(1000), RestartPolicy::Pause());
}

}  // namespace
}  // namespace gemmd
