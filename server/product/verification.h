// SPDX-License-Identifier: Apache-2.0
//
// The check of answers before they are sent: its settings, its results, and what is kept of wrong
// answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "kernels/per_operand.h"
#include "kernels/problem.h"
#include "kernels/verify/recompute.h"
#include "kernels/verify/sampled.h"
#include "server/system/mutex.h"

namespace gemmd {

// Settings and results of the check.
enum class VerifyMode : uint8_t { kNone, kSampled, kChecksum, kDuplicate };
inline constexpr size_t kVerifyModes = 4;
std::string_view NameOf(VerifyMode mode);  // For example "sampled".

struct VerifyRule {
  VerifyMode mode = VerifyMode::kNone;
  double rate = verify::kDefaultRate;  // For kSampled: above 0 and at most 1.
};

// Accepts "none", "sampled", "sampled:0.001", "checksum", "duplicate". Errors: InvalidArgument,
// beginning with `field`.
absl::StatusOr<VerifyRule> ParseVerifyRule(std::string_view field, std::string_view text);

// What the server does with products that request no check, and with wrong answers.
struct VerifyOptions {
  VerifyRule rule;
  bool retry = false;  // Computes the product again elsewhere instead of refusing it.
  int threads = 0;     // For checks. 0: a quarter of the processors, at least one.
};

enum class VerifyEnd : uint8_t { kPassed, kFailed, kNotVerified };
inline constexpr size_t kVerifyEnds = 3;
std::string_view NameOf(VerifyEnd end);  // For example "not_verified".

// The result of the check of an answer that was sent.
struct AnswerVerification {
  VerifyMode mode = VerifyMode::kNone;
  VerifyEnd end = VerifyEnd::kNotVerified;  // Never kFailed.
  std::string_view reason;                  // For kNotVerified.
  int64_t elements_checked = 0;
  double miss_probability = 1;
  double cost = 0;
  double least_error = 0;
  int64_t verify_ns = 0;
  std::string_view kernel = {};  // For kDuplicate: the kernel and the device of the second
                                 // computation.
  std::string_view device = {};
  int wrong_answers = 0;  // Wrong answers that this product had before.
};

// Whether a product of this kernel can be checked in this mode, and what the check takes.
struct VerifyNeeds {
  int64_t bytes = 0;         // Additional memory of the host.
  int64_t predicted_ns = 0;  // On one thread of the host, or on the device.
  // Not null: the device that has the tensors computes the sample with this kernel, whose bits are
  // those of the product's.
  const Kernel* on_device = nullptr;
};
// `profile`: of a GPU whose memory has the product's tensors; null: the check is done on the host.
// Errors: Unimplemented.
absl::StatusOr<VerifyNeeds> NeedsOf(const VerifyRule& rule, const Kernel& kernel,
                                    const Problem& problem, const DeviceProfile* profile = nullptr);

// A record of the wrong answers that were found: the latest ones in memory, some with their
// operands, and all in a file as long as it has room.
struct Incident {
  int64_t id = 0;  // Set by the log.
  int64_t time_unix_ns = 0;
  std::string device;
  std::string kernel;
  std::string problem;
  VerifyMode mode = VerifyMode::kNone;
  verify::WrongElement element;
  int64_t wrong_elements = 0;
  ElementType element_type = ElementType::kF32;
  std::string a_sha256;  // In hexadecimal; empty if there is no such operand.
  std::string b_sha256;
  std::string c_sha256;
  std::string bias_sha256;
  std::string chip_state;
  std::string request_id;
  bool took_out_device = false;
};

// What is needed to compute a product again.
struct KeptProduct : PerOperand<std::vector<std::byte>> {
  Problem problem;
  bool has_operands = true;  // If false, A, B, C and the bias are empty, whatever the problem says.

  int64_t scale_bytes() const;
  int64_t bytes() const;
};

class IncidentLog {
 public:
  struct Options {
    int64_t max_kept_bytes = int64_t{64} << 20;  // For the operands of the latest incidents.
    size_t max_incidents = 256;
  };

  explicit IncidentLog(const Options& options) : options_(options) {}

  // Sets the incident's id and returns it. Operands that do not fit are not kept. Threads: any.
  int64_t Add(Incident incident, std::shared_ptr<const KeptProduct> product)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The maximum size of the scale factors that are kept of a product whose operands are not. Larger
  // ones are dropped, so those of all incidents take at most 16 MiB in addition to the operands.
  static constexpr int64_t kMaxScaleBytes = 65536;

  struct Entry {
    Incident incident;
    std::shared_ptr<const KeptProduct> product;  // Null: not kept.

    bool has_operands() const { return product != nullptr && product->has_operands; }
  };
  // Newest first. Threads: any.
  std::vector<Entry> entries() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Incidents since the start. Threads: any.
  int64_t found() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t max_kept_bytes() const { return options_.max_kept_bytes; }

 private:
  // Drops the operands of the entry.
  void DropOperands(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // Oldest first.
  int64_t found_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The incident's fields for a line of the daemon's log, except where it happened: key=value pairs,
// each after a space.
std::string LogFieldsOf(const Incident& incident);

}  // namespace gemmd
