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
// Every call has a deadline, which counts from its entry. A call that the server refused or lost
// with UNAVAILABLE is sent again, with exponential backoff or after the pause that the server asked
// for; no other failure is retried.
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

// How connections are encrypted and who is at their ends. Files are PEM, and are read when the
// client is made. Any field turns TLS on, as `tls:` before the address does.
struct TlsOptions {
  // Who may have signed the server's certificate; broken ones are left out. Empty: the system's.
  std::string ca_file = {};

  // The client's own certificate, followed by those between it and a root, and its key without a
  // passphrase: both or none. For servers that ask for one, as at an mtls: address.
  std::string certificate_file = {};
  std::string key_file = {};

  // The name that the server's certificate must bear. Empty: the host of the address.
  std::string server_name = {};
};

struct ClientOptions {
  // Connections; calls take turns on them. All bytes of one connection pass one after the other, so
  // that large matrices hold up the calls after them: many threads gain from a few more. 1 to
  // 1024.
  int channels = 1;

  // How long a call may take, retries included, where CallOptions does not say. Positive, finite.
  absl::Duration timeout = absl::Seconds(60);

  // The longest message sent or received, at most 2^31 - 1. A longer one ends with
  // ResourceExhausted.
  int64_t max_message_bytes = int64_t{512} << 20;

  // How often a call is tried in all, 1 (no retries) to 5, and the pauses between: about
  // initial_backoff first, doubled each time, none above max_backoff.
  int max_attempts = 5;
  absl::Duration initial_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(2);

  // Whether calls ride out a restart of the server: a call waits, up to its timeout, for a server
  // that cannot be reached, in place of Unavailable, and is sent again (max_attempts) where a
  // server that stopped ended it with Cancelled, too. Leave it off for products that overwrite
  // their own C: such an end does not tell whether the server computed them.
  bool wait_for_ready = false;

  // Encryption by files; without it and without tls: before the address there is none.
  TlsOptions tls = {};

  // Who calls: sent with every call, as `authorization: Bearer TOKEN`. Printable ASCII without
  // spaces, at most 8192 characters. It is not sent where others could read it: without encryption
  // the address must be of loopback or a unix socket. No error shows it.
  std::string token = {};

  // Whether connections go through the HTTP proxy that $grpc_proxy, $https_proxy or $http_proxy
  // names, the first of them that is set, but for hosts in $no_grpc_proxy or $no_proxy. Without it
  // these variables mean nothing. A proxy reads what is not encrypted, so a token needs TLS then.
  bool use_proxy = false;

  // Credentials of gRPC's own making, in place of `tls`; they must encrypt where there is a token.
  std::shared_ptr<grpc::ChannelCredentials> credentials = {};

  // Further gRPC channel arguments; those that the client sets itself win.
  grpc::ChannelArguments channel_arguments = {};
};

// What one call may have of its own.
struct CallOptions {
  std::optional<absl::Duration> timeout =
      {};  // Absent: ClientOptions::timeout. At most a year counts; 0 or less has passed at once.
  // W3C Trace Context, `00-...`: the server logs its part of the call under it. Empty, or with
  // other characters than printable ASCII: not sent.
  std::string traceparent = {};
};

// The pause that the server asked for before the next try (trailer `grpc-retry-pushback-ms`, which
// comes with RESOURCE_EXHAUSTED where its queue is full), where `status` came from a call and it
// did.
std::optional<absl::Duration> RetryPushback(const absl::Status& status);

struct AsyncCallState;
struct ClientState;
class MultiplyStream;

// A call under way. Copies stand for the same call; dropping them all changes nothing.
class AsyncCall {
 public:
  // Asks for the end of the call. Its callback still runs, once: with Cancelled, or with the answer
  // where that was faster. Any thread, any time, also after the end.
  void Cancel();

 private:
  friend class Client;
  explicit AsyncCall(std::weak_ptr<AsyncCallState> state) : state_(std::move(state)) {}
  std::weak_ptr<AsyncCallState> state_;
};

// grpc.health.v1: whether a service takes requests.
enum class ServingStatus { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };
absl::string_view ServingStatusName(ServingStatus status);  // "SERVING" ...

// A connection, or several, to one server, or to each of several that do the same.
//
// Errors of all calls: the server's own status with its message, for Multiply those of
// proto/gemmd/v1/gemm.proto; Unavailable where the server cannot be reached; DeadlineExceeded.
// Threads: every function but move and destruction may be called by any thread at any time.
class Client {
 public:
  // `address` is host:port or unix:/path, with tls: before the former where the server speaks TLS
  // (mtls: where it asks for a certificate as well); or stands for several servers that calls go
  // round: dns:///host:port for all that DNS knows by the name, ipv4:a:1,b:2 for a list. One of
  // those that says it is not healthy, as each does before it ends, gets no more calls. Never
  // blocks and never fails because of the server: connecting begins with the first call. Errors:
  // InvalidArgument for a bad address or option.
  static absl::StatusOr<Client> Create(absl::string_view address,
                                       const ClientOptions& options = {});

