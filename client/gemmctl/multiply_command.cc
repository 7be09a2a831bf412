// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/gemmctl/command.h"
#include "client/gemmctl/operand_input.h"
#include "client/gemmctl/product_flags.h"
#include "client/gemmctl/product_report.h"
#include "client/gemmctl/tensor_session.h"
#include "client/matrix/npy.h"
#include "client/matrix/verify.h"
#include "client/terminal/console.h"
#include "client/terminal/option.h"
#include "client/terminal/text.h"
#include "gemmd/client.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// Costs besides the product, measured with calls that compute nothing.
struct ConnectionCosts {
  // How much longer the first call took than the second: the connection, and the session if any.
  int64_t connect_ns = 0;
  int64_t empty_call_ns = 0;  // A call on the existing connection.
};

// Makes two calls. `start`: when creation of the client began. Returns nullopt if a call fails with
// an error other than DeadlineExceeded: the product's call then tries again and reports the error.
absl::StatusOr<std::optional<ConnectionCosts>> MeasureConnection(Client& client, absl::Time start) {
  absl::Status status = client.CheckHealth().status();
  const absl::Time connected = absl::Now();
  if (status.ok()) status = client.CheckHealth().status();
  const absl::Time called = absl::Now();
  if (absl::IsDeadlineExceeded(status)) return status;
  if (!status.ok()) return std::nullopt;
  const int64_t first_ns = absl::ToInt64Nanoseconds(connected - start);
  const int64_t next_ns = absl::ToInt64Nanoseconds(called - connected);
  return ConnectionCosts{.connect_ns = std::max(int64_t{0}, first_ns - next_ns),
                         .empty_call_ns = next_ns};
}

// "connect  1.20 ms, and 310 us for an empty call".
std::string ConnectionText(const ConnectionCosts& costs) {
  return absl::StrCat("connect  ", FormatNanoseconds(costs.connect_ns), ", and ",
                      FormatNanoseconds(costs.empty_call_ns), " for an empty call");
}

constexpr int64_t kMaxCalls = 1'000'000'000;

constexpr char kMultiplyHelp[] =
    "Examples:\n"
    "  gemmctl multiply A.npy B.npy -o D.npy                 D = A B\n"
    "  gemmctl multiply A.npy W.npy --transpose-b --bias bias.npy --activation relu -o D.npy\n"
    "  gemmctl multiply A.npy B.npy --type e4m3 --scale-a 0.5 --scale-b s.npy --output-type bf16 "
    "-o D.npy\n"
    "  gemmctl multiply - B.npy -o - < A.npy > D.npy         A from a pipe, D into one\n"
    "  gemmctl multiply --random 4096,4096,4096 --type bf16 --repeat 20 --warmup 3\n"
    "  gemmctl multiply --random 65,33,129 --type s8 --batch 4 --verify\n"
    "  gemmctl multiply A.npy B.npy --server-verify sampled:0.01 -o D.npy\n"
    "  gemmctl put W.npy --name w && gemmctl multiply A.npy @w --keep-result d\n"
    "  gemmctl multiply @d V.npy --into @e                   D overwrites a tensor on the "
    "server\n\n";

struct MultiplyFlags {
  ProductFlags product;
  std::string output_path;  // Empty: D is not kept. "-": standard output.
  int64_t repeat = 1;
  int64_t warmup = 0;
  bool verify = false;
  std::string server_verify;  // Empty: the server's default.
  std::string traceparent;    // Empty: none is sent.
  std::string into;           // A tensor that D overwrites; empty: none.
  std::string keep;           // The name of a new tensor for D; empty: none.

  bool IsKept() const { return !into.empty() || !keep.empty(); }
};

// A client for the product, with a session if the product names or creates tensors.
absl::StatusOr<Client> ConnectFor(const GlobalFlags& global, const MultiplyFlags& flags,
                                  const Console& console) {
  if (!flags.IsKept()) return ConnectFor(global, flags.product, console);
  const bool may_open = flags.into.empty() && !NamesTensors(flags.product);
  return ConnectSession(global, may_open, console);
}

