// SPDX-License-Identifier: Apache-2.0
//
// gemmctl compress.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/tensor_session.h"
#include "client/gemmctl/tensor_table.h"
#include "client/terminal/option.h"
#include "gemmd/v1/resident.pb.h"

namespace gemmd {
namespace {

constexpr char kCompressHelp[] =
    "Examples:\n"
    "  gemmctl compress a --name a24                  Keeps the largest 2 of every 4 of a row\n"
    "  gemmctl compress a --name a24 --mask kept      Those that a tensor of type b1 marks\n"
    "  gemmctl multiply @a24 B.npy\n\n";

struct CompressFlags {
  std::string tensor;
  std::string name;
  std::string mask;
  std::string lease;
};

ExitCode RunCompress(const GlobalFlags& global, const CompressFlags& flags,
                     const Console& console) {
  CompressOptions options;
  options.keep.name = flags.name;
  options.keep.pinned = flags.lease.empty();
  if (!flags.mask.empty()) options.mask = TensorNamed(flags.mask);
  if (!flags.lease.empty()) {
    const auto lease = ParseTimeout(flags.lease, "--lease");
    if (!lease.ok()) return FailLocally(console, lease.status());
    options.keep.lease = *lease;
  }
  auto client = ConnectSession(global, false, console);
  if (!client.ok()) return FailSession(console, client.status());
  auto tensor = client->Compress(TensorNamed(flags.tensor), options);
  if (!tensor.ok()) return FailCall(console, tensor.status());
  const v1::TensorInfo info = tensor->info();
  std::move(*tensor).Release();
  console.Print(global.json ? JsonLine(TensorJson(info)) : TensorText(info));
  return ExitCode::kOk;
}

CommandRun AddCompress(CLI::App& app) {
  auto flags = std::make_unique<CompressFlags>();
  SetFooter(app, absl::StrCat(kCompressHelp, kSessionHelp));
  AddOption(app, "TENSOR", flags->tensor, "Name or handle of a dense tensor, row major").Require();
  AddOption(app, "--name", flags->name, "Name of the new tensor (default: none)").TypeName("NAME");
  AddOption(app, "--mask", flags->mask,
            "Name of a tensor of type b1 that marks what is kept (default: the largest)")
      .TypeName("NAME");
  AddOption(app, "--lease", flags->lease,
            "Do not pin it; delete it so long after its last use, or with its session")
      .TypeName("TIME");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunCompress(global, *flags, console);
  };
}

}  // namespace

constexpr Command kCompressCommand = {"compress", "Make a 2:4 tensor of a dense one on the server",
                                      AddCompress};

}  // namespace gemmd
