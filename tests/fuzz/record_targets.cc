// SPDX-License-Identifier: Apache-2.0
//
// Records between the daemon and the process of a GPU's worker, as either side takes them from a
// socket: what is checked lies within the staging area, by sizes in 128 bits.
#include <cstring>
#include <string>
#include <vector>

#include "kernels/catalog.h"
#include "kernels/checked.h"
#include "server/crossing/protocol.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

__extension__ using Wide = __int128;

constexpr int64_t kStagingBytes = int64_t{1} << 30;

template <typename Record>
std::string BytesOfRecord(const Record& record) {
  return std::string(reinterpret_cast<const char*>(&record), sizeof(record));
}

void CheckWithin(Wide offset, Wide bytes) {
  Demand(offset >= 0 && bytes >= 0 && offset + bytes <= kStagingBytes,
         "a record leaves the staging area");
}

void TryJob(const Packet& packet) {
  const auto job = ParseRecord<JobRequest>(packet);
  if (!job.ok() || !CheckJob(*job, kStagingBytes).ok()) return;
  Demand(job->slot < kMostInFlight, "a job has a slot that there is not");
  Demand(Validate(job->problem).ok(), "the problem of a job is not valid");
  const Kernel& kernel = Catalog(DeviceKind::kCuda)[job->kernel];
  Demand(kernel.supports(job->problem).ok(), "a job's kernel does not support it");
  const auto layout = LayOutJob(job->problem, job->places);
  Demand(layout.ok(), "a job has no layout");
  CheckWithin(job->staged_inputs, layout->input_bytes);
  CheckWithin(job->staged_d, layout->staged_d_bytes());
  for (const PlacedRange& one : RangesOf(*layout, job->places)) {
    if (!one.place.is_staged() || one.range.bytes == 0) continue;
    Demand(one.range.offset % kJobAlignment == 0, "a matrix is not aligned");
    CheckWithin(one.range.offset, one.range.bytes);
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

void TryAnswers(const Packet& packet) {
  if (const auto result = ParseRecord<Result>(packet); result.ok()) {
    const absl::Status status = result->status.get();
    Demand(status.ok() == (result->status.code == 0), "a result's status is another one");
    Demand(status.message().size() < 512, "a result's message is long");
  }
  if (const auto hello = ParseRecord<Hello>(packet); hello.ok()) {
    Demand(hello->description.view().size() <= 128 && hello->pci_bus_id.view().size() <= 32,
           "a worker's text is long");
    (void)hello->status.get();
  }
  if (const auto part = ParseRecord<RatesPart>(packet); part.ok()) {
    GpuRates rates;
    const size_t kernels = Catalog(DeviceKind::kCuda).size();
    const absl::Status status = AppendRates(*part, kernels, rates);
    Demand(rates.kernel_rates.size() <= kernels && (status.ok() || rates.kernel_rates.empty()),
           "a worker tells the rates of kernels that there are not");
  }
}

void RunRecord(std::string_view input) {
  Packet packet;
  packet.size = input.copy(reinterpret_cast<char*>(packet.bytes.data()), packet.bytes.size());
  const auto kind = KindOf(packet);
  if (kind.ok()) (void)RefuseRecord(packet, RecordKind::kJob, sizeof(JobRequest));
  TryJob(packet);
  TryCompression(packet);
  TryAnswers(packet);
  if (const auto memory = ParseRecord<MemoryRequest>(packet);
      memory.ok() && CheckMemoryRequest(*memory, kStagingBytes).ok()) {
    Demand(memory->block != 0 && memory->slot < kMostInFlight, "a request names no block");
    const bool is_copy =
        memory->action == MemoryAction::kWrite || memory->action == MemoryAction::kRead;
    if (is_copy) CheckWithin(memory->staged, memory->bytes);
    Demand(memory->action != MemoryAction::kAllocate || memory->bytes > 0, "a block is empty");
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
    seeds.push_back(BytesOfRecord(job));
    problem.beta = 0.5;
    problem.bias_axis = BiasAxis::kRows;
    job.places.a = {.block = 7, .offset = 256};
    seeds.push_back(BytesOfRecord(job));
  }
  CompressRequest compression;
  compression.task.dense = TightLayout("x", ElementType::kBf16, Order::kRowMajor, 16, 64).value();
  compression.task.end_line = 16;
  seeds.push_back(BytesOfRecord(compression));
  compression.task.mask = TightLayout("x", ElementType::kB1, Order::kRowMajor, 16, 64).value();
  compression.task.mask_block = 3;
  seeds.push_back(BytesOfRecord(compression));
  for (const MemoryAction action :
       {MemoryAction::kAllocate, MemoryAction::kFree, MemoryAction::kWrite, MemoryAction::kRead}) {
    MemoryRequest memory;
    memory.action = action;
    memory.block = 5;
    memory.bytes = 4096;
    seeds.push_back(BytesOfRecord(memory));
  }
  Result result;
  result.status.Set(absl::AbortedError("lost"));
  seeds.push_back(BytesOfRecord(result));
  Hello hello;
  hello.description.Set("NVIDIA H200");
  seeds.push_back(BytesOfRecord(hello));
  RatesPart part;
  part.kernels = static_cast<uint32_t>(Catalog(DeviceKind::kCuda).size());
  part.count = RatesPart::kMostRates;
  seeds.push_back(BytesOfRecord(part));
  seeds.push_back(BytesOfRecord(MeasureRequest()));
  return seeds;
}

}  // namespace

std::vector<Target> RecordTargets() { return {{"record", RunRecord, RecordSeeds}}; }

}  // namespace gemmd::fuzz
