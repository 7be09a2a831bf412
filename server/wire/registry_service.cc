// SPDX-License-Identifier: Apache-2.0
#include "server/wire/registry_service.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "server/product/product_runner.h"
#include "server/product/scheduler.h"
#include "server/store/product_tensors.h"
#include "server/system/version.h"
#include "server/wire/calls.h"
#include "server/wire/convert.h"
#include "server/wire/incoming.h"
#include "server/wire/listing.h"
#include "server/wire/tensor_service.h"

namespace gemmd {

namespace {

using Counts = google::protobuf::RepeatedPtrField<v1::Count>;

void AddCount(std::string_view name, int64_t count, Counts& counts) {
  v1::Count* const wire = counts.Add();
  wire->set_name(std::string(name));
  wire->set_count(count);
}

void FillHistogram(const LatencyHistogram& histogram, v1::DurationHistogram& wire) {
  for (const int64_t bound : LatencyHistogram::kBoundsNs) wire.add_bounds_ns(bound);
  for (const int64_t count : histogram.counts) wire.add_counts(count);
  wire.set_sum_ns(histogram.sum_ns);
}

void FillGpu(const GpuSample& sample, v1::GpuReading& wire) {
  const GpuReading& gpu = sample.reading;
  wire.set_uuid(sample.uuid);
  if (gpu.utilization) wire.set_utilization(*gpu.utilization);
  if (gpu.power_watts) wire.set_power_watts(*gpu.power_watts);
  if (gpu.power_limit_watts) wire.set_power_limit_watts(*gpu.power_limit_watts);
  if (gpu.memory_bytes) wire.set_memory_bytes(*gpu.memory_bytes);
  if (gpu.memory_used_bytes) wire.set_memory_used_bytes(*gpu.memory_used_bytes);
  if (gpu.sm_clock_hertz) wire.set_sm_clock_hertz(*gpu.sm_clock_hertz);
  if (gpu.temperature_celsius) wire.set_temperature_celsius(*gpu.temperature_celsius);
  if (gpu.ecc_uncorrected) wire.set_ecc_uncorrected_errors(*gpu.ecc_uncorrected);
}

void FillDevice(const DeviceSnapshot& device, v1::DeviceStatistics& wire) {
  wire.set_name(device.info->name);
  wire.set_ready(device.is_ready);
  wire.set_queued_requests(device.load.queued_requests);
  wire.set_queued_bytes(device.load.queued_bytes);
  wire.set_predicted_queue_ns(device.load.backlog_ns);
  const Stats::DeviceTotals& totals = device.totals;
  for (size_t code = 0; code < kStatusCodes; ++code) {
    if (totals.ends[code] == 0) continue;
    AddCount(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)), totals.ends[code],
             *wire.mutable_ends());
  }
  wire.set_operations(totals.operations);
  wire.set_bytes_read(totals.bytes_read);
  wire.set_bytes_written(totals.bytes_written);
  wire.set_busy_ns(device.load.busy_ns);
  const auto& launches = device.load.launches;
  wire.set_launches(std::accumulate(launches.begin(), launches.end(), int64_t{0}));
  wire.set_stacked_products(device.load.stacked_requests);
  wire.set_batched_products(device.load.batched_requests);
  FillHistogram(totals.total, *wire.mutable_total());
  wire.set_worker_restarts(device.condition.worker_restarts);
  wire.set_canaries_passed(device.condition.canaries_passed);
  wire.set_canaries_failed(device.condition.canaries_failed);
  for (const int64_t count : launches) wire.add_launches_by_products(count);
  wire.set_tensor_bytes(device.condition.tensor_bytes);
  wire.set_tensor_hits(device.condition.tensor_hits);
  wire.set_tensors_brought(device.condition.tensors_brought);
  wire.set_tensors_evicted(device.condition.tensors_evicted);
  if (device.gpu) FillGpu(*device.gpu, *wire.mutable_gpu());
}

void FillTensors(const TensorStore::Load& tensors, v1::TensorStatistics& wire) {
  wire.set_sessions(tensors.sessions);
  wire.set_tensors(tensors.tensors);
  wire.set_uploads(tensors.uploads);
  wire.set_host_bytes(tensors.bytes);
  wire.set_max_host_bytes(tensors.max_bytes);
  wire.set_uploads_complete(tensors.uploads_complete);
  wire.set_uploads_known(tensors.uploads_known);
  wire.set_expired(tensors.tensors_expired);
  wire.set_lost(tensors.tensors_lost);
  for (const TensorStore::OwnerLoad& owner : tensors.owners) {
    v1::OwnerStatistics& one = *wire.add_owners();
    one.set_name(owner.name);
    one.set_tensors(owner.tensors);
    one.set_host_bytes(owner.bytes);
    one.set_caller(owner.caller);
  }
}

}  // namespace

