// SPDX-License-Identifier: Apache-2.0
//
// Tensors that stay on the server: uploaded once, used by many products, written by products.
//
//   auto weights = client->Put(gemmd::View(w, k, n), {.name = "weights/layer3"});
//   auto product = client->Multiply(gemmd::View(a, m, k), *weights);
//
// A client has one session, which its first Put opens. Tensors belong to it: nobody else sees them,
// and they are deleted some time after the client's end (SessionInfo::linger), except for pinned
// ones. A session whose connection broke is taken up again by its token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gemmd/product.h"
#include "gemmd/wire_types.h"

namespace gemmd {

// The session of a client, as the server described it.
struct SessionInfo {
  std::string token = {};  // Whoever has it owns the session's tensors: keep it as a password.
  absl::Duration linger =
      {};  // From the session's last connection to the end of what is not pinned.
  absl::Duration lease = {};  // For tensors that ask for no other: from one use to their end.
  int64_t max_bytes = 0;      // What all tensors of the session may take.
};

// How far an upload or a download has come.
struct TransferProgress {
  int64_t bytes_done = 0;       // Those that the server had already among them.
  int64_t bytes_total = 0;      // The tensor's, or those of the range that was asked for.
  absl::Duration elapsed = {};  // Since the call.
};

// How a new tensor is kept.
struct KeepOptions {
  std::string name =
      {};               // At most 128 bytes; takes the place of the one of that name. Empty: none.
  bool pinned = false;  // Kept until it is deleted, whatever its lease and session.
  absl::Duration lease = {};  // From one use to its end. 0: SessionInfo::lease.
};

struct PutOptions {
  std::string name = {};  // These three: see KeepOptions.
  bool pinned = false;
  absl::Duration lease = {};

  // 32 bytes: Sha256Of all bytes of the tensor. Nothing is sent where the server has them, and what
  // arrives is checked (DataLoss). Empty: neither.
  std::string sha256 = {};

  std::string device = {};  // Brings it there at once. Empty: where products need it.

  // Called on the thread of the caller, about ten times a second and at the end of what succeeds.
  std::function<void(const TransferProgress&)> progress = {};

  // The connections that carry the bytes, 1 to 16. 0, the default: one or four, as this client's
  // transfers of that size were faster; both are tried, and the first takes four above 8 MiB.
  int connections = 0;

  // How long all of it may take. Absent: as long as bytes move; it ends with DeadlineExceeded where
  // none did for ClientOptions::timeout.
  std::optional<absl::Duration> timeout = {};

  int64_t matrices = 1;  // A batch, which lies in the view without gaps.
};

struct GetOptions {
  int64_t offset = 0;                 // The first of the tensor's bytes that is wanted.
  std::optional<int64_t> bytes = {};  // How many. Absent: all that are left.

  // As in PutOptions.
  std::function<void(const TransferProgress&)> progress = {};
  int connections = 0;
  std::optional<absl::Duration> timeout = {};
};

// Takes bytes of a tensor as they arrive: `offset` counts from the first byte that was asked for.
// Called by several threads of gRPC at the same time, for ranges that share no byte, in any order;
// an error ends the download with it.
using TensorSink = std::function<absl::Status(int64_t offset, std::span<const std::byte> bytes)>;

struct KeepAliveOptions {
  std::optional<absl::Duration> lease = {};  // Absent: as it is. 0: SessionInfo::lease.
  std::optional<bool> pinned = {};           // Absent: as it is.
};

// A tensor, as calls name it: by its handle, or by its name where that is empty.
struct TensorRef {
  std::string handle = {};  // 16 bytes.
  std::string name = {};
};
TensorRef NamedTensor(absl::string_view name);
TensorRef TensorOfHandle(absl::string_view handle);

struct CompressOptions {
  KeepOptions keep = {};
  std::optional<TensorRef> mask = {};  // See CompressRequest.mask. Absent: the largest are kept.
};

// The SHA-256 of some bytes, 32 bytes.
std::string Sha256Of(std::span<const std::byte> bytes);

// A resident tensor, or a part of it, as an operand or as the place of a result. Copies nothing and
// owns nothing: what it stands for must still be there when it is used.
struct TensorView {
  TensorRef tensor = {};
  v1::ElementType type = {};
  v1::Order order = v1::kRowMajor;
  v1::Sparsity sparsity = v1::kDense;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_column = 0;
  int64_t columns = 0;
  int64_t first_matrix = 0;
  int64_t matrices = 1;
  bool is_whole = true;    // Not a part: the server need not check a range.
  bool transpose = false;  // op(X) is the transposed part.
  // Factors of the blocks of this part, as A or B, for a tensor that has none itself. Borrowed.
  BlockScaleView blocks = {};

