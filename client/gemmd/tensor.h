// SPDX-License-Identifier: Apache-2.0
//
// Tensors that stay on the server: uploaded once or written by products, and used by many products.
//
//   auto weights = client->Put(gemmd::View(w, k, n), {.name = "weights/layer3"});
//   auto product = client->Multiply(gemmd::View(a, m, k), *weights);
//
// A client has one session, which its first Put opens and which owns its tensors. No other session
// sees them. Tensors that are not pinned are deleted some time after the client ends
// (SessionInfo::linger). If the connection breaks, the client resumes its session by token.
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
  std::string token = {};  // Grants access to the session's tensors: protect it like a password.
  absl::Duration linger =
      {};  // From the end of the session's last connection to the deletion of its unpinned tensors.
  absl::Duration lease = {};  // Default lease: time from a tensor's last use to its deletion.
  int64_t max_bytes = 0;      // Limit on the bytes of all tensors of the session.
};

// Progress of an upload or a download.
struct TransferProgress {
  int64_t bytes_done = 0;       // Includes bytes that the server already had.
  int64_t bytes_total = 0;      // Bytes of the tensor, or of the requested range.
  absl::Duration elapsed = {};  // Since the start of the call.
};

// How a new tensor is kept.
struct KeepOptions {
  std::string name = {};      // At most 128 bytes. Replaces the tensor of that name. Empty: none.
  bool pinned = false;        // Kept until deleted, regardless of its lease and session.
  absl::Duration lease = {};  // Time from last use to deletion. 0: SessionInfo::lease.
};

struct PutOptions {
  std::string name = {};  // `name`, `pinned`, `lease`: see KeepOptions.
  bool pinned = false;
  absl::Duration lease = {};

  // Sha256Of all bytes of the tensor, 32 bytes, with its factors of blocks. If the server already
  // has these bytes, nothing is sent; otherwise the server checks what arrives (DataLoss). Empty:
  // neither.
  std::string sha256 = {};

  // Whether the client puts the tensor again, in a new session if need be, once the server has lost
  // it: because it was restarted, or because the lease has ended. The first call that needs the
  // tensor does so, within its own deadline, and is then sent again; handles and views that name
  // the tensor stay valid. The bytes are hashed first (`sha256`, if it is not given), and are sent
  // only if the session has no tensor with that hash. Memory of the view must stay valid and
  // unchanged as long as the ResidentTensor lives and is not released. A product that writes into
  // the tensor (ChainOptions::into) ends that: it cannot be restored afterwards. Restoring has the
  // errors of Put, FailedPrecondition if the memory has changed, and NotFound if another tensor has
  // its name meanwhile. Products of calls with callbacks and of streams are sent again, too
  // (MultiplyStream::Receive). A session that was joined by its token is not replaced.
  bool restorable = false;

  std::string device = {};  // Copies the tensor there at once. Empty: when a product needs it.

  // Called on the caller's thread, about ten times a second and at the end of a successful
  // transfer.
  std::function<void(const TransferProgress&)> progress = {};

  // The number of connections that carry the bytes, 1 to 16. 0, the default: one or four, whichever
  // was faster for this client's transfers of that size; both are tried, and the first transfer
  // above 8 MiB uses four.
  int connections = 0;

  // Limit on the whole transfer. Absent: no limit while bytes move; DeadlineExceeded if none moves
  // for ClientOptions::timeout.
  std::optional<absl::Duration> timeout = {};

  int64_t matrices = 1;  // The batch size; the view's matrices must have no gaps.
};

struct GetOptions {
  int64_t offset = 0;                 // The first byte to download.
  std::optional<int64_t> bytes = {};  // Absent: all bytes from `offset` on.

  // As in PutOptions.
  std::function<void(const TransferProgress&)> progress = {};
  int connections = 0;
  std::optional<absl::Duration> timeout = {};
};

// Receives bytes of a tensor as they arrive; `offset` counts from the first requested byte. Several
// gRPC threads call it at the same time, for disjoint ranges, in any order. An error ends the
// download with that error.
using TensorSink = std::function<absl::Status(int64_t offset, std::span<const std::byte> bytes)>;