// Refuses flags that exclude each other.
absl::Status CheckFlags(const MultiplyFlags& flags) {
  if (!flags.into.empty() && !flags.keep.empty()) {
    return absl::InvalidArgumentError("--into: got --keep-result too, want one of them");
  }
  if (flags.IsKept() && !flags.output_path.empty()) {
    return absl::InvalidArgumentError(
        "--output: got a file for a D that stays on the server, want none: `gemmctl get` writes "
        "it");
  }
  if (flags.verify && (flags.IsKept() || NamesTensors(flags.product))) {
    return absl::InvalidArgumentError(
        "--verify: got tensors of the server, want A, B and D here: `gemmctl get` downloads them");
  }
  return absl::OkStatus();
}

// Says where D goes.
absl::Status PlaceResult(Client& client, const MultiplyFlags& flags, v1::MultiplyRequest& request) {
  if (!flags.keep.empty()) {
    request.mutable_d()->mutable_new_tensor()->set_name(flags.keep);
    request.mutable_d()->mutable_new_tensor()->set_pinned(true);
  }
  if (flags.into.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto info, client.Describe(TensorNamed(flags.into)));
  request.mutable_d()->set_order(v1::ORDER_ROW_MAJOR);
  *request.mutable_d()->mutable_tensor() = ViewOf(info).part();
  return absl::OkStatus();
}

// Repeats the call as the flags say. Keeps the time of every call and the last answer.
absl::StatusOr<v1::MultiplyResponse> Measure(Client& client, const v1::MultiplyRequest& request,
                                             const MultiplyFlags& flags, const Console& console,
                                             std::vector<CallTiming>& calls) {
  CallProgress progress(console.err, "multiply", flags.warmup + flags.repeat);
  absl::StatusOr<v1::MultiplyResponse> response = absl::UnknownError("no call was made");
  for (int64_t i = 0; i < flags.warmup + flags.repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    response = client.Multiply(request, {.traceparent = flags.traceparent});
    const auto round_trip = std::chrono::steady_clock::now() - start;
    if (!response.ok()) return response.status();
    progress.EndCall();
    if (i < flags.warmup) continue;
    calls.push_back({response->timing(), std::chrono::nanoseconds(round_trip).count()});
  }
  return response;
}

absl::Status WriteResult(const v1::Matrix& d, bool is_batch, const std::string& path,
                         const Console& console) {
  NpyArray array;
  array.type = d.type();
  array.order = d.order();
  if (is_batch) array.shape.push_back(d.batch());
  array.shape.insert(array.shape.end(), {d.rows(), d.columns()});
  array.data = d.data();
  return WriteArray(array, path, console);
}

std::string OperandTypeText(const v1::Operand& operand) {
  return operand.has_tensor() ? "a tensor" : TypeText(operand.type());
}

std::string Heading(const v1::MultiplyRequest& request, const v1::MultiplyResponse& response,
                    const std::optional<ConnectionCosts>& costs) {
  return absl::StrCat(
      "kernel   ", response.kernel().empty() ? "none (nothing to compute)" : response.kernel(),
      "\n", "device   ", response.device(), "\n", "product  ",
      response.d().batch() == 1 ? "" : absl::StrCat(response.d().batch(), " of "), request.m(),
      " x ", request.n(), " x ", request.k(), ", ", TypeText(response.d().type()), " <- ",
      OperandTypeText(request.a()), request.a().sparsity() == v1::SPARSITY_NONE ? "" : " 2:4",
      " x ", OperandTypeText(request.b()), ", ", FormatCount(response.operations()),
      " operations\n", "bytes    ", FormatBytes(response.bytes_read()), " read, ",
      FormatBytes(response.bytes_written()), " written\n",
      costs.has_value() ? ConnectionText(*costs) + "\n\n" : "\n");
}

