// SPDX-License-Identifier: Apache-2.0
//
// The request of each product of a mix, built once and sent many times, and the check of its
// answer. Operands are random or from files, in the call or on the server.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/mix.h"
#include "client/matrix/npy.h"
#include "gemmd/client.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {

// Operands of a load that come from .npy files instead of a generator.
struct GivenOperands {
  std::optional<NpyArray> a = {};
  std::optional<NpyArray> b = {};
};

// Reads the files that the product names, and sets its unspecified (0) sizes, batch and type. The
// product's type, if given, determines which narrow type a file holds. Errors: NotFound or
// InvalidArgument if a file cannot be used, does not fit the product or the other file, or if a
// size remains unspecified.
absl::StatusOr<GivenOperands> ReadOperands(LoadProduct& product);

// Values of the operands: integers so small that every order of summation is exact, if the type
// allows that; or standard normal values (integers over the whole range in integer types).
enum class OperandValues { kIntegers, kNormal };

// Freivalds' check: D x = A (B x) for a random x, all in integers modulo 2^64. With 20-bit values
// in x, a wrong D passes with a probability of 2^-20.
struct Fingerprint {
  std::vector<int64_t> x;   // n values.
  std::vector<int64_t> dx;  // batch * m values.
};

// A tensor reserved for a call whose result is checked, until that result has been fetched: other
// calls of the product keep overwriting a few shared tensors.
struct ResultSlot {
  std::shared_ptr<const v1::MultiplyRequest> request;  // Leaves D in the tensor.
  std::shared_ptr<Client> reader;                      // Fetches it.
  std::atomic<bool> is_taken = false;
};

struct Payload {
  std::shared_ptr<const v1::MultiplyRequest> request;  // Contains the operands, for checking D.
  // The request of each client, if it differs from `request` because operands are resident.
  std::vector<std::shared_ptr<const v1::MultiplyRequest>> placed = {};
  // Requests used in turn with `placed`: the same product with results in other tensors.
  std::vector<std::vector<std::shared_ptr<const v1::MultiplyRequest>>> others = {};
  std::unique_ptr<std::atomic<uint64_t>> calls = std::make_unique<std::atomic<uint64_t>>(0);
  std::vector<ResidentTensor> tensors = {};  // Resident operands and results.
  // If results stay on the server: the slot for checked calls of each client, and all slots by the
  // handles of their tensors.
  std::vector<ResultSlot*> slot_of_client = {};
  std::map<std::string, std::unique_ptr<ResultSlot>> slots = {};
  std::optional<Fingerprint> fingerprint;  // Absent unless D consists of exact integers.
  int64_t operations = 0;
  int64_t sent_bytes = 0;      // Per call.
  int64_t answer_bytes = 0;    // Bytes of D.
  bool answers_inline = true;  // Each answer contains D.

  // Bytes of a call and its answer on the wire, without headers.
  int64_t wire_bytes() const { return sent_bytes + (answers_inline ? answer_bytes : 0); }

  // Takes the slot of a client for one call; null if another call has it. Any thread.
  ResultSlot* TakeSlot(size_t client) const {
    ResultSlot* const slot = slot_of_client[client];
    return slot->is_taken.exchange(true) ? nullptr : slot;
  }

  // Frees the slot of a result that will not be fetched. Any thread.
  void Release(const v1::MultiplyResponse& response) const;

  // The next request to send. Any thread.
  const std::shared_ptr<const v1::MultiplyRequest>& RequestFor(size_t client) const {
    if (placed.empty()) return request;
    if (client >= others.size() || others[client].empty()) return placed[client];
    const uint64_t turn =
        calls->fetch_add(1, std::memory_order_relaxed) % (others[client].size() + 1);
    return turn == 0 ? placed[client] : others[client][turn - 1];
  }
};

// Errors: InvalidArgument for a product that is too large to send, or has no sparse form. Given
// operands replace random ones; ReadOperands has fitted the product to them.
absl::StatusOr<Payload> MakePayload(const LoadProduct& product, OperandValues values, uint64_t seed,
                                    const GivenOperands& given = {});

// Checks D: OK, or DataLoss if D is wrong, naming an element or row. Without a fingerprint,
// compares a sample of the elements with f64 sums within a derived bound.
absl::Status CheckAnswer(const Payload& payload, v1::MultiplyResponse response);

// Where a product's operands are: in the call, or on the server.
struct OperandPlace {
  absl::string_view name;
  absl::string_view what;
  bool keeps_b;   // B is resident: uploaded once, before the load.
  bool keeps_ad;  // A is resident too, and D stays in tensors that the product's calls overwrite in
                  // turn.
};
const std::vector<OperandPlace>& OperandPlaces();

// Null for an unknown name.
const OperandPlace* FindOperandPlace(absl::string_view name);

// Uploads the operands that the place keeps, in the client's session, and adds the request that
// names them. Call in the order of the clients in `placed`. `reader`, another client of the same
// server, joins the session to fetch results that are checked; not null if the place keeps D.
// Errors: those of the server.
absl::Status PlaceOperands(const OperandPlace& place, const LoadProduct& product, Client& client,
                           const std::shared_ptr<Client>& reader, Payload& payload);

}  // namespace gemmd
