// SPDX-License-Identifier: Apache-2.0
//
// The protocol between the front and the worker of a GPU: records of plain data, sent through a
// Channel (channel.h). Matrices are not sent: they are in the staging area (shared_memory.h), at
// offsets that both sides compute from the problem (job_layout.h), or in blocks, which are GPU
// memory that outlives jobs.
//
//   worker: Hello, or a Hello with an error and the end
//   front:  MeasureRequest   worker: RatesPart, until all are sent
//   front:  JobRequest       worker: Result     StagingControl ends one early
//   front:  MemoryRequest    worker: Result
//   front:  CompressRequest  worker: Result
//   either: closes the channel, and the worker ends
//
// The worker of a device of the host also sends Hello and answers a MeasureRequest. Then it gets
// LaunchRequests, which it runs one after the other, and answers each with a Result. Their matrices
// are in SharedMemory (shared_memory.h).
//
// Each request has one of kMaxInFlight slots until it is answered. Requests that name the same
// block run in the order in which they were sent; others can overtake, and answers come in any
// order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/matrix/text.h"
#include "kernels/per_operand.h"
#include "kernels/problem.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/recompute_task.h"
#include "server/crossing/shared_memory.h"

namespace gemmd {

// The file descriptors of a worker for the socket and the rings of its channel, and for the staging
// area.
inline constexpr int kWorkerSocket = 3;
inline constexpr int kWorkerStaging = 4;
inline constexpr int kWorkerRings = 5;
inline constexpr int kLastWorkerFile = kWorkerRings;

inline constexpr uint32_t kWorkerProtocol = 15;

enum class RecordKind : uint32_t {
  kHello = 1,
  kMeasure,
  kRates,
  kJob,
  kResult,
  kMemory,
  kCompress,
  kLaunch,
  kRecompute
};

struct RecordHeader {
  uint32_t protocol = kWorkerProtocol;
  RecordKind kind = {};
};

// Text of at most kSize - 1 bytes; longer text is cut at the end of a character.
template <size_t kSize>
struct RecordText {
  std::array<char, kSize> bytes = {};

  void Set(std::string_view text) {
    bytes = {};
    text = CutAtCharacter(text, kSize - 1);
    text.copy(bytes.data(), text.size());
  }
  std::string_view view() const { return {bytes.data(), strnlen(bytes.data(), kSize)}; }
};

// An absl::Status.
struct RecordStatus {
  int32_t code = 0;
  RecordText<512> message;

