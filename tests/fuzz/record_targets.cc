// SPDX-License-Identifier: Apache-2.0
//
// Records between the daemon and a worker process, as either side receives them from a channel,
// and the rings in which they lie, to which the other side can write anything: whatever is accepted
// lies within the shared memory, by sizes in 128 bits.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/matrix/layout.h"
#include "server/crossing/channel.h"
#include "server/crossing/protocol.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

__extension__ using Wide = __int128;

constexpr int64_t kStagingBytes = int64_t{1} << 30;

template <typename Record>
std::string StringOf(const Record& record) {
  return std::string(reinterpret_cast<const char*>(&record), sizeof(record));
}

void CheckWithin(Wide offset, Wide bytes) {
  Demand(offset >= 0 && bytes >= 0 && offset + bytes <= kStagingBytes,
         "a record leaves the staging area");
}

void TryJob(const Packet& packet) {
  const auto job = ParseRecord<JobRequest>(packet);
  if (!job.ok() || !CheckJob(*job, kStagingBytes).ok()) return;
  Demand(job->slot < kMaxInFlight, "a job has a slot that there is not");
  Demand(Validate(job->problem).ok(), "the problem of a job is not valid");
  const Kernel& kernel = Catalog(DeviceKind::kCuda)[job->kernel];
  Demand(kernel.supports(job->problem).ok(), "a job's kernel does not support it");
  const auto layout = LayOutJob(job->problem, job->places);
  Demand(layout.ok(), "a job has no layout");
  CheckWithin(job->staged_inputs, layout->staged_in_bytes());
  CheckWithin(job->staged_d, layout->staged_out_bytes());
  const auto ranges = RangesOf(*layout, job->places);
  for (const PlacedRange& one : ranges) {
    if (!one.place.is_staged() || one.range.bytes == 0) continue;
    Demand(one.range.offset % kJobAlignment == 0, "a matrix is not aligned");
    // D, the last one, has a staging area apart from the inputs.
    const bool is_d = &one == &ranges.back();
    CheckWithin(is_d ? Wide{job->staged_d} + one.range.offset - layout->input_bytes
                     : Wide{job->staged_inputs} + one.range.offset,
                one.range.bytes);
    Demand(Wide{one.range.offset} + one.range.bytes <= layout->end, "a matrix leaves its job");
  }
  (void)UsesOf(job->places);
}

void TryCompression(const Packet& packet) {
  const auto request = ParseRecord<CompressRequest>(packet);
  if (!request.ok() || !CheckCompressRequest(*request, kStagingBytes).ok()) return;
  const CompressTask& task = request->task;
  const auto bytes = BytesOf(task);
  Demand(bytes.ok() && bytes->dense >= 0 && bytes->mask >= 0 && bytes->result >= 0,
         "a compression takes less than nothing");
  const Wide lines = Wide{task.matrices} * task.dense.rows;
  Demand(task.first_line >= 0 && task.first_line <= task.end_line && task.end_line <= lines,
         "a compression has lines that there are not");
  const CompressView view = ViewOf(task, nullptr, nullptr, nullptr);
  Demand(view.first_line == task.first_line && view.end_line == task.end_line,
         "a compression is of other lines");
  // The last line of the last matrix lies within the bytes.
  if (lines == 0 || task.dense.columns == 0) return;
  const Wide last = (Wide{task.matrices} - 1) * view.dense_matrix_stride_bytes +
                    (Wide{task.dense.rows} - 1) * view.dense_line_stride_bytes;
  Demand(last >= 0 && last < bytes->dense, "a compression leaves the tensor");
}

