// SPDX-License-Identifier: Apache-2.0
//
// The client of gemmd: matrix products over gRPC.
//
//   auto client = gemmd::Client::Create("127.0.0.1:8470");
//   std::vector<float> a(m * k), b(k * n);
//   auto product = client->Multiply(gemmd::View(a, m, k), gemmd::View(b, k, n));
//   if (!product.ok()) return product.status();
//   std::span<const float> d = *product->elements<float>();
//
// Every call has a deadline, counted from the start of the call. A call that fails with UNAVAILABLE
// is retried with exponential backoff, or after the delay that the server asks for. No other
// failure is retried, except where the server has lost a tensor of PutOptions::restorable.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gemmd/pending_product.h"
#include "gemmd/product.h"
#include "gemmd/tensor.h"
#include "gemmd/wire_types.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace gemmd {

// Encryption and certificates of connections. Files are PEM and are read when the client is
// created. Setting any field turns TLS on, as the address prefix `tls:` does.
struct TlsOptions {
  // The CAs that may sign the server's certificate, in PEM; malformed certificates are ignored.
  // Empty: the system's CAs.
  std::string ca_file = {};

  // The client's certificate chain (its own certificate first, then the intermediate ones), and its
  // private key without a passphrase. Set both or neither. For servers that require a client
  // certificate (address prefix `mtls:`).
  std::string certificate_file = {};
  std::string key_file = {};

  // The name that the server's certificate must contain. Empty: the host of the address.
  std::string server_name = {};
};

struct ClientOptions {
  // The number of connections, 1 to 1024; calls use them round-robin. A large matrix delays the
  // calls behind it on the same connection, so a client with many threads gains from a few more.
  int channels = 1;

  // The deadline of a call, retries included, unless CallOptions sets another. Positive and finite.
  absl::Duration timeout = absl::Seconds(60);

  // The longest message sent or received, at most 2^31 - 1. A longer one ends with
  // ResourceExhausted.
  int64_t max_message_bytes = int64_t{512} << 20;

  // The number of attempts per call, 1 (no retries) to 5, and the delays between them: about
  // initial_backoff at first, doubled each time, at most max_backoff.
  int max_attempts = 5;
  absl::Duration initial_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(2);

  // Whether calls survive a restart of the server. A call then waits, up to its timeout, for a
  // server that cannot be reached, instead of ending with Unavailable, and is also sent again (up
  // to max_attempts) if a server that stopped ended it with Cancelled. Leave it off for products
  // that overwrite their own C: after Cancelled, the server may have computed them.
  bool wait_for_ready = false;

  // TLS from files. Without these files and without the address prefix `tls:`, connections are not
  // encrypted.
  TlsOptions tls = {};

  // The caller's identity, sent with every call as `authorization: Bearer TOKEN`. Printable ASCII
  // without spaces, at most 8192 characters. Without encryption, the address must be a loopback
  // address or a unix socket, so that nobody else can read the token. No error text contains it.
  std::string token = {};

  // Whether connections use the HTTP proxy named by the first variable set among $grpc_proxy,
  // $https_proxy and $http_proxy, except to hosts in $no_grpc_proxy or $no_proxy. If false, these
  // variables are ignored. A proxy can read unencrypted traffic, so a token then needs TLS.
  bool use_proxy = false;

  // gRPC credentials to use instead of `tls`. They must encrypt if `token` is set.
  std::shared_ptr<grpc::ChannelCredentials> credentials = {};

  // Additional gRPC channel arguments. Arguments that the client itself sets take precedence.
  grpc::ChannelArguments channel_arguments = {};
};

// Options of a single call.
struct CallOptions {
  std::optional<absl::Duration> timeout =
      {};  // Absent: ClientOptions::timeout. Capped at a year; 0 or less expires at once.
  // A W3C Trace Context `traceparent` (`00-...`), which the server writes to its log of the call.
  // Not sent if empty or not printable ASCII.
  std::string traceparent = {};
};

// The delay before the next attempt that the server asked for when a call ended with `status`
// (trailer `grpc-retry-pushback-ms`, sent with RESOURCE_EXHAUSTED if the queue is full), or
// nullopt.
std::optional<absl::Duration> RetryPushback(const absl::Status& status);

struct AsyncCallState;
struct ClientState;
class MultiplyStream;

// A call in progress. Copies refer to the same call. Destroying them does not cancel the call.
class AsyncCall {
 public:
  // Cancels the call. Its callback still runs once, with Cancelled, or with the answer if the
  // answer arrived first. May be called by any thread at any time, even after the call has ended.
  void Cancel();

 private:
  friend class Client;
  explicit AsyncCall(std::weak_ptr<AsyncCallState> state) : state_(std::move(state)) {}
  std::weak_ptr<AsyncCallState> state_;
};

// The serving status of a service, as in grpc.health.v1.
enum class ServingStatus { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };
absl::string_view ServingStatusName(ServingStatus status);  // "SERVING" ...