  void Set(const absl::Status& status);
  absl::Status get() const;
};

// The first record of a worker: its GPU, or why there is none.
struct Hello {
  static constexpr RecordKind kKind = RecordKind::kHello;
  RecordHeader header = {.kind = kKind};
  RecordStatus status;          // If it is not OK, the rest is meaningless.
  uint64_t catalog = 0;         // CatalogFingerprint().
  RecordText<128> description;  // "NVIDIA H200".
  int32_t capability = 0;       // 90.
  int32_t multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t memory_limit_bytes = 0;  // Limit for jobs and blocks.
  int64_t tensor_limit_bytes = 0;  // What blocks may use of that.
  int64_t clock_khz = 0;           // The highest clock of the multiprocessors.
  int64_t memory_clock_khz = 0;
  int32_t driver_version = 0;   // CUDA's: 1000 * major + 10 * minor.
  int32_t runtime_version = 0;  // In the same form.
  RecordText<32> pci_bus_id;    // "0000:01:00.0".
  uint32_t is_confined = 0;     // Whether it was to give up rights.
  RecordText<64> confinement;   // By what it did: "landlock 7, seccomp".
  RecordText<128> unconfined;   // What was missing for that, and why.
};

struct MeasureRequest {
  static constexpr RecordKind kKind = RecordKind::kMeasure;
  RecordHeader header = {.kind = kKind};
};

// How fast a GPU is: DeviceProfile, as far as a worker measures it.
struct GpuRates {
  std::vector<double> kernel_rates;
  double memory_bytes_per_second = 0;
  double copied_bytes_per_second = 0;
};

// A part of the rates: those of `count` kernels from position `first`. Parts are sent until every
// kernel of the catalogue is covered. A device of the host sends the numbers of its profile instead
// (kernels/host_rates.h).
struct RatesPart {
  static constexpr RecordKind kKind = RecordKind::kRates;
  static constexpr size_t kMaxRates = 256;
  RecordHeader header = {.kind = kKind};
  uint32_t kernels = 0;  // In the worker's catalogue.
  uint32_t first = 0;
  uint32_t count = 0;
  std::array<double, kMaxRates> kernel_rates = {};
  double memory_bytes_per_second = 0;
  double copied_bytes_per_second = 0;
};

struct JobRequest {
  static constexpr RecordKind kKind = RecordKind::kJob;
  RecordHeader header = {.kind = kKind};
  uint64_t id = 0;           // Ascending from 1, over all requests.
  uint32_t slot = 0;         // Less than kMaxInFlight.
  uint32_t kernel = 0;       // Position in Catalog(DeviceKind::kCuda).
  int64_t predicted_ns = 0;  // Predicted time of the launch; a long launch is split into panels.
  // Offsets in the staging area, aligned to kJobAlignment: of the inputs, and of D or, if D is in
  // blocks, of the receipt (JobLayout), which holds the mark until D is written.
  int64_t staged_inputs = 0;
  int64_t staged_d = 0;
  JobPlaces places;
  Problem problem;
};

enum class MemoryAction : uint32_t { kAllocate, kFree, kWrite, kRead };

// An operation on a block. A new block is filled with zeros.
struct MemoryRequest {
  static constexpr RecordKind kKind = RecordKind::kMemory;
  RecordHeader header = {.kind = kKind};
  uint64_t id = 0;
  uint32_t slot = 0;
  MemoryAction action = {};
  uint64_t block = 0;  // The front's number for it, never 0 and never reused.
  int64_t offset = 0;  // In the block.
  int64_t bytes = 0;   // Length of the new block, or of the copy.
  int64_t staged = 0;  // Source or destination in the staging area.
};

// Compresses lines of a block into another block.
struct CompressRequest {
  static constexpr RecordKind kKind = RecordKind::kCompress;
  RecordHeader header = {.kind = kKind};
  uint64_t id = 0;
  uint32_t slot = 0;
  CompressTask task;
  int64_t predicted_ns = 0;
  int64_t staged =
      0;  // Where in the staging area the first bad group is reported (kernels/matrix/sparse24.h).
};

// Computes some elements of a D again; see RecomputeTask.
struct RecomputeRequest {
  static constexpr RecordKind kKind = RecordKind::kRecompute;
  RecordHeader header = {.kind = kKind};
  uint64_t id = 0;
  uint32_t slot = 0;
  uint32_t kernel = 0;  // Of the rows and columns; position in Catalog(DeviceKind::kCuda).
  int64_t predicted_ns = 0;
  // Offsets in the staging area, aligned to kJobAlignment, of what the worker reads and writes.
  int64_t staged_in = 0;
  int64_t staged_out = 0;
  RecomputeTask task;
};

// A launch on the host. The ranges of the shared memory are those of GemmArgs.
struct LaunchRequest {
  static constexpr RecordKind kKind = RecordKind::kLaunch;
  RecordHeader header = {.kind = kKind};
  uint64_t id = 0;      // Ascending from 1.
  uint32_t slot = 0;    // Less than kMaxInFlight.
  uint32_t kernel = 0;  // Position in the catalogue of the worker's kind of device.
  uint32_t is_a_form_made = 0;
  uint32_t is_b_form_made = 0;
  int64_t workspace_bytes = 0;
  PerOperand<ByteRange> operands;
  ByteRange a_form;
  ByteRange b_form;
  ByteRange d;
  Problem problem;
};

// The answer to every request but MeasureRequest.
struct Result {
  static constexpr RecordKind kKind = RecordKind::kResult;
  RecordHeader header = {.kind = kKind};
  uint64_t id = 0;
  RecordStatus status;
  uint32_t is_lost = 0;  // 1: the GPU's context is gone, and the worker ends.
  uint32_t made_forms =
      0;  // 1: the forms of A and B that the job had to make (FormPlace) are made.
  int64_t copy_in_ns = 0;
  int64_t compute_ns = 0;
  int64_t copy_out_ns = 0;
};

// A hash of the catalogue: if it is equal, positions of kernels have the same meaning.
uint64_t CatalogFingerprint(DeviceKind kind = DeviceKind::kCuda);

// Appends a part to the rates received before. Errors: InvalidArgument if it is not the next part,
// or has another number of kernels.
absl::Status AppendRates(const RatesPart& part, size_t kernels, GpuRates& rates);

// OK if every enumerator is known, the problem is valid, the kernel exists and supports it, and the
// staged ranges are within `staging_bytes`. Blocks and parts of matrices are checked by the owner
// of the blocks. Errors: InvalidArgument, Unimplemented.
absl::Status CheckJob(const JobRequest& request, int64_t staging_bytes);

// The same for an operation on a block.
absl::Status CheckMemoryRequest(const MemoryRequest& request, int64_t staging_bytes);

// The same for a compression.
absl::Status CheckCompressRequest(const CompressRequest& request, int64_t staging_bytes);

// The same for elements of a D. The numbers of rows and columns are checked by the worker.
absl::Status CheckRecomputeRequest(const RecomputeRequest& request, int64_t staging_bytes);

// OK if kernel and slot exist and every range is within that many bytes of shared memory. Errors:
// InvalidArgument.
absl::Status CheckLaunch(const LaunchRequest& request, size_t kernels, int64_t shared_bytes);

// OK if the range is within that many bytes. `of` names it in errors. Errors: InvalidArgument.
absl::Status CheckRange(std::string_view of, int64_t offset, int64_t bytes, int64_t all_bytes);

// A record as received.
struct Packet {
  std::array<std::byte, std::max({sizeof(Hello), sizeof(RatesPart), sizeof(JobRequest),
                                  sizeof(MemoryRequest), sizeof(CompressRequest),
                                  sizeof(RecomputeRequest), sizeof(LaunchRequest), sizeof(Result)})>
      bytes;
  size_t size = 0;
};

// Errors: InvalidArgument for a packet that is not a record of this protocol.
absl::StatusOr<RecordKind> KindOf(const Packet& packet);

absl::Status RefuseRecord(const Packet& packet, RecordKind want, size_t want_bytes);

// Errors: InvalidArgument for anything but a record of this kind.
template <typename Record>
absl::StatusOr<Record> ParseRecord(const Packet& packet) {
  const absl::StatusOr<RecordKind> kind = KindOf(packet);
  if (!kind.ok()) return kind.status();
  if (*kind != Record::kKind || packet.size != sizeof(Record)) {
    return RefuseRecord(packet, Record::kKind, sizeof(Record));
  }
  Record record;
  std::memcpy(&record, packet.bytes.data(), sizeof(Record));
  return record;
}

}  // namespace gemmd