std::string Place(const VerifiedElement& element, int64_t batches) {
  return PlaceText(batches, element.batch, element.row, element.column);
}

std::string VerificationText(const Verification& result, int64_t batches) {
  std::string text = absl::StrFormat(
      "\nverified  %s of %s elements, largest error %.3g at %s, where %.3g is allowed",
      FormatCount(result.checked), FormatCount(result.total), result.worst.error,
      Place(result.worst, batches), result.worst.bound);
  if (result.undecidable > 0) {
    absl::StrAppend(&text, "; ", FormatCount(result.undecidable),
                    " not comparable: their sums overflow only in some orders of summation");
  }
  return text + "\n";
}

nlohmann::ordered_json VerificationJson(const Verification& result) {
  return {{"passed", result.passed()},
          {"total_elements", result.total},
          {"checked_elements", result.checked},
          {"undecidable_elements", result.undecidable},
          {"wrong_elements", result.wrong},
          {"largest_error", result.worst.error},
          {"bound", result.worst.bound},
          {"batch", result.worst.batch},
          {"row", result.worst.row},
          {"column", result.worst.column}};
}

absl::Status VerificationStatus(const Verification& result, int64_t batches) {
  if (result.passed()) return absl::OkStatus();
  if (result.wrong == 0) return absl::DataLossError("d: got no element that can be compared");
  return absl::DataLossError(absl::StrFormat(
      "d: %s of %s elements are wrong; at %s got %.9g, want %.9g within %.3g",
      FormatCount(result.wrong), FormatCount(result.checked), Place(result.worst, batches),
      result.worst.got, result.worst.want, result.worst.bound));
}

// Prints the outcome of the product. `is_kept`: D stayed on the server.
void Report(const GlobalFlags& global, const v1::MultiplyRequest& request,
            const v1::MultiplyResponse& response, bool is_kept,
            const std::vector<CallTiming>& calls, const std::optional<ConnectionCosts>& costs,
            const std::optional<Verification>& verification, const Console& console) {
  if (global.json) {
    nlohmann::ordered_json json = {{"response", MessageJson(response)}};
    if (is_kept) json["tensor"] = TensorJson(response.tensor());
    json["calls"] = calls.size();
    json["stages"] = TimingJson(calls);
    if (costs.has_value()) {
      json["connect_ns"] = costs->connect_ns;
      json["empty_call_ns"] = costs->empty_call_ns;
    }
    if (verification.has_value()) json["verification"] = VerificationJson(*verification);
    console.Print(JsonLine(json));
    return;
  }
  console.Print(Heading(request, response, costs));
  console.Print(TimingTable(calls, response.operations()));
  if (response.has_verification()) {
    console.Print(ServerCheckText(response.verification(), response.timing().total_ns()));
  }
  if (is_kept) console.Print(absl::StrCat("\n", TensorText(response.tensor())));
  if (verification.has_value()) {
    console.Print(VerificationText(*verification, response.d().batch()));
  }
}

