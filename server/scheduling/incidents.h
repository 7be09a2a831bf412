// SPDX-License-Identifier: Apache-2.0
//
// The wrong answers that were found: the last ones in memory, with the operands of some, and all in
// a file as far as its bound goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "kernels/verify/checked_product.h"
#include "server/scheduling/verification.h"
#include "server/system/mutex.h"

namespace gemmd {

struct Incident {
  int64_t id = 0;  // The log's.
  int64_t time_unix_ns = 0;
  std::string device;
  std::string kernel;
  std::string problem;
  VerifyMode mode = VerifyMode::kNone;
  verify::WrongElement element;
  int64_t wrong_elements = 0;
  ElementType element_type = ElementType::kF32;
  std::string a_sha256;  // In hexadecimal; empty where there is no such operand.
  std::string b_sha256;
  std::string c_sha256;
  std::string bias_sha256;
  std::string chip_state;
  std::string request_id;
  bool took_out_device = false;
};

// A product, to compute it again.
struct KeptProduct {
  Problem problem;
  bool has_operands = true;  // Otherwise A, B, C and the bias are empty, whatever the problem says.
  std::vector<std::byte> a;
  std::vector<std::byte> b;
  std::vector<std::byte> c;
  std::vector<std::byte> bias;
  std::vector<float> a_scale;
  std::vector<float> b_scale;
  std::vector<std::byte> a_factors = {};  // Those of blocks.
  std::vector<std::byte> b_factors = {};

  int64_t scale_bytes() const;
  int64_t bytes() const;
};

class IncidentLog {
 public:
  struct Options {
    std::string file;  // Each incident becomes a line of JSON at its end. Empty: none.
    int64_t most_file_bytes = int64_t{16} << 20;  // Lines that do not fit are left out.
    int64_t most_kept_bytes = int64_t{64} << 20;  // Operands in memory, the latest ones.
    size_t most_incidents = 256;                  // In memory.
  };

  explicit IncidentLog(Options options) : options_(std::move(options)) {}

  // Gives the incident its id, which is returned. Operands that do not fit are not kept. Threads:
  // any.
  int64_t Add(Incident incident, std::shared_ptr<const KeptProduct> product)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // What is kept of a product whose operands are not: nothing where its scales take more bytes, so
  // that those of all incidents take 16 MiB at most, beside the operands.
  static constexpr int64_t kMostScaleBytes = 65536;

  struct Entry {
    Incident incident;
    std::shared_ptr<const KeptProduct> product;  // Null: not kept.

    bool has_operands() const { return product != nullptr && product->has_operands; }
  };
  // The newest first. Threads: any.
  std::vector<Entry> entries() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Since the start. Threads: any.
  int64_t found() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t most_kept_bytes() const { return options_.most_kept_bytes; }

 private:
  // The operands of the entry are not kept any more.
  void DropOperands(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Write(const Incident& incident) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // The oldest first.
  int64_t found_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One line of JSON, without its end.
std::string JsonOf(const Incident& incident);

}  // namespace gemmd