// One or more connections to a server, or to each of several equivalent servers.
//
// Errors of all calls: the server's own status and message (for Multiply, see
// proto/gemmd/v1/gemm.proto); Unavailable if the server cannot be reached; DeadlineExceeded.
// Threads: any thread may call any function at any time, except move and destruction.
class Client {
 public:
  // `address` is host:port or unix:/path. Before host:port, `tls:` selects TLS and `mtls:` selects
  // TLS with a client certificate. An address may also name several servers, which take calls in
  // turn: dns:///host:port for every address of the DNS name, ipv4:a:1,b:2 for a list. A server
  // that reports itself unhealthy, as each does before it shuts down, receives no more calls. Never
  // blocks, and never fails because of the server: the first call connects. Errors: InvalidArgument
  // for a bad address or option.
  static absl::StatusOr<Client> Create(absl::string_view address,
                                       const ClientOptions& options = {});

  Client(Client&& other) noexcept;
  Client& operator=(Client&& other) noexcept;

  // Cancels the asynchronous calls in progress and waits until their callbacks have returned; no
  // callback runs afterwards. Calls that such a callback starts meanwhile are cancelled too, so a
  // callback that starts a call for each that ended must stop at Cancelled. Within a callback of
  // this client, the destructor only cancels, and its connections are closed when the next client
  // is created or destroyed. Streams stay open.
  ~Client();

  // Computes D. Blocks. The matrices are sent without copying. Shapes: see product.h. Errors: also
  // InvalidArgument found before sending, see BuildRequest.
  absl::StatusOr<MultiplyResult> Multiply(const MatrixView& a, const MatrixView& b,
                                          const ProductOptions& product_options = {},
                                          const CallOptions& call_options = {});

  // The same without blocking. Wait for D on the returned PendingProduct; the matrices and `into`
  // must stay valid until then.
  PendingProduct MultiplyAsync(const MatrixView& a, const MatrixView& b,
                               const ProductOptions& product_options = {},
                               const CallOptions& call_options = {});

  // Computes D from a request message.
  absl::StatusOr<v1::MultiplyResponse> Multiply(const v1::MultiplyRequest& request,
                                                const CallOptions& options = {});

  // Starts a product and returns. `done` runs once when the call has ended, on a gRPC thread, or on
  // a thread of the client after the server has lost a tensor. It may start other calls and must
  // not block.
  using MultiplyDone = absl::AnyInvocable<void(absl::StatusOr<v1::MultiplyResponse>) &&>;
  AsyncCall MultiplyAsync(v1::MultiplyRequest request, MultiplyDone done,
                          const CallOptions& options = {});

  // The same for a request that is sent many times: `request` is shared, not copied. Not null.
  AsyncCall MultiplyAsync(std::shared_ptr<const v1::MultiplyRequest> request, MultiplyDone done,
                          const CallOptions& options = {});

  // Opens a stream of products; see multiply_stream.h. The timeout applies to the whole stream. The
  // stream may outlive the client.
  std::unique_ptr<MultiplyStream> OpenMultiplyStream(const CallOptions& options = {});

  // Opens the session that owns this client's tensors, or joins the session of `token`. Calls that
  // create or name tensors open a session on their own. The client then sends the session's token
  // with every call. Errors: Unauthenticated for an unknown token; FailedPrecondition if the client
  // already has another session.
  absl::StatusOr<SessionInfo> OpenSession(absl::string_view token = "",
                                          const CallOptions& options = {});

  // Uploads the matrix as it is stored. Blocks until the server has all of it. gRPC threads read
  // the bytes in place until Put returns. Bytes lost with a broken connection are sent again.
  // Errors: those of Tensors.Put; InvalidArgument if `transpose` or `batch_stride` is set, or if
  // the bytes do not fit the shape.
  absl::StatusOr<ResidentTensor> Put(const MatrixView& matrix, const PutOptions& options = {});

  // Downloads the bytes of a tensor, or a range of them, to memory of exactly that size, or to a
  // sink that takes them as they arrive. Blocks. Returns a view of the whole tensor. Errors: those
  // of Tensors.Get; InvalidArgument if `into` has another size.
  absl::StatusOr<TensorView> Get(const TensorRef& tensor, std::span<std::byte> into,
                                 const GetOptions& options = {});
  absl::StatusOr<TensorView> Get(const TensorRef& tensor, const TensorSink& sink,
                                 const GetOptions& options = {});

  // The session's tensors whose names match `pattern` (`*`: any run of characters, `?`: any one;
  // empty: all tensors, unnamed ones included).
  absl::StatusOr<v1::ListTensorsResponse> ListTensors(absl::string_view pattern = "",
                                                      const CallOptions& options = {});
  absl::StatusOr<v1::TensorInfo> Describe(const TensorRef& tensor, const CallOptions& options = {});
  absl::Status Delete(const TensorRef& tensor, const CallOptions& options = {});