v1::GetStatisticsResponse ToWire(const Snapshot& snapshot, int64_t uptime_ns,
                                 int64_t started_unix_ns) {
  v1::GetStatisticsResponse wire;
  wire.set_uptime_ns(uptime_ns);
  wire.set_started_unix_ns(started_unix_ns);
  wire.set_draining(snapshot.is_draining);
  wire.set_admitted_requests(snapshot.admission.requests);
  wire.set_max_admitted_requests(snapshot.limits.max_requests);
  wire.set_admitted_bytes(snapshot.admission.bytes);
  wire.set_max_admitted_bytes(snapshot.limits.max_bytes);
  wire.set_admissions(snapshot.admission.admitted);
  for (const RefusalCount& refusal : RefusalCounts(snapshot)) {
    AddCount(refusal.reason, refusal.count, *wire.mutable_refusals());
  }
  for (const DeviceSnapshot& device : snapshot.devices) FillDevice(device, *wire.add_devices());
  FillTensors(snapshot.tensors, *wire.mutable_tensors());
  for (const Stats::KernelTotals& kernel : snapshot.kernels) {
    if (kernel.products == 0) continue;
    v1::KernelStatistics& one = *wire.add_kernels();
    one.set_device_kind(std::string(NameOf(kernel.device_kind)));
    one.set_name(std::string(kernel.kernel));
    one.set_products(kernel.products);
    one.set_compute_ns(kernel.compute_ns);
  }
  for (const RuleUse::Totals& caller : snapshot.callers) {
    v1::CallerStatistics& one = *wire.add_callers();
    one.set_rule(caller.rule);
    one.set_answered(caller.answered);
    one.set_failed(caller.failed);
    one.set_refused(caller.refused);
    one.set_compute_ns(caller.compute_ns);
    const auto bytes = snapshot.tensors.bytes_of_rules.find(caller.rule);
    if (bytes != snapshot.tensors.bytes_of_rules.end()) one.set_tensor_bytes(bytes->second);
  }
  return wire;
}

v1::Kernel ToWire(const Kernel& kernel) {
  v1::Kernel wire;
  wire.set_name(std::string(kernel.name));
  wire.set_device_kind(std::string(NameOf(kernel.device_kind)));
  wire.set_provider(std::string(kernel.provider));
  wire.set_a_type(ToWire(kernel.a));
  wire.set_b_type(ToWire(kernel.b));
  wire.set_compute_type_a(ToWire(kernel.recipe.a_compute));
  wire.set_compute_type_b(ToWire(kernel.recipe.b_compute));
  wire.set_accumulation_type(ToWire(kernel.recipe.accumulation));
  wire.set_description(std::string(kernel.how));
  wire.set_exact(kernel.recipe.exact);
  wire.set_deterministic(kernel.deterministic);
  wire.set_batch_invariant(kernel.batch_invariant);
  wire.set_flushes_subnormals(kernel.recipe.flushes_subnormals);
  wire.set_promotion_k(kernel.recipe.promotion_k);
  return wire;
}

v1::KernelAvailability AvailabilityOn(const ServedDevice& served, const Kernel& kernel) {
  const absl::Status available = kernel.available(served.device->profile().target);
  v1::KernelAvailability wire;
  wire.set_device(served.device->info().name);
  wire.set_available(available.ok());
  wire.set_reason(std::string(available.message()));
  return wire;
}

Listing ListingOfKernels(const std::vector<ServedDevice>& devices) {
  std::vector<ListedItem> items;
  for (const Kernel& kernel : Catalog()) {
    v1::Kernel wire = ToWire(kernel);
    for (const ServedDevice& served : devices) {
      *wire.add_availability() = AvailabilityOn(served, kernel);
    }
    items.push_back({wire.name(), wire.SerializeAsString()});
  }
  return Listing(v1::ListKernelsResponse::kKernelsFieldNumber, items);
}

absl::StatusOr<grpc::ByteBuffer> ListKernels(const Listing& kernels,
                                             const v1::ListKernelsRequest& request) {
  ASSIGN_OR_RETURN(const NamePattern pattern,
                   NamePattern::Parse("name_pattern", request.name_pattern()));
  if (request.name_pattern().empty()) return kernels.All();
  return kernels.Answer([&](size_t, std::string_view name) { return pattern.Matches(name); });
}

