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
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kHelp[] =
    "Examples:\n"
    "  gemmctl replay 1 --address unix:/run/gemmd/gemmd.sock\n"
    "  gemmctl replay 1 --device cuda:1\n\n"
    "The product runs where it was wrong, unless an option says otherwise, and the answer is\n"
    "checked as then. The server uses a kernel no more on a device where it was wrong: name\n"
    "another one, or replay after a restart. The operands of products up to 64 MiB are kept.";

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
};

ExitCode RunReplay(const GlobalFlags& global, const ReplayFlags& flags, const Console& console) {
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  auto found = client->GetIncidentProduct(flags.id);
  if (!found.ok()) return FailCall(console, found.status());
  v1::MultiplyRequest& request = *found->mutable_request();
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
        "\n"));
  }
  return ExitCode::kOk;
}

CommandRun AddReplay(CLI::App& app) {
  auto flags = std::make_unique<ReplayFlags>();
  SetFooter(app, kHelp);
  AddOption(app, "ID", flags->id, "Number of the incident, as `gemmctl incidents` lists it")
      .TypeName("N")
      .Require();
  AddOption(app, "--kernel", flags->kernel,
            "Kernel that computes the product instead, by its name");
  AddOption(app, "--device", flags->device,
            "Device that computes the product instead, by its name, with the best of the kernels "
            "there unless --kernel names one");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunReplay(global, *flags, console);
  };
}

}  // namespace

constexpr Command kReplayCommand = {
    "replay", "Compute the product of an incident again, with the check that found it", AddReplay};

}  // namespace gemmd
