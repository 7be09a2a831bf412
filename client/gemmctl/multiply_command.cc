// SPDX-License-Identifier: Apache-2.0
//
// gemmctl multiply.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/connection_costs.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/operand_input.h"
#include "client/gemmctl/product_flags.h"
#include "client/gemmctl/product_input.h"
#include "client/gemmctl/server_check.h"
#include "client/gemmctl/tensor_session.h"
#include "client/gemmctl/tensor_table.h"
#include "client/gemmctl/timing_report.h"
#include "client/matrix/npy.h"
#include "client/matrix/verify.h"
#include "client/terminal/option.h"
#include "client/terminal/progress.h"
#include "client/terminal/text_table.h"
#include "client/terminal/type_names.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {
namespace {

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
    "  gemmctl multiply @d V.npy --into @e                   D overwrites a tensor of the "
    "server\n\n";

struct MultiplyFlags {
  ProductFlags product;
  std::string output_path;  // Empty: D is not kept. "-": standard output.
  int64_t repeat = 1;
  int64_t warmup = 0;
  bool verify = false;
  std::string server_verify;  // Empty: as the server does by itself.
  std::string traceparent;    // Empty: none is sent.
  std::string into;           // A tensor that D overwrites; empty: none.
  std::string keep;           // The name of a new tensor for D; empty: none.

  bool IsKept() const { return !into.empty() || !keep.empty(); }
};

// A client for the product: one with a session where tensors are named or made.
absl::StatusOr<Client> ConnectFor(const GlobalFlags& global, const MultiplyFlags& flags,
                                  const Console& console) {
  if (!flags.IsKept() && !NamesTensors(flags.product)) return Connect(global);
  const bool may_open = flags.into.empty() && !NamesTensors(flags.product);
  return ConnectSession(global, may_open, console);
}

// What cannot be had together.
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
        "--verify: got tensors of the server, want A, B and D here: `gemmctl get` brings them");
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
  const auto info = client.Describe(TensorNamed(flags.into));
  if (!info.ok()) return info.status();
  request.mutable_d()->set_order(v1::ORDER_ROW_MAJOR);
  *request.mutable_d()->mutable_tensor() = ViewOf(*info).part();
  return absl::OkStatus();
}

// Calls as often as the flags ask, and keeps the time of every call and the last answer.
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
  return absl::StrCat("[", batches == 1 ? "" : absl::StrCat(element.batch, ", "), element.row, ", ",
                      element.column, "]");
}