ExitCode RunMultiply(const GlobalFlags& global, const MultiplyFlags& flags,
                     const Console& console) {
  if (const absl::Status status = CheckFlags(flags); !status.ok()) {
    return FailLocally(console, status);
  }
  const absl::Status outputs =
      CheckOutputFiles(global, {{"--output", flags.output_path}}, FilesOf(flags.product));
  if (!outputs.ok()) return FailLocally(console, outputs);
  const absl::Time start = absl::Now();
  auto client = ConnectFor(global, flags, console);
  if (!client.ok()) return FailSession(console, client.status());
  const auto costs = MeasureConnection(*client, start);
  if (!costs.ok()) return FailCall(console, costs.status());
  auto request = ProductRequest(flags.product, true, console, &*client);
  if (!request.ok()) return FailLocally(console, request.status());
  if (const absl::Status status = PlaceResult(*client, flags, *request); !status.ok()) {
    return FailCall(console, status);
  }
  const auto check = ParseServerCheck(flags.server_verify);
  if (!check.ok()) return FailLocally(console, check.status());
  if (!flags.server_verify.empty()) {
    request->mutable_verify()->set_mode(check->mode);
    request->mutable_verify()->set_rate(check->rate);
  }
  ForgetPut(global, flags.into, console);
  std::vector<CallTiming> calls;
  auto measured = Measure(*client, *request, flags, console, calls);
  if (!measured.ok()) {
    const ExitCode code = FailCall(console, measured.status());
    return absl::IsDataLoss(measured.status()) ? ExitCode::kVerification : code;
  }
  if (flags.IsKept()) {
    ForgetPut(global, flags.keep, console);
    Report(global, *request, *measured, true, calls, *costs, std::nullopt, console);
    return ExitCode::kOk;
  }
  const auto product = MultiplyResult::FromResponse(*std::move(measured));
  if (!product.ok()) return FailCall(console, product.status());
  const v1::MultiplyResponse& response = product->response();

  std::optional<Verification> verification;
  if (flags.verify) {
    const auto verified = Verify(*request, response.d(), {}, SummationOn(response.device()));
    if (!verified.ok()) return FailCall(console, verified.status());
    verification = *verified;
  }
  if (!flags.output_path.empty()) {
    const absl::Status status =
        WriteResult(response.d(), request->has_batch(), flags.output_path, console);
    if (!status.ok()) return FailLocally(console, status);
  }
  Report(global, *request, response, false, calls, *costs, verification,
         ReportBeside(flags.output_path, console));
  if (!verification.has_value()) return ExitCode::kOk;
  const absl::Status status = VerificationStatus(*verification, response.d().batch());
  if (status.ok()) return ExitCode::kOk;
  console.PrintError(status);
  return ExitCode::kVerification;
}

bool IsTraceparent(const std::string& text) {
  constexpr std::string_view kForm = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
  return std::equal(text.begin(), text.end(), kForm.begin(), kForm.end(), [](char c, char form) {
    const bool is_digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    return form == 'x' ? is_digit : c == form;
  });
}

}  // namespace

CommandRun AddMultiply(CLI::App& app) {
  auto flags = std::make_unique<MultiplyFlags>();
  SetFooter(app, absl::StrCat(TypeHelp(), "\n\n", kMultiplyHelp, kSessionHelp));
  AddProductFlags(app, flags->product);
  SetGroup(app, "Output");
  AddOption(app, "-o,--output", flags->output_path,
            "File for D, a .npy file; - is standard output");
  AddOption(app, "--keep-result", flags->keep,
            "Leave D on the server, as a pinned tensor of this name; D is not downloaded")
      .TypeName("NAME");
  AddOption(app, "--into", flags->into,
            "Leave D on the server, in this tensor of exactly its type and shape; it may be C")
      .TypeName("@NAME");
  AddOption(app, "--repeat", flags->repeat,
            "Number of calls; for several, prints min, p50 and p99 of every stage", 1, kMaxCalls)
      .ShowDefault()
      .TypeName("N");
  AddOption(app, "--warmup", flags->warmup, "Number of unreported calls before the measured ones",
            0, kMaxCalls)
      .ShowDefault()
      .TypeName("N");
  AddFlag(app, "--verify", flags->verify,
          "Check D against an f64 product computed by gemmctl: exactly for integers, else within a "
          "derived bound; for a large D, checks evenly chosen rows (the server's own check is "
          "--server-verify)");
  AddServerCheck(app, flags->server_verify);
  AddOption(app, "--traceparent", flags->traceparent,
            "Trace of the calls, as a W3C Trace Context `traceparent`; the daemon logs it")
      .Check([](const std::string& text) {
        return IsTraceparent(text) ? std::string()
                                   : "got " + text +
                                         ", want 00-TRACE-PARENT-FLAGS of 32, 16 "
                                         "and 2 lower-case hexadecimal digits";
      })
      .TypeName("TRACEPARENT");
  return RunWith(std::move(flags), RunMultiply);
}

}  // namespace gemmd
