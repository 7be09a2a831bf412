// SPDX-License-Identifier: Apache-2.0
#include "server/product/verification.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/default_recipe.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/select.h"
#include "kernels/verify/checksum.h"
#include "kernels/verify/recompute.h"
#include "kernels/verify/sampled.h"
#include "server/crossing/recompute_task.h"
#include "server/system/log.h"

namespace gemmd {

namespace {

// Nanoseconds that one thread of a server of 2020 takes. For one multiplication: in the simulator,
// of integers, and while computing an element with its bound. For one addition: of integers and of
// floats. For one byte of an operand or result, one check, one block of rows and columns of a
// gathered matrix, and one compared element.
constexpr double kSimulatedNs = 0.5;
constexpr double kExactNs = 1.2;
constexpr double kBoundedNs = 5;
constexpr double kIntegerSumNs = 8;
constexpr double kFloatSumNs = 2;
constexpr double kByteNs = 0.25;
constexpr double kCheckNs = 50'000;
constexpr double kBlockNs = 2'000;
constexpr double kElementNs = 50;

// Limited, so that sums of many cannot overflow however large the problem is.
int64_t Nanoseconds(double ns) { return static_cast<int64_t>(std::min(ns, 0x1p56)); }

double Blocks(int64_t lines, int64_t lines_at_once) {
  return std::ceil(static_cast<double>(lines) / static_cast<double>(lines_at_once));
}

}  // namespace

std::string_view NameOf(VerifyMode mode) {
  switch (mode) {
    case VerifyMode::kNone: return "none";
    case VerifyMode::kSampled: return "sampled";
    case VerifyMode::kChecksum: return "checksum";
    case VerifyMode::kDuplicate: return "duplicate";
  }
  return "";
}

std::string_view NameOf(VerifyEnd end) {
  switch (end) {
    case VerifyEnd::kPassed: return "passed";
    case VerifyEnd::kFailed: return "failed";
    case VerifyEnd::kNotVerified: return "not_verified";
  }
  return "";
}

absl::StatusOr<VerifyRule> ParseVerifyRule(std::string_view field, std::string_view text) {
  const absl::Status refusal = absl::InvalidArgumentError(
      GotWant(field, Shown(text),
              "none, sampled, sampled:RATE with a rate above 0 and at most 1, checksum or "
              "duplicate"));
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  for (const VerifyMode mode :
       {VerifyMode::kNone, VerifyMode::kSampled, VerifyMode::kChecksum, VerifyMode::kDuplicate}) {
    if (NameOf(mode) != name) continue;
    VerifyRule rule = {.mode = mode};
    if (colon == std::string_view::npos) return rule;
    if (mode != VerifyMode::kSampled) return refusal;
    const std::optional<double> rate = ParseDecimal<double>(text.substr(colon + 1));
    if (!rate || !(*rate > 0 && *rate <= 1)) return refusal;
    rule.rate = *rate;
    return rule;
  }
  return refusal;
}

namespace {

// A sample on a device takes at most this much memory there, besides the kernel's, and this much
// memory of the host for its results. It takes one launch, which nobody divides or schedules, and
// which is either short or takes little beside the product: an eighth at most.
constexpr int64_t kMaxDeviceBytes = int64_t{256} << 20;
constexpr int64_t kMaxResultBytes = int64_t{1} << 20;
constexpr int64_t kShortSampleNs = 1'000'000;
constexpr int64_t kMaxShareOfProduct = 8;

// A sample of these numbers of rows and columns on the device. Errors: any, if it is to be computed
// on the host.
absl::StatusOr<VerifyNeeds> NeedsOnDevice(const Kernel& kernel, const Problem& problem,
                                          const verify::SamplePlan& plan,
                                          const DeviceProfile& profile) {
  const RecomputeTask task = {
      .problem = problem, .rows = plan.rows, .columns = plan.columns, .places = {}};
  ASSIGN_OR_RETURN(const RecomputeLayout layout, LayOutRecompute(task));
  const Kernel& again = FindBestLike(kernel, Catalog(DeviceKind::kCuda), layout.sub, profile);
  RETURN_IF_ERROR(again.supports(layout.sub));
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, again.workspace_bytes(layout.sub));
  const int64_t ns = Predict(again, layout.sub, profile).kernel_ns;
  const int64_t product_ns = Predict(kernel, problem, profile).kernel_ns;
  const int64_t max_ns =
      std::clamp(product_ns / kMaxShareOfProduct, kShortSampleNs, kLongestWholeLaunchNs);
  const bool is_small = layout.end <= kMaxDeviceBytes && workspace_bytes <= kMaxDeviceBytes &&
                        layout.operands.d.bytes <= kMaxResultBytes && ns <= max_ns;
  if (!is_small) return absl::ResourceExhaustedError("verify: too large for the device");
  return VerifyNeeds{.bytes = layout.in_bytes() + 2 * layout.operands.d.bytes,
                     .predicted_ns = Nanoseconds(kCheckNs) + ns,
                     .on_device = &again};
}

}  // namespace