void TryRecompute(const Packet& packet) {
  const auto request = ParseRecord<RecomputeRequest>(packet);
  if (!request.ok() || !CheckRecomputeRequest(*request, kStagingBytes).ok()) return;
  const RecomputeTask& task = request->task;
  const auto layout = LayOutRecompute(task);
  Demand(layout.ok() && Validate(layout->sub).ok(), "rows and columns make no valid problem");
  Demand(Catalog(DeviceKind::kCuda)[request->kernel].supports(layout->sub).ok(),
         "the kernel of rows and columns does not support them");
  CheckWithin(request->staged_in, layout->in_bytes());
  CheckWithin(request->staged_out, layout->out_bytes());
  const Wide numbers = (Wide{task.rows} + task.columns) * sizeof(int64_t);
  Demand(numbers <= layout->lists, "numbers of rows are where the operands are");
  for (const OperandRole role : kOperandRoles) {
    const ByteRange& operand = layout->operands[role];
    Demand(Wide{operand.offset} + operand.bytes <= layout->operands.d.offset,
           "an operand leaves its place");
  }
  Demand(Wide{layout->computed()} + layout->operands.d.bytes <= layout->end, "D leaves its place");
  const bool is_found = layout->found != 0;
  Demand(is_found == (task.places.d.block != 0), "another D is read");
  Demand(!is_found || Wide{layout->found} + layout->operands.d.bytes <= layout->end,
         "what is found leaves its place");
}

void TryLaunch(const Packet& packet) {
  const size_t kernels = Catalog(DeviceKind::kCpu).size();
  const auto launch = ParseRecord<LaunchRequest>(packet);
  if (!launch.ok() || !CheckLaunch(*launch, kernels, kStagingBytes).ok()) return;
  Demand(launch->kernel < kernels && launch->slot < kMaxInFlight,
         "a launch has a kernel or a slot that there is not");
  for (const OperandRole role : kOperandRoles) {
    CheckWithin(launch->operands[role].offset, launch->operands[role].bytes);
  }
  for (const ByteRange& range : {launch->a_form, launch->b_form, launch->d}) {
    CheckWithin(range.offset, range.bytes);
  }
}

// The two ends of the channel between daemon and worker.
struct Ends {
  Ends() {
    FileDescriptor other;
    front = Channel::Create(other).value();
    worker = Channel::Open(std::move(other), front.rings()).value();
  }
  Channel front;
  Channel worker;
};

// Rates that a worker sends in several parts come out whole in the daemon.
void CheckRates(double rate) {
  Ends ends;
  GpuRates rates;
  rates.kernel_rates.assign(Catalog(DeviceKind::kCuda).size(), rate);
  Demand(SendRates(ends.worker, rates).ok(), "rates are not sent");
  GpuRates got;
  while (got.kernel_rates.size() < rates.kernel_rates.size()) {
    Packet packet;
    Demand(ends.front.TryReceive(packet).ok(), "a part of the rates is missing");
    const auto part = ParseRecord<RatesPart>(packet);
    Demand(part.ok() && AppendRates(*part, rates.kernel_rates.size(), got).ok(),
           "a part of the rates is refused");
  }
  ends.worker.Close();
  Packet packet;
  Demand(absl::IsUnavailable(ends.front.Receive(packet)), "a record comes from a closed channel");
  Demand(absl::IsUnavailable(SendRates(ends.worker, rates)), "rates go through a closed channel");
}

void TryAnswers(const Packet& packet) {
  if (const auto result = ParseRecord<Result>(packet); result.ok()) {
    const absl::Status status = result->status.get();
    RecordStatus again;
    again.Set(status);
    Demand(again.get().code() == status.code(), "a status is another one when it is told again");
    Demand(status.ok() == (result->status.code == 0), "a result's status is another one");
    Demand(status.message().size() < 512, "a result's message is long");
  }
  if (const auto hello = ParseRecord<Hello>(packet); hello.ok()) {
    Demand(hello->description.view().size() <= 128 && hello->pci_bus_id.view().size() <= 32,
           "a worker's text is long");
    (void)hello->status.get();
    static const uint64_t fingerprint = CatalogFingerprint();
    Demand(hello->catalog != 0 || fingerprint != 0, "a catalogue has no hash");
  }
  if (const auto part = ParseRecord<RatesPart>(packet); part.ok()) {
    CheckRates(part->memory_bytes_per_second);
    GpuRates rates;
    const size_t kernels = Catalog(DeviceKind::kCuda).size();
    const absl::Status status = AppendRates(*part, kernels, rates);
    Demand(rates.kernel_rates.size() <= kernels && (status.ok() || rates.kernel_rates.empty()),
           "a worker tells the rates of kernels that there are not");
  }
}