  Client(Client&& other) noexcept;
  Client& operator=(Client&& other) noexcept;

  // Cancels the asynchronous calls under way and waits until their callbacks have returned: after
  // it no callback runs. A call that such a callback starts meanwhile is cancelled too, so
  // callbacks that start a call for each that ended must stop at Cancelled. Within a callback of
  // this client it only cancels, and its connections end with the next client made or destroyed.
  // Streams live on.
  ~Client();

  // Computes D. Blocks. The matrices are sent from where they lie; they are not copied.
  // Shapes: see product.h. Errors: also InvalidArgument found before sending, see BuildRequest.
  absl::StatusOr<MultiplyResult> Multiply(const MatrixView& a, const MatrixView& b,
                                          const ProductOptions& product_options = {},
                                          const CallOptions& call_options = {});

  // The same without blocking: what is returned waits for D, and the matrices and `into` stay
  // where they are until it has.
  PendingProduct MultiplyAsync(const MatrixView& a, const MatrixView& b,
                               const ProductOptions& product_options = {},
                               const CallOptions& call_options = {});

  // Computes D from the wire's own messages.
  absl::StatusOr<v1::MultiplyResponse> Multiply(const v1::MultiplyRequest& request,
                                                const CallOptions& options = {});

  // Starts a product and returns. `done` runs once, on a thread of gRPC, when it has ended; it may
  // start other calls and must not block.
  using MultiplyDone = absl::AnyInvocable<void(absl::StatusOr<v1::MultiplyResponse>) &&>;
  AsyncCall MultiplyAsync(v1::MultiplyRequest request, MultiplyDone done,
                          const CallOptions& options = {});

  // Starts a product whose request is sent many times: it is shared, not copied, and not null.
  AsyncCall MultiplyAsync(std::shared_ptr<const v1::MultiplyRequest> request, MultiplyDone done,
                          const CallOptions& options = {});

  // Opens a stream of products; see multiply_stream.h. The timeout is that of the whole stream.
  // It may outlive the client.
  std::unique_ptr<MultiplyStream> OpenMultiplyStream(const CallOptions& options = {});

  // Opens the session of this client's tensors, or joins the one whose token it has; calls that
  // make or name tensors open one by themselves. The client says whose it is with every call.
  // Errors: Unauthenticated for an unknown token; FailedPrecondition where it has another session.
  absl::StatusOr<SessionInfo> OpenSession(absl::string_view token = "",
                                          const CallOptions& options = {});

  // Uploads a tensor: the matrix as it is stored, without `transpose`. Blocks until the server has
  // all of it. The bytes are read where they lie, by threads of gRPC, until it returns. What a
  // broken connection lost is sent again. Errors: as Tensors.Put; InvalidArgument where the bytes
  // do not fit the shape.
  absl::StatusOr<ResidentTensor> Put(const MatrixView& matrix, const PutOptions& options = {});

  // Downloads the bytes of a tensor, or a range of them, to memory of exactly as many bytes, or to
  // where they are taken as they arrive. Blocks; gives a view of the whole tensor.
  // Errors: as Tensors.Get; InvalidArgument where `into` is of another size.
  absl::StatusOr<TensorView> Get(const TensorRef& tensor, std::span<std::byte> into,
                                 const GetOptions& options = {});
  absl::StatusOr<TensorView> Get(const TensorRef& tensor, const TensorSink& sink,
                                 const GetOptions& options = {});

  // The session's tensors whose names match `pattern` (`*`: any run of characters, `?`: any one;
  // empty: all, also those without a name).
  absl::StatusOr<v1::ListTensorsResponse> ListTensors(absl::string_view pattern = "",
                                                      const CallOptions& options = {});
  absl::StatusOr<v1::TensorInfo> Describe(const TensorRef& tensor, const CallOptions& options = {});
  absl::Status Delete(const TensorRef& tensor, const CallOptions& options = {});

  // Renews a tensor's lease, as each use does, and changes how it is kept.
  absl::StatusOr<v1::TensorInfo> KeepAlive(const TensorRef& tensor,
                                           const KeepAliveOptions& keep = {},
                                           const CallOptions& options = {});
  absl::Status KeepAlive(ResidentTensor& tensor, const KeepAliveOptions& keep = {},
                         const CallOptions& options = {});