v1::Device ToWire(const ServedDevice& served, const DeviceLoad& load) {
  const DeviceInfo& info = served.device->info();
  v1::Device wire;
  wire.set_name(info.name);
  wire.set_kind(std::string(NameOf(info.kind)));
  wire.set_description(info.description);
  wire.set_arithmetic(info.arithmetic);
  wire.set_threads(info.threads);
  const absl::Status readiness = served.readiness();
  wire.set_ready(readiness.ok());
  wire.set_not_ready_reason(std::string(readiness.message()));
  wire.set_memory_bytes(info.memory_bytes);
  wire.set_chip(info.chip);
  wire.set_multiprocessors(info.multiprocessors);
  wire.set_memory_limit_bytes(info.memory_limit_bytes);
  wire.set_clock_khz(info.clock_khz);
  wire.set_memory_clock_khz(info.memory_clock_khz);
  wire.set_cuda_driver_version(info.driver);
  wire.set_cuda_runtime_version(info.runtime);
  wire.set_queued_requests(load.queued_requests);
  wire.set_queued_bytes(load.queued_bytes);
  wire.set_completed_requests(load.completed_requests);
  for (const EngineRate& rate : served.device->profile().rates) {
    v1::Rate* wire_rate = wire.add_rates();
    wire_rate->set_engine(rate.engine);
    wire_rate->set_operations_per_second(rate.operations_per_second);
  }
  return wire;
}

absl::Status FillExplanation(const Problem& problem, const Selection& selection,
                             v1::ExplainResponse& response) {
  for (const Candidate& candidate : selection.candidates) {
    v1::Candidate* wire = response.add_candidates();
    wire->set_kernel(std::string(candidate.kernel->name));
    wire->set_predicted_ns(candidate.predicted_ns);
    wire->set_reason(candidate.reason);
  }
  for (const Refusal& refusal : selection.refusals) {
    v1::Refusal* wire = response.add_refusals();
    wire->set_kernel(std::string(refusal.kernel->name));
    wire->set_reason(refusal.reason);
  }
  response.set_operations(Operations(problem));
  response.set_bytes_read(BytesRead(problem));
  response.set_bytes_written(BytesWritten(problem));
  if (selection.candidates.empty()) return absl::OkStatus();
  response.set_recipe(selection.recipe);
  ASSIGN_OR_RETURN(const int64_t bytes,
                   selection.candidates.front().kernel->workspace_bytes(problem));
  response.set_workspace_bytes(bytes);
  return absl::OkStatus();
}

namespace {

// The maximum bytes of unread answers of Explain and DescribeFragment. Other answers are small, or
// are kept anyway.
constexpr int64_t kMaxUnreadRegistryBytes = int64_t{32} << 20;

void AddLibrary(std::string name, std::string version, v1::GetServerInfoResponse& response) {
  v1::Library* library = response.add_libraries();
  library->set_name(std::move(name));
  library->set_version(std::move(version));
}

void AddLibraries(v1::GetServerInfoResponse& response) {
  AddLibrary("gRPC", grpc::Version(), response);
  AddLibrary("Protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION),
             response);
  for (LibraryVersion& library : CpuLibraries()) {
    AddLibrary(std::move(library.name), std::move(library.version), response);
  }
}

// The optional parts of the contract that this server supports. GetServerInfoResponse.features
// describes each.
constexpr const char* kFeatures[] = {
    "batches",          "block-scales",    "checked-answers", "explain",      "fast-accumulation",
    "fragments",        "leases",          "multiply-stream", "narrow-types", "priorities",
    "resident-tensors", "simulated-chips", "sparse-a",        "statistics"};

class RegistryService final : public AnsweredService<v1::Registry::Service> {
 public:
  RegistryService(const std::vector<ServedDevice>& devices, const ServiceParts& parts,
                  const Observer& observer, v1::Limits limits)
      : AnsweredService(parts, kMaxUnreadRegistryBytes),
        devices_(devices),
        observer_(observer),
        limits_(std::move(limits)),
        started_ns_(parts.clock.NowNs()),
        started_unix_ns_(absl::GetCurrentTimeNanos()),
        kernels_(ListingOfKernels(devices)) {
    // Builds the index of the names now and not during a call.
    FindKernel(Catalog().front().name).IgnoreError();
    const auto has_memory = [this](Context&) { return parts_.runner.CheckQuestion(); };
    // Operators ask for these answers also when the server is short of memory.
    const auto always = [](Context&) { return absl::OkStatus(); };
    const std::string_view name = v1::Registry::service_full_name();
    Add(name, HandlerOf("ListKernels"), has_memory, &RegistryService::ListKernels);
    Add(name, HandlerOf("ListInstructions"), has_memory, &RegistryService::ListInstructions);
    Add(name, HandlerOf("DescribeFragment"), has_memory, &RegistryService::DescribeFragment);
    Add(name, HandlerOf("Explain"), has_memory, &RegistryService::Explain);
    Add(name, HandlerOf("ListDevices"), always, &RegistryService::ListDevices);
    Add(name, HandlerOf("GetServerInfo"), always, &RegistryService::GetServerInfo);
    Add(name, HandlerOf("GetStatistics"), always, &RegistryService::GetStatistics);
  }

