// SPDX-License-Identifier: Apache-2.0
//
// A mix: a list of products, each with its share of the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemmd/v1/tensors.pb.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// Parses JSON; drops values nested more than 32 deep, because printing recurses. Errors:
// InvalidArgument for malformed JSON, with the position, and for a duplicate name in an object, as
// "path[1].to.name: got it twice, want each name once" (the library would keep the last).
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text);

// D = A B for operands that are random or from files; m x n x k, `batch` of them.
struct LoadProduct {
  std::string name;  // Shown in reports; derived from the other members if not given.
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  v1::ElementType type = v1::ELEMENT_TYPE_F32;  // Type of A and B.
  v1::ElementType accumulation_type = v1::ELEMENT_TYPE_UNSPECIFIED;
  v1::ElementType output_type = v1::ELEMENT_TYPE_UNSPECIFIED;
  bool fast_accumulation = false;  // As in MultiplyRequest.
  bool is_sparse = false;          // A is sent in the 2:4 form.
  v1::Order b_order = v1::ORDER_ROW_MAJOR;
  std::string kernel;       // Empty: the server chooses.
  std::string device;       // Empty: the server's default.
  std::string operands;     // Where the operands are (payload.h). Empty: --operands.
  std::string a_path = {};  // A .npy file with A; empty: A is random.
  std::string b_path = {};
  double weight = 1;  // Its share, relative to the other weights. Positive.
};

using Mix = std::vector<LoadProduct>;

// "64x64x64 f32", "4 of 128x128x128 bf16 2:4 in f16 to bf16 KERNEL on DEVICE".
std::string NameOf(const LoadProduct& product);

// Adds " #2" and so on to duplicate names: reports identify products by name.
void MakeNamesUnique(Mix& mix);

// The built-in mixes.
struct Profile {
  absl::string_view name;
  absl::string_view what;
  Mix (*mix)();
};
const std::vector<Profile>& Profiles();

// Errors: NotFound, listing the profiles.
absl::StatusOr<Mix> FindProfile(absl::string_view name);

// A mix from a JSON array of objects: m, n and k, and optionally name, batch, type,
// accumulation_type, output_type, fast_accumulation, sparse, b_order, kernel, device, operands, a,
// b (paths of .npy files), weight. Errors: InvalidArgument: "mix[2].type: got "f33", want ...".
absl::StatusOr<Mix> ParseMix(absl::string_view json);

// Picks the product of a call by its number: weighted and random, but the same for the same seed on
// every thread.
class MixPicker {
 public:
  // Precondition: the mix is not empty.
  MixPicker(const Mix& mix, uint64_t seed);
  size_t Pick(uint64_t call) const;

 private:
  std::vector<double> shares_;  // Cumulative; the last is 1.
  uint64_t seed_;
};

}  // namespace gemmd