  // Makes a 2:4 tensor of a dense one on the server.
  absl::StatusOr<ResidentTensor> Compress(const TensorRef& tensor,
                                          const CompressOptions& compress = {},
                                          const CallOptions& options = {});

  // Computes D from operands of which at least one is on the server. The others are sent from where
  // they lie.
  absl::StatusOr<MultiplyResult> Multiply(const Operand& a, const Operand& b,
                                          const ProductOptions& product_options = {},
                                          const CallOptions& call_options = {});
  PendingProduct MultiplyAsync(const Operand& a, const Operand& b,
                               const ProductOptions& product_options = {},
                               const CallOptions& call_options = {});

  // Computes D and leaves it on the server: see ChainOptions. Where operands are there too, nothing
  // but the request and its answer travels.
  absl::StatusOr<ChainResult> Chain(const Operand& a, const Operand& b,
                                    const ChainOptions& chain = {},
                                    const CallOptions& options = {});

  // The same without blocking, except where the session is opened, or deletions are under way whose
  // room a new tensor may need.
  PendingChain ChainAsync(const Operand& a, const Operand& b, const ChainOptions& chain = {},
                          const CallOptions& options = {});

  // Kernels whose name matches `name_pattern` (`*`: any run of characters; empty: all), in order.
  absl::StatusOr<v1::ListKernelsResponse> ListKernels(absl::string_view name_pattern = "",
                                                      const CallOptions& options = {});
  absl::StatusOr<v1::ListDevicesResponse> ListDevices(const CallOptions& options = {});

  // Has the worker process of a GPU replaced; does not wait for the new one. The server takes this
  // over a unix socket only, otherwise PermissionDenied.
  absl::Status RestartDevice(absl::string_view device, const CallOptions& options = {});

  // Wrong answers that the server found before it gave them, and the product of one of them. Over a
  // unix socket, or for callers with the role `administer`; otherwise PermissionDenied.
  // NotFound where there is no such incident, FailedPrecondition where its operands were not kept;
  // `without_operands` the product comes without their bytes, for a caller who has them.
  absl::StatusOr<v1::ListIncidentsResponse> ListIncidents(const CallOptions& options = {});
  absl::StatusOr<v1::GetIncidentProductResponse> GetIncidentProduct(int64_t id,
                                                                    const CallOptions& options = {},
                                                                    bool without_operands = false);

  // The sessions that own resident tensors, those with the most bytes first, at most `limit` (0:
  // 100). Over a unix socket, or for callers with the role `administer`.
  absl::StatusOr<v1::ListSessionsResponse> ListSessions(int64_t limit = 0,
                                                        const CallOptions& options = {});

  // Ends a session and deletes its tensors, pinned ones too. Over a unix socket only. NotFound
  // where no session has the id.
  absl::StatusOr<v1::DropSessionResponse> DropSession(absl::string_view id,
                                                      const CallOptions& options = {});

  // How the server would run a product. The operands' bytes need not be there and are not sent.
  absl::StatusOr<v1::ExplainResponse> Explain(const v1::MultiplyRequest& request,
                                              const CallOptions& options = {});
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(const CallOptions& options = {});

  // What the server has counted since its start, and what is queued now.
  absl::StatusOr<v1::GetStatisticsResponse> GetStatistics(const CallOptions& options = {});

  // Matrix instructions that `chip` has (`sm_90`; empty: of any chip) and whose name matches
  // `name_pattern`, as above.
  absl::StatusOr<v1::ListInstructionsResponse> ListInstructions(absl::string_view chip = "",
                                                                absl::string_view name_pattern = "",
                                                                const CallOptions& options = {});

  // Which register of which lane holds which element of an operand of an instruction.
  absl::StatusOr<v1::DescribeFragmentResponse> DescribeFragment(
      const v1::DescribeFragmentRequest& request, const CallOptions& options = {});

  // Whether `service` takes requests; empty: the server as a whole. Unknown services: NotFound.
  absl::StatusOr<ServingStatus> CheckHealth(absl::string_view service = "",
                                            const CallOptions& options = {});

  // Calls `on_change` with the status now and at each change, on this thread, until it returns
  // false (OK), the timeout has passed (DeadlineExceeded) or the connection is lost. Blocks. An
  // unknown service is kServiceUnknown here: it may appear later.
  absl::Status WatchHealth(absl::string_view service,
                           const std::function<bool(ServingStatus)>& on_change,
                           const CallOptions& options = {});

 private:
  explicit Client(std::unique_ptr<ClientState> state);
  void Close();

  std::unique_ptr<ClientState> state_;
};

}  // namespace gemmd