// Delivers a record and checks the outcome.
absl::StatusOr<Packet> Received(std::string_view input) {
  static Ends& ends = *new Ends();
  Packet packet;
  Demand(absl::IsNotFound(ends.front.TryReceive(packet)), "a record is left");
  const auto* const bytes = reinterpret_cast<const std::byte*>(input.data());
  if (input.size() > packet.bytes.size()) {
    Demand(ends.worker.SendThroughSocket({bytes, input.size()}).ok(), "a record is not sent");
    const absl::Status refused = ends.front.Receive(packet);
    Demand(absl::IsInvalidArgument(refused), "a record is not refused by its length");
    return refused;
  }
  Demand(ends.worker.Send({bytes, input.size()}).ok(), "a record is not sent");
  const absl::Status status = ends.front.Receive(packet);
  if (!status.ok()) return status;
  Demand(packet.size == input.size() && std::memcmp(packet.bytes.data(), bytes, packet.size) == 0,
         "another record is received");
  return packet;
}

void TryPacket(const Packet& packet) {
  const auto kind = KindOf(packet);
  if (kind.ok()) (void)RefuseRecord(packet, RecordKind::kJob, sizeof(JobRequest));
  TryJob(packet);
  TryLaunch(packet);
  TryCompression(packet);
  TryRecompute(packet);
  TryAnswers(packet);
  if (const auto memory = ParseRecord<MemoryRequest>(packet);
      memory.ok() && CheckMemoryRequest(*memory, kStagingBytes).ok()) {
    Demand(memory->block != 0 && memory->slot < kMaxInFlight, "a request names no block");
    const bool is_copy =
        memory->action == MemoryAction::kWrite || memory->action == MemoryAction::kRead;
    if (is_copy) CheckWithin(memory->staged, memory->bytes);
    Demand(memory->action != MemoryAction::kAllocate || memory->bytes > 0, "a block is empty");
  }
}

void RunRecord(std::string_view input) {
  if (input.empty()) return;  // Not a packet.
  const absl::StatusOr<Packet> received = Received(input);
  if (received.ok()) TryPacket(*received);
}

// Sets some of the numbers after a record's header.
void ChangeRecord(std::string& record, Choices& choices) {
  constexpr size_t kWord = sizeof(int64_t);
  const size_t words = record.size() / kWord;
  if (words < 2) return;
  for (size_t edits = 1 + choices.Below(3); edits > 0; --edits) {
    const int64_t number = SomeNumber(choices);
    const size_t at = kWord * (1 + choices.Below(words - 1));
    const size_t size = choices.OnceIn(2) ? kWord : kWord / 2;
    std::memcpy(record.data() + at + (size < kWord && choices.OnceIn(2) ? size : 0), &number, size);
  }
}

