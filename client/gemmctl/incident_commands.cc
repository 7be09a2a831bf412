// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/gemmctl/command.h"
#include "client/gemmctl/operand_input.h"
#include "client/gemmctl/product_report.h"
#include "client/sparse_operand.h"
#include "client/terminal/console.h"
#include "client/terminal/option.h"
#include "client/terminal/text.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/incidents.pb.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

constexpr char kIncidentsHelp[] =
    "Examples:\n"
    "  gemmctl incidents --address unix:/run/gemmd/gemmd.sock\n"
    "  gemmctl incidents --json | jq '.incidents[] | {id, device, kernel, chip_state}'\n\n"
    "Answers are checked if the daemon's --verify or the request says so. The server allows this\n"
    "over a unix socket only, for root, its own user and members of its --operators-group, or\n"
    "for a caller with the role `administer`.";

using Align = TextTable::Align;

std::string TimeText(const v1::Incident& incident) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%SZ", absl::FromUnixNanos(incident.time_unix_ns()),
                          absl::UTCTimeZone());
}

std::string ElementText(const v1::Incident& incident) {
  const std::string place = absl::StrCat(incident.row(), ",", incident.column());
  return incident.batch() == 0 ? place : absl::StrCat(incident.batch(), ":", place);
}

std::string IncidentTable(const v1::ListIncidentsResponse& incidents) {
  TextTable table({{"id", Align::kRight},
                   {"found"},
                   {"device"},
                   {"kernel"},
                   {"problem"},
                   {"element"},
                   {"got", Align::kRight},
                   {"want", Align::kRight},
                   {"wrong", Align::kRight}});
  for (const v1::Incident& incident : incidents.incidents()) {
    table.AddRow(
        {absl::StrCat(incident.id()), TimeText(incident), incident.device(), incident.kernel(),
         incident.problem(), ElementText(incident), absl::StrFormat("0x%x", incident.got_bits()),
         absl::StrFormat("0x%x", incident.want_bits()), absl::StrCat(incident.wrong_elements())});
  }
  return absl::StrCat(table.Print(), incidents.found(), " wrong answers since the start\n");
}

ExitCode RunIncidents(const GlobalFlags& global, const Console& console) {
  return PrintAnswer(
      global, console, [](Client& client) { return client.ListIncidents(); }, IncidentTable);
}

}  // namespace

CommandRun AddIncidents(CLI::App& app) {
  SetFooter(app, kIncidentsHelp);
  return RunIncidents;
}

namespace {

// Paths of .npy files; empty: not given.
struct OperandFiles {
  std::string a;
  std::string b;
  std::string c;
  std::string bias;

