// SPDX-License-Identifier: Apache-2.0
//
// gemmctl replay.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/replay_operands.h"
#include "client/gemmctl/server_check.h"
#include "client/terminal/option.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {
namespace {

constexpr char kReplayHelp[] =
    "Examples:\n"
    "  gemmctl replay 1 --address unix:/run/gemmd/gemmd.sock\n"
    "  gemmctl replay 1 --device cuda:1\n"
    "  gemmctl replay 1 --a A.npy --b B.npy                  operands that the server has no "
    "longer\n\n"
    "The product runs where it was wrong, unless an option says otherwise, and the answer is\n"
    "checked as then. The server uses a kernel no more on a device where it was wrong: name\n"
    "another one, or replay on another device. The server keeps the operands of the latest\n"
    "incidents, 64 MiB in all, and of the others all else: files with their operands must have\n"
    "the bytes whose SHA-256 `gemmctl incidents --json` lists.";

// Whether all of D can be computed again, and not a part alone: a few seconds at most.
bool IsSmall(const v1::MultiplyRequest& request) {
  constexpr double kMostProducts = 1e9;
  const double matrices = request.has_batch() ? static_cast<double>(request.batch()) : 1;
  return matrices * static_cast<double>(request.m()) * static_cast<double>(request.n()) *
             static_cast<double>(request.k()) <=
         kMostProducts;
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
  // Another device has kernels of its own.
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

CommandRun AddReplay(CLI::App& app) {
  auto flags = std::make_unique<ReplayFlags>();
  SetFooter(app, kReplayHelp);
  AddOption(app, "ID", flags->id, "Number of the incident, as `gemmctl incidents` lists it", 1)
      .TypeName("N")
      .Require();
  AddOption(app, "--kernel", flags->kernel,
            "Kernel that computes the product instead, by its name");
  AddOption(app, "--device", flags->device,
            "Device that computes the product instead, by its name, with the best of the kernels "
            "there unless --kernel names one");
  const auto add_file = [&](const std::string& name, std::string& path, const std::string& help) {
    AddOption(app, name, path, help).TypeName("FILE").Group("Operands from files");
  };
  add_file(
      "--a", flags->files.a,
      "A of the product, a .npy file with the same bytes; dense where it was sent in 2:4 form");
  add_file("--b", flags->files.b, "B of the product");
  add_file("--c", flags->files.c, "C of the product, where it has one");
  add_file("--bias", flags->files.bias, "Bias of the product, where it has one");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunReplay(global, *flags, console);
  };
}

}  // namespace

constexpr Command kReplayCommand = {
    "replay", "Compute the product of an incident again, with the check that found it", AddReplay};

}  // namespace gemmd
