// SPDX-License-Identifier: Apache-2.0
//
// Records between the daemon and a GPU's worker process, as either side receives them from a
// channel: whatever is accepted lies within the staging area, by sizes in 128 bits.
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

void RunRecord(std::string_view input) {
  if (input.empty()) return;  // Not a packet.
  const absl::StatusOr<Packet> received = Received(input);
  if (!received.ok()) return;
  const Packet& packet = *received;
  const auto kind = KindOf(packet);
  if (kind.ok()) (void)RefuseRecord(packet, RecordKind::kJob, sizeof(JobRequest));
  TryJob(packet);
  TryCompression(packet);
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

}  // namespace

std::vector<Target> RecordTargets() {
  return {{.name = "record", .run = RunRecord, .seeds = RecordSeeds, .change = ChangeRecord}};
}

}  // namespace gemmd::fuzz