 private:
  absl::StatusOr<RegistryAnswer> ListKernels(Context&, const v1::ListKernelsRequest& wire) {
    ASSIGN_OR_RETURN(grpc::ByteBuffer bytes, gemmd::ListKernels(kernels_, wire));
    return RegistryAnswer{std::move(bytes)};
  }

  absl::StatusOr<RegistryAnswer> ListInstructions(Context&,
                                                  const v1::ListInstructionsRequest& wire) {
    ASSIGN_OR_RETURN(grpc::ByteBuffer bytes, instructions_.List(wire));
    return RegistryAnswer{std::move(bytes)};
  }

  absl::StatusOr<RegistryAnswer> DescribeFragment(Context&,
                                                  const v1::DescribeFragmentRequest& wire) {
    ASSIGN_OR_RETURN(grpc::ByteBuffer bytes, instructions_.Fragment(wire));
    const auto own_bytes = static_cast<int64_t>(bytes.Length());
    return RegistryAnswer{std::move(bytes), own_bytes};
  }

  absl::StatusOr<RegistryAnswer> GetStatistics(Context&, const v1::GetStatisticsRequest&) {
    return AnswerOf(
        gemmd::ToWire(observer_.Observe(), parts_.clock.NowNs() - started_ns_, started_unix_ns_));
  }

  absl::StatusOr<RegistryAnswer> ListDevices(Context&, const v1::ListDevicesRequest&) {
    v1::ListDevicesResponse response;
    const Snapshot now = observer_.Observe();
    for (size_t i = 0; i < devices_.size(); ++i) {
      *response.add_devices() = gemmd::ToWire(devices_[i], now.devices[i].load);
    }
    return AnswerOf(response);
  }

  absl::StatusOr<RegistryAnswer> Explain(Context& context, v1::ExplainRequest& wire) {
    ASSIGN_OR_RETURN(const Gate::Caller caller, parts_.gate.CallerOf(context, Role::kRegistry));
    const std::string token = SessionTokenOf(context);
    Product product;
    RETURN_IF_ERROR(ParseWithTensors(parts_.runner.tensors(),
                                     {.token = token, .identity = caller.get()},
                                     *wire.mutable_request(), nullptr, product));
    if (caller != nullptr) {
      RETURN_IF_ERROR(RestrictToGrant(caller->grant, devices_, parts_.runner, product));
    }
    ASSIGN_OR_RETURN(const ProductRunner::Placement place, parts_.runner.FindPlace(product));
    const Device& device = *place.served->device;
    const Problem& problem = product.job.problem;
    v1::ExplainResponse response;
    response.set_device(device.info().name);
    Constraints constraints = product.constraints;
    constraints.distrusted = place.distrusted;
    const Selection selection =
        Select(Catalog(device.info().kind), problem, constraints, device.profile());
    RETURN_IF_ERROR(FillExplanation(problem, selection, response));
    const bool has_resident_b =
        product.tensors != nullptr && product.tensors->read(OperandRole::kB) != nullptr;
    response.set_bits_may_vary(has_resident_b && !selection.candidates.empty() &&
                               parts_.runner.MayVary(product) &&
                               MayVaryJoined(*selection.candidates.front().kernel));
    for (size_t i = 0; i < selection.candidates.size(); ++i) {
      const Candidate& candidate = selection.candidates[i];
      response.mutable_candidates(static_cast<int>(i))
          ->set_expected_ns(parts_.runner.ExpectedNs(*place.served, *candidate.kernel, problem,
                                                     candidate.predicted_ns));
    }
    return AnswerOf(response);
  }

  absl::StatusOr<RegistryAnswer> GetServerInfo(Context&, const v1::GetServerInfoRequest&) {
    v1::GetServerInfoResponse response;
    response.set_version(kVersion);
    AddLibraries(response);
    *response.mutable_limits() = limits_;
    for (const char* const feature : kFeatures) response.add_features(feature);
    response.set_default_device(devices_.front().device->info().name);
    response.set_uptime_ns(parts_.clock.NowNs() - started_ns_);
    response.set_draining(observer_.is_draining());
    response.set_unix_ns(absl::GetCurrentTimeNanos());
    return AnswerOf(response);
  }

  const std::vector<ServedDevice>& devices_;
  const Observer& observer_;
  const v1::Limits limits_;
  const int64_t started_ns_;
  const int64_t started_unix_ns_;
  const Listing kernels_;
  InstructionAnswers instructions_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRegistryService(const std::vector<ServedDevice>& devices,
                                                   const ServiceParts& parts,
                                                   const Observer& observer, v1::Limits limits) {
  return std::make_unique<RegistryService>(devices, parts, observer, std::move(limits));
}

}  // namespace gemmd