struct KeepAliveOptions {
  std::optional<absl::Duration> lease = {};  // Absent: unchanged. 0: SessionInfo::lease.
  std::optional<bool> pinned = {};           // Absent: unchanged.
};

// Identifies a tensor by its handle, or by its name if the handle is empty.
struct TensorRef {
  std::string handle = {};  // 16 bytes.
  std::string name = {};
};
TensorRef NamedTensor(absl::string_view name);
TensorRef TensorOfHandle(absl::string_view handle);

struct CompressOptions {
  KeepOptions keep = {};
  std::optional<TensorRef> mask =
      {};  // See CompressRequest.mask. Absent: keeps the largest magnitudes.
};

// The SHA-256 digest of `bytes`, 32 bytes long.
std::string Sha256Of(std::span<const std::byte> bytes);

// A resident tensor, or a part of it, as an operand or as the destination of a result. Owns
// nothing: the tensor must still exist when the view is used.
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
  bool is_whole = true;    // The view covers the whole tensor: the server need not check a range.
  bool transpose = false;  // op(X) is the transpose of this part.
  // Block factors of this part as A or B, for a tensor that has none itself. Borrowed.
  BlockScaleView blocks = {};

  // Parts of this part, counted from its beginning. The server checks that they lie within the
  // tensor.
  TensorView Rows(int64_t first, int64_t count) const;
  TensorView Columns(int64_t first, int64_t count) const;
  TensorView Matrices(int64_t first, int64_t count) const;
  TensorView Transposed() const;

  v1::TensorPart part() const;
};

// A view of the whole tensor that `info` describes.
TensorView ViewOf(const v1::TensorInfo& info);

struct TensorOwner;

// A tensor of this client on the server. The destructor deletes the tensor, unless it is pinned or
// was released, or the client is gone (the server then ends the session). Products in progress keep
// the tensors that they use. Threads: functions that change it need exclusive access, as for any
// value type.
class ResidentTensor {
 public:
  ResidentTensor(ResidentTensor&& other) noexcept;
  ResidentTensor& operator=(
      ResidentTensor&& other) noexcept;  // Deletes the tensor previously held.
  ~ResidentTensor();  // Does not wait for the server, except for the end of a restoration in
                      // progress; the client's next Put, Chain or Compress does.

  // As described by this client's last call.
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

  // Leaves the tensor on the server, which keeps it for its lease, and returns its current handle.
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
  Operand(
      const MatrixView& view);  // NOLINT(google-explicit-constructor): each of these is an operand.
  Operand(const TensorView& view);        // NOLINT(google-explicit-constructor)
  Operand(const ResidentTensor& tensor);  // NOLINT(google-explicit-constructor)

  const MatrixView* matrix() const { return tensor_.has_value() ? nullptr : &matrix_; }
  const TensorView* tensor() const { return tensor_.has_value() ? &*tensor_ : nullptr; }

 private:
  MatrixView matrix_ = {};
  std::optional<TensorView> tensor_ = {};
};

// Options of a product whose D stays on the server.
struct ChainOptions {
  ProductOptions product =
      {};  // `output_type` and so on describe the new tensor if there is no `into`.
  std::optional<TensorView> c = {};     // A resident C, instead of product.c.
  std::optional<TensorView> into = {};  // D overwrites it. Absent: D is a new tensor.
  KeepOptions keep = {};                // How the new tensor is kept.
};

// Builds a request for a product with operands on the server; the answer contains D. Errors: those
// of BuildRequest for views; also InvalidArgument if the shape of a tensor does not fit.
absl::StatusOr<v1::MultiplyRequest> BuildRequest(const Operand& a, const Operand& b,
                                                 const ProductOptions& options = {},
                                                 const std::optional<TensorView>& c = {});

// The same for a D that stays on the server.
absl::StatusOr<v1::MultiplyRequest> BuildChainRequest(const Operand& a, const Operand& b,
                                                      const ChainOptions& options);

// The result of a product whose D stayed on the server.
struct ChainResult {
  std::optional<ResidentTensor> tensor;                  // D, if it is a new tensor.
  std::shared_ptr<const v1::MultiplyResponse> response;  // Without bytes of D; not null.
};

}  // namespace gemmd