std::vector<std::string> RecordSeeds() {
  std::vector<std::string> seeds;
  for (const ElementType type : {ElementType::kF16, ElementType::kS8, ElementType::kF64}) {
    JobRequest job;
    job.id = 1;
    Problem& problem = job.problem;
    problem.m = 16;
    problem.n = 8;
    problem.k = 32;
    const auto tight = [&](ElementType of, int64_t rows, int64_t columns) {
      return TightLayout("x", of, Order::kRowMajor, rows, columns).value();
    };
    problem.accumulation = DefaultAccumulation(type, type).value();
    problem.a = tight(type, 16, 32);
    problem.b = tight(type, 32, 8);
    problem.c = problem.d = tight(problem.accumulation, 16, 8);
    const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
    while (job.kernel < kernels.size() && !kernels[job.kernel].supports(problem).ok()) ++job.kernel;
    seeds.push_back(StringOf(job));
    problem.beta = 0.5;
    problem.bias_axis = BiasAxis::kRows;
    job.places.a = {.block = 7, .offset = 256};
    seeds.push_back(StringOf(job));
  }
  // Values that no request can lead to, since reading a request corrects them.
  for (int fault = 0; fault < 7; ++fault) {
    JobRequest job;
    Problem& problem = job.problem;
    problem.m = problem.n = 16;
    problem.k = 32;
    problem.batch = 2;
    problem.accumulation = ElementType::kF32;
    problem.a = TightSparseLayout("a", ElementType::kF16, 16, 32).value();
    problem.b = TightLayout("b", ElementType::kF16, Order::kRowMajor, 32, 16).value();
    problem.c = problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, 16, 16).value();
    problem.d.batch_stride_bytes = 1024;
    if (fault == 0) problem.a.order = Order::kColumnMajor;
    if (fault == 1) problem.a.leading_dimension = 40;
    if (fault == 2) problem.a.batch_stride_bytes = 8;
    if (fault == 3) problem.b = problem.a;
    if (fault == 4) problem.b.batch_stride_bytes = -8;
    if (fault == 5) job.kernel = 1 << 20;
    if (fault == 6) problem.d.sparsity = Sparsity::k2To4;
    seeds.push_back(StringOf(job));
  }
  // Inputs and D each fit into the staging area but overlap there.
  JobRequest large;
  large.id = 1;
  Problem& problem = large.problem;
  problem.m = problem.n = 1 << 14;
  problem.k = 1 << 12;
  problem.accumulation = ElementType::kF32;
  problem.a = TightLayout("a", ElementType::kF16, Order::kRowMajor, 1 << 14, 1 << 12).value();
  problem.b = TightLayout("b", ElementType::kF16, Order::kRowMajor, 1 << 12, 1 << 14).value();
  problem.c = problem.d =
      TightLayout("d", ElementType::kF32, Order::kRowMajor, 1 << 14, 1 << 14).value();
  const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
  while (large.kernel < kernels.size() && !kernels[large.kernel].supports(problem).ok()) {
    ++large.kernel;
  }
  seeds.push_back(StringOf(large));
  RecomputeRequest recompute;
  recompute.kernel = large.kernel;
  recompute.task = {.problem = problem, .rows = 3, .columns = 5, .places = {}};
  recompute.task.places.b.block = 2;
  seeds.push_back(StringOf(recompute));
  recompute.task.places.d.block = 3;
  seeds.push_back(StringOf(recompute));
  CompressRequest compression;
  compression.task.dense = TightLayout("x", ElementType::kBf16, Order::kRowMajor, 16, 64).value();
  compression.task.end_line = 16;
  seeds.push_back(StringOf(compression));
  compression.task.mask = TightLayout("x", ElementType::kB1, Order::kRowMajor, 16, 64).value();
  compression.task.mask_block = 3;
  seeds.push_back(StringOf(compression));
  for (const MemoryAction action :
       {MemoryAction::kAllocate, MemoryAction::kFree, MemoryAction::kWrite, MemoryAction::kRead}) {
    MemoryRequest memory;
    memory.action = action;
    memory.block = 5;
    memory.bytes = 4096;
    seeds.push_back(StringOf(memory));
  }
  LaunchRequest launch;
  launch.id = 1;
  launch.operands.a = {.offset = 4096, .bytes = 512};
  launch.d = {.offset = 8192, .bytes = 512};
  seeds.push_back(StringOf(launch));
  Result result;
  result.status.Set(absl::AbortedError("lost"));
  seeds.push_back(StringOf(result));
  Hello hello;
  hello.description.Set("NVIDIA H200");
  seeds.push_back(StringOf(hello));
  RatesPart part;
  part.kernels = static_cast<uint32_t>(Catalog(DeviceKind::kCuda).size());
  part.count = RatesPart::kMaxRates;
  seeds.push_back(StringOf(part));
  part.first = 5;
  seeds.push_back(StringOf(part));
  seeds.push_back(StringOf(MeasureRequest()));
  seeds.push_back(seeds.back() + std::string(sizeof(Packet::bytes), 'x'));
  // Blocks of no bytes, and parts where none are allowed.
  MemoryRequest empty;
  empty.action = MemoryAction::kAllocate;
  empty.block = 5;
  seeds.push_back(StringOf(empty));
  empty.block = 0;
  seeds.push_back(StringOf(empty));
  return seeds;
}