std::string VerificationText(const Verification& result, int64_t batches) {
  std::string text = absl::StrFormat(
      "\nverified  %s of %s elements, largest error %.3g at %s, where %.3g is allowed",
      FormatCount(result.checked), FormatCount(result.total), result.worst.error,
      Place(result.worst, batches), result.worst.bound);
  if (result.undecidable > 0) {
    absl::StrAppend(&text, "; ", FormatCount(result.undecidable),
                    " not comparable: their sums overflow in one order and not in another");
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

// The server's own check, where there was one.
std::string CheckOf(const v1::MultiplyResponse& response) {
  if (!response.has_verification()) return "";
  return ServerCheckText(response.verification(), response.timing().total_ns());
}

// What the connection cost, where that is known.
void AddConnection(const std::optional<ConnectionCosts>& costs, nlohmann::ordered_json& json) {
  if (!costs.has_value()) return;
  json["connect_ns"] = costs->connect_ns;
  json["empty_call_ns"] = costs->empty_call_ns;
}

// The report of a product whose D stayed on the server.
ExitCode ReportKept(const GlobalFlags& global, const v1::MultiplyRequest& request,
                    const v1::MultiplyResponse& response, const std::vector<CallTiming>& calls,
                    const std::optional<ConnectionCosts>& costs, const Console& console) {
  if (global.json) {
    nlohmann::ordered_json json = {{"response", MessageJson(response)},
                                   {"tensor", TensorJson(response.tensor())},
                                   {"calls", calls.size()},
                                   {"stages", TimingJson(calls)}};
    AddConnection(costs, json);
    console.Print(JsonLine(json));
    return ExitCode::kOk;
  }
  console.Print(Heading(request, response, costs));
  console.Print(TimingTable(calls, response.operations()));
  console.Print(CheckOf(response));
  console.Print(absl::StrCat("\n", TensorText(response.tensor())));
  return ExitCode::kOk;
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
  std::vector<CallTiming> calls;
  auto measured = Measure(*client, *request, flags, console, calls);
  if (!measured.ok()) {
    const ExitCode code = FailCall(console, measured.status());
    return absl::IsDataLoss(measured.status()) ? ExitCode::kVerification : code;
  }
  if (flags.IsKept()) return ReportKept(global, *request, *measured, calls, *costs, console);
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
  const int64_t batches = response.d().batch();
  const Console report = ReportBeside(flags.output_path, console);
  if (global.json) {
    nlohmann::ordered_json json = {{"response", MessageJson(response)},
                                   {"calls", calls.size()},
                                   {"stages", TimingJson(calls)}};
    AddConnection(*costs, json);
    if (verification.has_value()) json["verification"] = VerificationJson(*verification);
    report.Print(JsonLine(json));
  } else {
    report.Print(Heading(*request, response, *costs));
    report.Print(TimingTable(calls, response.operations()));
    report.Print(CheckOf(response));
    if (verification.has_value()) report.Print(VerificationText(*verification, batches));
  }
  const absl::Status status =
      verification.has_value() ? VerificationStatus(*verification, batches) : absl::OkStatus();
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

CommandRun AddMultiply(CLI::App& app) {
  auto flags = std::make_unique<MultiplyFlags>();
  SetFooter(app, absl::StrCat(TypeHelp(), "\n\n", kMultiplyHelp, kSessionHelp));
  AddProductFlags(app, flags->product);
  AddOption(app, "-o,--output", flags->output_path, "File for D, a .npy file; - is standard output")
      .Group("Output");
  AddOption(app, "--keep-result", flags->keep,
            "Leave D on the server, as a pinned tensor of this name; nothing of it comes back")
      .TypeName("NAME")
      .Group("Output");
  AddOption(app, "--into", flags->into,
            "Leave D on the server, in this tensor of exactly its type and shape; it may be C")
      .TypeName("@NAME")
      .Group("Output");
  AddOption(app, "--repeat", flags->repeat,
            "Number of calls; several are reported by min, p50 and p99 of every stage", 1,
            kMaxCalls)
      .ShowDefault()
      .TypeName("N")
      .Group("Output");
  AddOption(app, "--warmup", flags->warmup,
            "Number of calls ahead of the measured ones, which are not reported", 0, kMaxCalls)
      .ShowDefault()
      .TypeName("N")
      .Group("Output");
  AddFlag(app, "--verify", flags->verify,
          "Check D against an f64 product that is computed here: exactly for integers, else "
          "within a derived bound; of a large D, evenly chosen rows are checked (not the server's "
          "own check, which is --server-verify)")
      .Group("Output");
  AddServerCheck(app, flags->server_verify).Group("Output");
  AddOption(app, "--traceparent", flags->traceparent,
            "Trace that the calls belong to, in the form of W3C Trace Context; the daemon logs it")
      .Check([](const std::string& text) {
        return IsTraceparent(text) ? std::string()
                                   : "got " + text +
                                         ", want 00-TRACE-PARENT-FLAGS of 32, 16 "
                                         "and 2 lower-case hexadecimal digits";
      })
      .TypeName("TRACEPARENT")
      .Group("Output");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunMultiply(global, *flags, console);
  };
}

}  // namespace

constexpr Command kMultiplyCommand = {
    "multiply", "Multiply two matrices and print where the time went", AddMultiply};

}  // namespace gemmd