absl::StatusOr<VerifyNeeds> NeedsOf(const VerifyRule& rule, const Kernel& kernel,
                                    const Problem& problem, const DeviceProfile* profile) {
  VerifyNeeds needs;
  if (rule.mode == VerifyMode::kNone || !problem.has_output()) return needs;
  if (rule.mode == VerifyMode::kDuplicate) {
    if (!kernel.deterministic) {
      return absl::UnimplementedError(
          Concat("verify.mode: got duplicate with ", kernel.name,
                 ", want a kernel that gives the same bits every time"));
    }
    needs.bytes = BytesWritten(problem);
    needs.predicted_ns = Nanoseconds(kCheckNs + 2 * kByteNs * static_cast<double>(needs.bytes));
    return needs;
  }
  const auto m = static_cast<double>(problem.m);
  const auto n = static_cast<double>(problem.n);
  const auto k = static_cast<double>(problem.k);
  double matrix_ns = 0;  // For one matrix of the batch.
  if (rule.mode == VerifyMode::kSampled) {
    RETURN_IF_ERROR(verify::CanRecompute(kernel));
    const verify::SamplePlan plan = verify::PlanSample(problem, rule.rate);
    if (profile != nullptr) {
      const absl::StatusOr<VerifyNeeds> on_device = NeedsOnDevice(kernel, problem, plan, *profile);
      if (on_device.ok()) return on_device;
    }
    needs.bytes = plan.bytes;
    const bool is_simulated = SimulatedKernel(kernel) != nullptr;
    const double multiplication_ns = is_simulated          ? kSimulatedNs
                                     : kernel.recipe.exact ? kExactNs
                                                           : kBoundedNs;
    const int64_t at_once = verify::LinesAtOnce(kernel, problem.k);
    const double elements = static_cast<double>(plan.rows) * static_cast<double>(plan.columns);
    matrix_ns = elements * (k * multiplication_ns + kElementNs) +
                Blocks(plan.rows, at_once) * Blocks(plan.columns, at_once) * kBlockNs;
  } else {
    RETURN_IF_ERROR(verify::CanCheckSums(kernel, problem));
    needs.bytes = verify::SumBytes(problem);
    const bool is_of_integers = kernel.recipe.accumulation == ElementType::kS32;
    const double sum_ns =
        verify::SumPasses(kernel, problem) * (is_of_integers ? kIntegerSumNs : kFloatSumNs);
    matrix_ns = (m * n + m * k + n * k) * sum_ns + kBlockNs;
  }
  // The operands in one piece each.
  const int64_t read_bytes = BytesRead(problem);
  needs.bytes += read_bytes;
  needs.predicted_ns = Nanoseconds(kCheckNs + static_cast<double>(problem.batch) * matrix_ns +
                                   kByteNs * static_cast<double>(read_bytes));
  return needs;
}

namespace {

std::string Hexadecimal(uint64_t bits) { return absl::StrCat("0x", absl::Hex(bits)); }

}  // namespace

int64_t KeptProduct::scale_bytes() const {
  return static_cast<int64_t>(a_scale.size() + b_scale.size());
}

int64_t KeptProduct::bytes() const {
  return static_cast<int64_t>(a.size() + b.size() + c.size() + bias.size()) + scale_bytes();
}

int64_t IncidentLog::Add(Incident incident, std::shared_ptr<const KeptProduct> product) {
  const bool has_too_many_factors =
      product != nullptr && !product->has_operands && product->scale_bytes() > kMaxScaleBytes;
  if (has_too_many_factors) product = nullptr;
  MutexLock lock(&mutex_);
  incident.id = ++found_;
  entries_.push_back({std::move(incident), std::move(product)});
  if (entries_.back().has_operands()) kept_bytes_ += entries_.back().product->bytes();
  if (entries_.size() > options_.max_incidents) {
    DropOperands(entries_.front());
    entries_.pop_front();
  }
  // The oldest operands are dropped first; those of the newest incident alone may be too many as
  // well.
  for (Entry& entry : entries_) {
    if (kept_bytes_ <= options_.max_kept_bytes) break;
    DropOperands(entry);
  }
  return found_;
}

void IncidentLog::DropOperands(Entry& entry) {
  if (!entry.has_operands()) return;
  const KeptProduct& whole = *entry.product;
  kept_bytes_ -= whole.bytes();
  if (whole.scale_bytes() > kMaxScaleBytes) {
    entry.product = nullptr;
    return;
  }
  auto kept = std::make_shared<KeptProduct>();
  kept->problem = whole.problem;
  kept->has_operands = false;
  kept->a_scale = whole.a_scale;
  kept->b_scale = whole.b_scale;
  entry.product = std::move(kept);
}

std::vector<IncidentLog::Entry> IncidentLog::entries() const {
  MutexLock lock(&mutex_);
  return {entries_.rbegin(), entries_.rend()};
}

int64_t IncidentLog::found() const {
  MutexLock lock(&mutex_);
  return found_;
}

std::string LogFieldsOf(const Incident& incident) {
  std::string fields = Concat(" id=", incident.id, " element_type=", NameOf(incident.element_type),
                              " got_bits=", Hexadecimal(incident.element.got_bits),
                              " want_bits=", Hexadecimal(incident.element.want_bits),
                              " wrong_elements=", incident.wrong_elements);
  const std::pair<const char*, const std::string&> texts[] = {
      {"a_sha256", incident.a_sha256},     {"b_sha256", incident.b_sha256},
      {"c_sha256", incident.c_sha256},     {"bias_sha256", incident.bias_sha256},
      {"chip_state", incident.chip_state}, {"request_id", incident.request_id}};
  for (const auto& [name, text] : texts) {
    if (!text.empty()) fields += Concat(" ", name, "=", LogValue(text));
  }
  return fields;
}

}  // namespace gemmd