// One step of what happens to the rings: an input is a list of them.
struct RingStep {
  enum Action : uint8_t {
    kStore,    // Any word of the shared memory.
    kSetSent,  // Numbers of the ring to the side: how many records it has,
    kSetReceived,
    kSetAsleep,
    kSetSize,  // and the length of the record in one slot.
    kSend,     // A record, one word of which is another, from the other side.
    kReceive,  // All records.
    kWake,     // The side, through the socket.
    kActions
  };
  uint8_t action = kStore;
  uint8_t side = 0;  // 0: the worker, 1: the daemon.
  uint16_t slot = 0;
  uint32_t at = 0;  // A word of the memory or of the record.
  uint64_t value = 0;
};
static_assert(sizeof(RingStep) == 16);

constexpr std::array<uint8_t, 2> kSides = {0, 1};
constexpr size_t kMaxSteps = 256;  // Each of which may send a record through the socket.

// Where the words of a ring lie (server/crossing/channel.cc).
constexpr size_t kReceivedAt = 64;
constexpr size_t kAsleepAt = 72;
constexpr size_t kSlotsAt = 128;
constexpr size_t kSlotBytes = (sizeof(uint64_t) + sizeof(Packet::bytes) + 63) / 64 * 64;
constexpr size_t kRingBytes = kSlotsAt + Channel::kSlots * kSlotBytes;

// The seeds that fit a packet.
const std::vector<std::string>& KnownRecords() {
  static const std::vector<std::string>& records = *new std::vector<std::string>([] {
    std::vector<std::string> all = RecordSeeds();
    std::erase_if(all,
                  [](const std::string& record) { return record.size() > sizeof(Packet::bytes); });
    return all;
  }());
  return records;
}

// A channel whose memory anyone may change.
class OpenRings {
 public:
  OpenRings() : memory_(Staging::Map(ends_.front.rings()).value()) {
    const MeasureRequest any;
    Demand(SendRecord(ends_.front, any).ok() && SendRecord(ends_.worker, any).ok(),
           "a record is not sent");
    Demand(Word(0) == 1 && Word(kRingBytes) == 1 && Word(kSlotsAt) == sizeof(any),
           "the rings have another layout");
  }

  void Do(const RingStep& step) {
    const size_t ring = step.side % 2 * kRingBytes;
    Channel& side = step.side % 2 == 0 ? ends_.worker : ends_.front;
    Channel& other = step.side % 2 == 0 ? ends_.front : ends_.worker;
    switch (step.action % RingStep::kActions) {
      case RingStep::kStore:
        return Set(step.at % (memory_.matrices().size() / sizeof(uint64_t)) * sizeof(uint64_t),
                   step.value);
      case RingStep::kSetSent: return Set(ring, step.value);
      case RingStep::kSetReceived: return Set(ring + kReceivedAt, step.value);
      case RingStep::kSetAsleep: return Set(ring + kAsleepAt, step.value);
      case RingStep::kSetSize:
        return Set(ring + kSlotsAt + step.slot % Channel::kSlots * kSlotBytes, step.value);
      case RingStep::kSend: return Send(other, step);
      case RingStep::kReceive: return ReceiveAll(side);
      case RingStep::kWake: {
        (void)other.SendThroughSocket({reinterpret_cast<const std::byte*>(&step.value), 1});
        constexpr timespec kNow = {};
        return side.Sleep(&kNow);
      }
      default: return;
    }
  }

 private:
  uint64_t Word(size_t at) const {
    uint64_t word = 0;
    std::memcpy(&word, memory_.matrices().data() + at, sizeof(word));
    return word;
  }
  void Set(size_t at, uint64_t value) {
    std::memcpy(memory_.matrices().data() + at, &value, sizeof(value));
  }

  static void Send(Channel& from, const RingStep& step) {
    std::string record = KnownRecords()[step.slot % KnownRecords().size()];
    const size_t words = record.size() / sizeof(step.value);
    std::memcpy(record.data() + step.at % words * sizeof(step.value), &step.value,
                sizeof(step.value));
    const absl::Status sent =
        from.Send({reinterpret_cast<const std::byte*>(record.data()), record.size()});
    Demand(sent.ok() || absl::IsUnavailable(sent), "a record is refused for another reason");
  }