  // Parts of this part, counted from its beginning; the server checks that they lie within it.
  TensorView Rows(int64_t first, int64_t count) const;
  TensorView Columns(int64_t first, int64_t count) const;
  TensorView Matrices(int64_t first, int64_t count) const;
  TensorView Transposed() const;

  v1::TensorPart part() const;
};

// A view of all of a tensor that a call has described.
TensorView ViewOf(const v1::TensorInfo& info);

struct TensorOwner;

// A tensor of this client's on the server. The last call on its behalf is its deletion: on
// destruction it is deleted, unless it is pinned or was released, or its client is gone, whose
// session the server ends. Products under way keep what they use. Threads: as with any value, calls
// that change it need it alone.
class ResidentTensor {
 public:
  ResidentTensor(ResidentTensor&& other) noexcept;
  ResidentTensor& operator=(
      ResidentTensor&& other) noexcept;  // The one that was here before is deleted.
  ~ResidentTensor();  // Does not wait for the server; the client's next Put, Chain or Compress
                      // does.

  // As the last call of this client said.
  const v1::TensorInfo& info() const { return *info_; }
  const std::string& handle() const;  // 16 bytes.
  v1::ElementType type() const;
  int64_t rows() const;
  int64_t columns() const;
  int64_t bytes() const;
  TensorRef ref() const { return TensorOfHandle(handle()); }

  TensorView view() const { return ViewOf(*info_); }
  TensorView Rows(int64_t first, int64_t count) const { return view().Rows(first, count); }
  TensorView Columns(int64_t first, int64_t count) const { return view().Columns(first, count); }
  TensorView Matrices(int64_t first, int64_t count) const { return view().Matrices(first, count); }
  TensorView Transposed() const { return view().Transposed(); }

  // Leaves it on the server, which keeps it for its lease, and gives its handle.
  std::string Release() &&;

 private:
  friend class Client;
  friend class PendingChain;
  ResidentTensor(v1::TensorInfo info, std::weak_ptr<TensorOwner> owner);
  void DeleteFromServer();

  std::shared_ptr<const v1::TensorInfo> info_;  // Never null.
  std::weak_ptr<TensorOwner> owner_;
};

// A matrix of a product: in the caller's memory, or on the server.
class Operand {
 public:
  Operand(const MatrixView& view);  // NOLINT(google-explicit-constructor): any of these is one.
  Operand(const TensorView& view);  // NOLINT(google-explicit-constructor)
  Operand(const ResidentTensor& tensor);  // NOLINT(google-explicit-constructor)

  const MatrixView* matrix() const { return tensor_.has_value() ? nullptr : &matrix_; }
  const TensorView* tensor() const { return tensor_.has_value() ? &*tensor_ : nullptr; }

 private:
  MatrixView matrix_ = {};
  std::optional<TensorView> tensor_ = {};
};

// What else there is to say of a product whose D stays on the server.
struct ChainOptions {
  ProductOptions product = {};  // `output_type` and so on; without `into`, those of the new tensor.
  std::optional<TensorView> c = {};     // A resident C, in the place of product.c.
  std::optional<TensorView> into = {};  // D overwrites it. Absent: D is a new tensor.
  KeepOptions keep = {};                // How the new tensor is kept.
};

// A request for a product with operands on the server. D is in the answer.
// Errors: as BuildRequest of views; also InvalidArgument where the shape of a tensor does not fit.
absl::StatusOr<v1::MultiplyRequest> BuildRequest(const Operand& a, const Operand& b,
                                                 const ProductOptions& options = {},
                                                 const std::optional<TensorView>& c = {});

// The same, where D stays on the server.
absl::StatusOr<v1::MultiplyRequest> BuildChainRequest(const Operand& a, const Operand& b,
                                                      const ChainOptions& options);

// The end of a product whose D stayed on the server.
struct ChainResult {
  std::optional<ResidentTensor> tensor;                  // D, where it is a new tensor.
  std::shared_ptr<const v1::MultiplyResponse> response;  // Without bytes of D; not null.
};

}  // namespace gemmd
