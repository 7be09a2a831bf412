// SPDX-License-Identifier: Apache-2.0
//
// The request of each product of a mix, made once and sent many times, and what its answer must be:
// operands that are random or from files, in the call or on the server.
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

// Reads the files that the product names, and fills in what it leaves open (0): its sizes, its
// batch and its type. Its type, where it has one, tells what narrow types a file holds. Errors:
// NotFound or InvalidArgument where a file cannot be used, does not fit the product or the other
// file, or where a size stays open.
absl::StatusOr<GivenOperands> ReadOperands(LoadProduct& product);

// What the operands hold. Integers so small that every order of summation is exact where the type
// allows that, or standard normal values (whole-range integers in integer types).
enum class OperandValues { kIntegers, kNormal };

// Freivalds' check: D x = A (B x) for a random x, all in integers modulo 2^64. With factors of 20
// bits a wrong D passes once in 2^20 times.
struct Fingerprint {
  std::vector<int64_t> x;   // n values.
  std::vector<int64_t> dx;  // batch * m values.
};

// A tensor that a call whose result is checked has to itself until the result was fetched: other
// calls of the product overwrite a few tensors all the time.
struct ResultSlot {
  std::shared_ptr<const v1::MultiplyRequest> request;  // Leaves D there.
  std::shared_ptr<Client> reader;                      // Brings it.
  std::atomic<bool> is_taken = false;
};

struct Payload {
  std::shared_ptr<const v1::MultiplyRequest> request;  // With its operands, by which D is checked.
  // What is sent to each client where that is not `request`: operands may lie on its server.
  std::vector<std::shared_ptr<const v1::MultiplyRequest>> placed = {};
  // What takes turns with that: the same product with its result in other tensors.
  std::vector<std::vector<std::shared_ptr<const v1::MultiplyRequest>>> others = {};
  std::unique_ptr<std::atomic<uint64_t>> calls = std::make_unique<std::atomic<uint64_t>>(0);
  std::vector<ResidentTensor> tensors = {};  // Those operands, and results that stay there.
  // Where results stay on the server: for each client the slot of calls that are checked, and all
  // by the handles of their tensors.
  std::vector<ResultSlot*> slot_of_client = {};
  std::map<std::string, std::unique_ptr<ResultSlot>> slots = {};
  std::optional<Fingerprint> fingerprint;  // Absent where D is not made of exact integers.
  int64_t operations = 0;
  int64_t sent_bytes = 0;      // With each call.
  int64_t answer_bytes = 0;    // Those of D.
  bool answers_inline = true;  // D comes back with each answer.

  // Those of a call and its answer on the wire, but for the headers.
  int64_t wire_bytes() const { return sent_bytes + (answers_inline ? answer_bytes : 0); }

  // The slot of a client, for one call; null where another call has it. Any thread.
  ResultSlot* TakeSlot(size_t client) const {
    ResultSlot* const slot = slot_of_client[client];
    return slot->is_taken.exchange(true) ? nullptr : slot;
  }

  // Frees the slot of a result that nobody will fetch. Any thread.
  void LetGo(const v1::MultiplyResponse& response) const;

  // The next one to be sent. Any thread.
  const std::shared_ptr<const v1::MultiplyRequest>& RequestFor(size_t client) const {
    if (placed.empty()) return request;
    if (client >= others.size() || others[client].empty()) return placed[client];
    const uint64_t turn =
        calls->fetch_add(1, std::memory_order_relaxed) % (others[client].size() + 1);
    return turn == 0 ? placed[client] : others[client][turn - 1];
  }
};

// Errors: InvalidArgument for a product too large to be sent, or without a sparse form.
// Operands that are given take the place of random ones; the product fits them (ReadOperands).
absl::StatusOr<Payload> MakePayload(const LoadProduct& product, OperandValues values, uint64_t seed,
                                    const GivenOperands& given = {});

// Whether D is the answer to that request: OK, or DataLoss where it is wrong, naming an element or
// row. Without a fingerprint a sample of the elements is compared with f64 sums within a derived
// bound.
absl::Status CheckAnswer(const Payload& payload, v1::MultiplyResponse response);

// Where the operands of a product are when a call is made: in the call, or on the server.
struct OperandPlace {
  absl::string_view name;
  absl::string_view what;
  bool keeps_b;   // On the server: uploaded once, ahead of the load.
  bool keeps_ad;  // A too, and D stays in tensors that the calls of the product overwrite in turn.
};
const std::vector<OperandPlace>& OperandPlaces();

// Null for an unknown name.
const OperandPlace* FindOperandPlace(absl::string_view name);

// Uploads what the place keeps in the client's session, and adds the request that names it; clients
// come in the order of `placed`. `reader` is another client of the same server: it joins the
// session to bring results that are checked; not null where the place keeps D. Errors: those of the
// server.
absl::Status PlaceOperands(const OperandPlace& place, const LoadProduct& product, Client& client,
                           const std::shared_ptr<Client>& reader, Payload& payload);

}  // namespace gemmd