  static void ReceiveAll(Channel& side) {
    Packet packet;
    for (size_t records = 0; side.TryReceive(packet).ok(); ++records) {
      Demand(records < Channel::kSlots + kMaxSteps, "a ring has more records than slots");
      Demand(packet.size <= packet.bytes.size(), "a record is longer than its packet");
      TryPacket(packet);
    }
    (void)side.HasNews();
  }

  Ends ends_;
  Staging memory_;
};

// Both sides take what is there at the end.
void RunRing(std::string_view input) {
  OpenRings rings;
  const size_t steps = std::min(kMaxSteps, input.size() / sizeof(RingStep));
  for (size_t i = 0; i < steps; ++i) {
    RingStep step;
    std::memcpy(&step, input.data() + i * sizeof(step), sizeof(step));
    rings.Do(step);
  }
  for (const uint8_t side : kSides) rings.Do({.action = RingStep::kReceive, .side = side});
}

void ChangeRing(std::string& input, Choices& choices) {
  const size_t steps = input.size() / sizeof(RingStep);
  if (steps == 0 || choices.OnceIn(4)) {
    RingStep step;
    step.action = static_cast<uint8_t>(choices.Below(RingStep::kActions));
    step.side = static_cast<uint8_t>(choices.Below(2));
    step.slot = static_cast<uint16_t>(choices.Bits());
    step.at = static_cast<uint32_t>(choices.Bits());
    step.value = static_cast<uint64_t>(SomeNumber(choices));
    input.insert(choices.Below(steps + 1) * sizeof(step), StringOf(step));
    return;
  }
  const size_t at = choices.Below(steps) * sizeof(RingStep);
  RingStep step;
  std::memcpy(&step, input.data() + at, sizeof(step));
  switch (choices.Below(5)) {
    case 0: step.action = static_cast<uint8_t>(choices.Below(RingStep::kActions)); break;
    case 1: step.side ^= 1; break;
    case 2: step.slot = static_cast<uint16_t>(choices.Bits()); break;
    case 3: step.at = static_cast<uint32_t>(choices.Below(64)); break;
    default: step.value = static_cast<uint64_t>(SomeNumber(choices)); break;
  }
  std::memcpy(input.data() + at, &step, sizeof(step));
}

std::vector<std::string> RingSeeds() {
  constexpr uint64_t kMany = ~uint64_t{0};
  const auto steps = [](std::initializer_list<RingStep> all) {
    std::string input;
    for (const RingStep& step : all) input += StringOf(step);
    return input;
  };
  std::vector<std::string> seeds = {
      // More records than slots, none, and fewer than before.
      steps({{.action = RingStep::kSetSent, .side = 1, .value = 66}}),
      steps({{.action = RingStep::kSetSent, .value = kMany}, {.action = RingStep::kReceive}}),
      steps({{.action = RingStep::kReceive, .side = 1}, {.action = RingStep::kSetSent, .side = 1}}),
      // Records of no length and of any.
      steps({{.action = RingStep::kSetSize, .value = 0}}),
      steps({{.action = RingStep::kSetSize, .side = 1, .value = kMany}}),
      steps({{.action = RingStep::kSetSize, .value = sizeof(Packet::bytes) + 1}}),
      // The other side has taken more than was sent.
      steps({{.action = RingStep::kSetReceived, .value = kMany}, {.action = RingStep::kSend}}),
      steps({{.action = RingStep::kSetAsleep, .value = kMany},
             {.action = RingStep::kSend},
             {.action = RingStep::kWake},
             {.action = RingStep::kWake, .side = 1, .value = 1}}),
      steps({{.action = RingStep::kSetSent, .side = 1, .value = 65}})};
  for (uint16_t record = 0; record < KnownRecords().size(); ++record) {
    for (const uint8_t side : kSides) {
      seeds.push_back(
          steps({{.action = RingStep::kSend, .side = side, .slot = record, .at = 1, .value = 1}}));
    }
  }
  return seeds;
}

}  // namespace

std::vector<Target> RecordTargets() {
  return {{.name = "record", .run = RunRecord, .seeds = RecordSeeds, .change = ChangeRecord},
          {.name = "ring", .run = RunRing, .seeds = RingSeeds, .change = ChangeRing}};
}

}  // namespace gemmd::fuzz