  bool empty() const { return a.empty() && b.empty() && c.empty() && bias.empty(); }
};

struct Wanted {
  absl::string_view flag;   // "--a"
  const std::string& path;  // Empty: not given.
  const std::string& hash;  // In hexadecimal; empty: the product has no such operand.
  v1::ElementType type;
  bool is_sparse = false;
};

absl::StatusOr<std::string> Compressed(const Wanted& wanted, const NpyArray& array, int64_t batch) {
  ASSIGN_OR_RETURN(const auto view,
                   ViewArray(std::string(wanted.flag), array, /*transpose=*/false, batch));
  ASSIGN_OR_RETURN(auto made,
                   CompressOperand(std::string(wanted.flag), view, batch, Pruning::kNone));
  return std::string(made.data.begin(), made.data.end());
}

// The operand's bytes.
absl::StatusOr<std::string> Read(const Wanted& wanted, int64_t batch, const Console& console) {
  if (wanted.hash.empty() != wanted.path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        wanted.flag, wanted.path.empty() ? ": got none, want the .npy file of this operand too"
                                         : ": got a file, want none: the product reads no such "
                                           "operand"));
  }
  if (wanted.path.empty()) return std::string();
  ASSIGN_OR_RETURN(auto array, ReadArray(wanted.path, wanted.type, console));
  std::string bytes(array.data.begin(), array.data.end());
  if (wanted.is_sparse) {
    ASSIGN_OR_RETURN(bytes, Compressed(wanted, array, batch));
  }
  const std::string hash =
      absl::BytesToHexString(Sha256Of(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  if (hash == wanted.hash) return bytes;
  return absl::InvalidArgumentError(absl::StrCat(wanted.flag, ": got ", bytes.size(),
                                                 " bytes with SHA-256 ", hash, ", want ",
                                                 wanted.hash, ", those of the incident"));
}

// Sets the operands of the request, which has everything else, to the bytes of the files. They are
// compared with the incident's operands by hash alone, so a file may have either order if its bytes
// are those that the server had. A dense A is compressed if the incident's A was.
//
// Errors: InvalidArgument, beginning with the flag, if a file is missing, not needed, or has other
// bytes; any error of ReadNpyFile.
absl::Status FillOperands(const OperandFiles& files, const v1::Incident& incident,
                          const Console& console, v1::MultiplyRequest& request) {
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  const bool is_sparse = request.a().sparsity() != v1::SPARSITY_NONE;
  ASSIGN_OR_RETURN(
      auto a,
      Read({"--a", files.a, incident.a_sha256(), request.a().type(), is_sparse}, batch, console));
  ASSIGN_OR_RETURN(auto b,
                   Read({"--b", files.b, incident.b_sha256(), request.b().type()}, batch, console));
  ASSIGN_OR_RETURN(auto c,
                   Read({"--c", files.c, incident.c_sha256(), request.c().type()}, batch, console));
  ASSIGN_OR_RETURN(
      auto bias,
      Read({"--bias", files.bias, incident.bias_sha256(), request.bias().type()}, batch, console));
  request.mutable_a()->set_data(std::move(a));
  request.mutable_b()->set_data(std::move(b));
  if (!c.empty()) request.mutable_c()->set_data(std::move(c));
  if (!bias.empty()) request.mutable_bias()->set_data(std::move(bias));
  return absl::OkStatus();
}

constexpr char kReplayHelp[] =
    "Examples:\n"
    "  gemmctl replay 1 --address unix:/run/gemmd/gemmd.sock\n"
    "  gemmctl replay 1 --device cuda:1\n"
    "  gemmctl replay 1 --a A.npy --b B.npy                  operands that the server no longer "
    "has\n\n"
    "The product runs on the device where it was wrong, unless an option says otherwise, and the\n"
    "answer is checked in the same way. The server no longer uses a kernel on a device where it\n"
    "was wrong: name another kernel, or replay on another device. The server keeps the operands "
    "of\n"
    "the latest incidents, 64 MiB in all; for older ones, give files with the operands, whose\n"
    "bytes must have the SHA-256 that `gemmctl incidents --json` lists.";

// Whether all of D, not just a part, can be recomputed within a few seconds.
bool IsSmall(const v1::MultiplyRequest& request) {
  constexpr double kMaxProducts = 1e9;
  const double matrices = request.has_batch() ? static_cast<double>(request.batch()) : 1;
  return matrices * static_cast<double>(request.m()) * static_cast<double>(request.n()) *
             static_cast<double>(request.k()) <=
         kMaxProducts;
}

struct ReplayFlags {
  int64_t id = 0;
  std::string kernel;
  std::string device;
  OperandFiles files;
};

ExitCode RunReplay(const GlobalFlags& global, const ReplayFlags& flags, const Console& console) {
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  auto found = client->GetIncidentProduct(flags.id, {}, !flags.files.empty());
  if (!found.ok()) {
    const bool is_not_kept = absl::IsFailedPrecondition(found.status()) && flags.files.empty();
    return FailCall(console, absl::Status(found.status().code(),
                                          absl::StrCat(found.status().message(),
                                                       is_not_kept ? "; --a, --b, --c and --bias "
                                                                     "take them from files"
                                                                   : "")));
  }
  v1::MultiplyRequest& request = *found->mutable_request();
  if (!flags.files.empty()) {
    const absl::Status filled = FillOperands(flags.files, found->incident(), console, request);
    if (!filled.ok()) return FailLocally(console, filled);
  }
  // The incident's kernel may not exist on another device.
  if (!flags.device.empty()) {
    request.set_device(flags.device);
    request.clear_kernel();
  }
  if (!flags.kernel.empty()) request.set_kernel(flags.kernel);
  v1::Verify& verify = *request.mutable_verify();
  verify.set_mode(found->incident().mode());
  if (verify.mode() == v1::VERIFY_MODE_SAMPLED && IsSmall(request)) verify.set_rate(1);
  const auto answer = client->Multiply(request);
  if (!answer.ok()) {
    const ExitCode code = FailCall(console, answer.status());
    return absl::IsDataLoss(answer.status()) ? ExitCode::kVerification : code;
  }
  const v1::Verification& check = answer->verification();
  if (global.json) {
    console.Print(JsonLine({{"kernel", answer->kernel()},
                            {"device", answer->device()},
                            {"verification", MessageJson(check)}}));
  } else {
    console.Print(absl::StrCat(
        check.outcome() == v1::VERIFY_OUTCOME_PASSED ? "right this time: " : "not verified: ",
        answer->kernel(), " on ", answer->device(), ", ", check.elements_checked(),
        " elements checked", check.reason().empty() ? "" : absl::StrCat(" (", check.reason(), ")"),
        "\n", ServerCheckText(check, answer->timing().total_ns())));
  }
  return ExitCode::kOk;
}

}  // namespace

CommandRun AddReplay(CLI::App& app) {
  auto flags = std::make_unique<ReplayFlags>();
  SetFooter(app, kReplayHelp);
  AddOption(app, "ID", flags->id, "Number of the incident, as `gemmctl incidents` lists it", 1)
      .TypeName("N")
      .Require();
  AddOption(app, "--kernel", flags->kernel, "Name of another kernel to compute the product with");
  AddOption(app, "--device", flags->device,
            "Name of another device to compute the product on, with its best kernel unless "
            "--kernel is given");
  SetGroup(app, "Operands from files");
  const auto add_file = [&](const std::string& name, std::string& path, const std::string& help) {
    AddOption(app, name, path, help).TypeName("FILE");
  };
  add_file("--a", flags->files.a,
           "A of the product, a .npy file with the same bytes; dense if it was sent in 2:4 form");
  add_file("--b", flags->files.b, "B of the product");
  add_file("--c", flags->files.c, "C of the product, if it has one");
  add_file("--bias", flags->files.bias, "Bias of the product, if it has one");
  return RunWith(std::move(flags), RunReplay);
}

}  // namespace gemmd
