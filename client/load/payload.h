// SPDX-License-Identifier: Apache-2.0
//
// The request of each product of a mix, made once and sent many times, and what its answer must be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/mix.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// What the operands hold. Integers so small that every order of summation is exact where the type
// allows that, or standard normal values (whole-range integers in integer types).
enum class OperandValues { kIntegers, kNormal };

// Freivalds' check: D x = A (B x) for a random x, all in integers modulo 2^64. With factors of 20
// bits a wrong D passes once in 2^20 times.
struct Fingerprint {
  std::vector<int64_t> x;   // n values.
  std::vector<int64_t> dx;  // batch * m values.
};

struct Payload {
  std::shared_ptr<const v1::MultiplyRequest> request;  // With its operands, by which D is checked.
  // What is sent to each client where that is not `request`: operands may lie on its server.
  std::vector<std::shared_ptr<const v1::MultiplyRequest>> placed = {};
  std::optional<Fingerprint> fingerprint;  // Absent where D is not made of exact integers.
  int64_t operations = 0;
  int64_t sent_bytes = 0;
  int64_t answer_bytes = 0;

  const std::shared_ptr<const v1::MultiplyRequest>& RequestFor(size_t client) const {
    return placed.empty() ? request : placed[client];
  }
};

// The place of the operands when a call is made. Today they are in the call itself; a mode that
// keeps them on the server would upload the inline bytes of a request through `client` and name
// them instead. Each client sends the request that was placed for it.
struct OperandMode {
  absl::string_view name;
  absl::string_view what;
  absl::StatusOr<std::shared_ptr<const v1::MultiplyRequest>> (*place)(
      const std::shared_ptr<const v1::MultiplyRequest>& request, Client& client);
};
const std::vector<OperandMode>& OperandModes();

// Errors: InvalidArgument for a product too large to be sent, or without a sparse form.
absl::StatusOr<Payload> MakePayload(const LoadProduct& product, OperandValues values,
                                    uint64_t seed);

// Whether D is the answer to that request: OK, or DataLoss where it is wrong, naming an element or
// row. Without a fingerprint a sample of the elements is compared with f64 sums within a derived
// bound.
absl::Status CheckAnswer(const Payload& payload, v1::MultiplyResponse response);

}  // namespace gemmd