  // Renews a tensor's lease, as every use does, and changes its lease time or pinning.
  absl::StatusOr<v1::TensorInfo> KeepAlive(const TensorRef& tensor,
                                           const KeepAliveOptions& keep = {},
                                           const CallOptions& options = {});
  absl::Status KeepAlive(ResidentTensor& tensor, const KeepAliveOptions& keep = {},
                         const CallOptions& options = {});

  // Creates a 2:4 sparse tensor from a dense one, on the server.
  absl::StatusOr<ResidentTensor> Compress(const TensorRef& tensor,
                                          const CompressOptions& compress = {},
                                          const CallOptions& options = {});

  // Computes D from operands of which at least one is resident on the server. The other operands
  // are sent without a copy.
  absl::StatusOr<MultiplyResult> Multiply(const Operand& a, const Operand& b,
                                          const ProductOptions& product_options = {},
                                          const CallOptions& call_options = {});
  PendingProduct MultiplyAsync(const Operand& a, const Operand& b,
                               const ProductOptions& product_options = {},
                               const CallOptions& call_options = {});

  // Computes D and leaves it on the server: see ChainOptions. Resident operands are not sent.
  absl::StatusOr<ChainResult> Chain(const Operand& a, const Operand& b,
                                    const ChainOptions& chain = {},
                                    const CallOptions& options = {});

  // The same without blocking, except to open the session, or to wait for deletions in progress
  // whose memory the new tensor may need.
  PendingChain ChainAsync(const Operand& a, const Operand& b, const ChainOptions& chain = {},
                          const CallOptions& options = {});

  // Kernels whose name matches `name_pattern` (`*`: any run of characters; empty: all), sorted.
  absl::StatusOr<v1::ListKernelsResponse> ListKernels(absl::string_view name_pattern = "",
                                                      const CallOptions& options = {});
  absl::StatusOr<v1::ListDevicesResponse> ListDevices(const CallOptions& options = {});

  // Replaces the worker process of a GPU, without waiting for the new process. Unix sockets only,
  // otherwise PermissionDenied.
  absl::Status RestartDevice(absl::string_view device, const CallOptions& options = {});

  // Incidents (wrong answers that the server caught before sending them), and the product of one
  // incident. Over a unix socket, or for callers with the role `administer`; otherwise
  // PermissionDenied. GetIncidentProduct: NotFound for an unknown id, FailedPrecondition if the
  // operands were not kept. `without_operands` leaves out the operands' bytes, for a caller that
  // has them.
  absl::StatusOr<v1::ListIncidentsResponse> ListIncidents(const CallOptions& options = {});
  absl::StatusOr<v1::GetIncidentProductResponse> GetIncidentProduct(int64_t id,
                                                                    const CallOptions& options = {},
                                                                    bool without_operands = false);

  // At most `limit` (0: 100) sessions that own resident tensors, largest first. Over a unix socket,
  // or for callers with the role `administer`.
  absl::StatusOr<v1::ListSessionsResponse> ListSessions(int64_t limit = 0,
                                                        const CallOptions& options = {});

  // Ends a session and deletes its tensors, pinned ones too. Over a unix socket only. NotFound if
  // no session has this id.
  absl::StatusOr<v1::DropSessionResponse> DropSession(absl::string_view id,
                                                      const CallOptions& options = {});

  // Returns how the server would run a product. `request` may lack the operands' bytes; they are
  // not sent.
  absl::StatusOr<v1::ExplainResponse> Explain(const v1::MultiplyRequest& request,
                                              const CallOptions& options = {});
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(const CallOptions& options = {});

  // The server's counters since its start, and the current queue.
  absl::StatusOr<v1::GetStatisticsResponse> GetStatistics(const CallOptions& options = {});

  // Matrix instructions of `chip` (such as `sm_90`; empty: any chip) whose name matches
  // `name_pattern`, as for ListKernels.
  absl::StatusOr<v1::ListInstructionsResponse> ListInstructions(absl::string_view chip = "",
                                                                absl::string_view name_pattern = "",
                                                                const CallOptions& options = {});

  // Returns which register of which lane holds each element of an instruction's operand.
  absl::StatusOr<v1::DescribeFragmentResponse> DescribeFragment(
      const v1::DescribeFragmentRequest& request, const CallOptions& options = {});

  // Returns whether `service` (empty: the server as a whole) is serving. NotFound for an unknown
  // service.
  absl::StatusOr<ServingStatus> CheckHealth(absl::string_view service = "",
                                            const CallOptions& options = {});

  // Calls `on_change` on this thread with the current status and after each change, until
  // `on_change` returns false (OK), the timeout passes (DeadlineExceeded) or the connection is
  // lost. Blocks. An unknown service has the status kServiceUnknown, because it may appear later.
  absl::Status WatchHealth(absl::string_view service,
                           const std::function<bool(ServingStatus)>& on_change,
                           const CallOptions& options = {});

 private:
  explicit Client(std::unique_ptr<ClientState> state);
  void Close();

  std::unique_ptr<ClientState> state_;
};

}  // namespace gemmd
