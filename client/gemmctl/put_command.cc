// SPDX-License-Identifier: Apache-2.0
//
// gemmctl put.
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/tensor_session.h"
#include "client/gemmctl/tensor_table.h"
#include "client/matrix/npy_map.h"
#include "client/terminal/option.h"
#include "client/terminal/progress.h"
#include "gemmd/v1/resident.pb.h"

namespace gemmd {
namespace {

constexpr char kPutHelp[] =
    "Examples:\n"
    "  gemmctl put W.npy --name weights/layer3        It stays until `gemmctl rm weights/layer3`\n"
    "  gemmctl multiply A.npy @weights/layer3 -o D.npy\n"
    "  gemmctl put W.npy --name w --lease 5m --known  Nothing is sent where the server has it\n\n";

struct PutFlags {
  std::string path;
  std::string name;
  std::string type;
  std::string lease;
  std::string device;
  bool pin = false;
  bool known = false;
  int connections = 0;
};

absl::StatusOr<MatrixView> ViewFile(const MappedNpy& npy, PutOptions& options) {
  const std::vector<int64_t>& shape = npy.array().shape;
  if (shape.size() != 2 && shape.size() != 3) {
    return absl::InvalidArgumentError(absl::StrCat("FILE: got an array of ", shape.size(),
                                                   " dimensions, want 2, or 3 for a batch"));
  }
  if (shape.size() == 3) options.matrices = shape[0];
  MatrixView view =
      PackedView(npy.array().type, npy.data(), shape[shape.size() - 2], shape[shape.size() - 1]);
  view.order = npy.array().order;
  return view;
}

absl::StatusOr<PutOptions> OptionsFor(const PutFlags& flags) {
  PutOptions options;
  options.name = flags.name;
  options.device = flags.device;
  options.connections = flags.connections;
  options.pinned = flags.pin || flags.lease.empty();
  if (flags.lease.empty()) return options;
  const auto lease = ParseTimeout(flags.lease, "--lease");
  if (!lease.ok()) return lease.status();
  options.lease = *lease;
  return options;
}

ExitCode RunPut(const GlobalFlags& global, const PutFlags& flags, const Console& console) {
  auto options = OptionsFor(flags);
  if (!options.ok()) return FailLocally(console, options.status());
  const auto npy = MappedNpy::Open(
      flags.path, ParseElementType(flags.type).value_or(v1::ELEMENT_TYPE_UNSPECIFIED));
  if (!npy.ok()) return FailLocally(console, npy.status());
  const auto view = ViewFile(*npy, *options);
  if (!view.ok()) return FailLocally(console, view.status());
  auto client = ConnectSession(global, true, console);
  if (!client.ok()) return FailSession(console, client.status());
  if (flags.known) options->sha256 = Sha256Of(view->data);
  absl::StatusOr<ResidentTensor> tensor = absl::UnknownError("");
  {
    ProgressLine line(console.err, absl::StrCat("put ", flags.path));
    options->progress = [&](const TransferProgress& progress) { line.Show(progress); };
    tensor = client->Put(*view, *options);
  }
  if (!tensor.ok()) return FailCall(console, tensor.status());
  const v1::TensorInfo info = tensor->info();
  std::move(*tensor).Release();
  console.Print(global.json ? JsonLine(TensorJson(info)) : TensorText(info));
  return ExitCode::kOk;
}

CommandRun AddPut(CLI::App& app) {
  auto flags = std::make_unique<PutFlags>();
  SetFooter(app, absl::StrCat(kPutHelp, kSessionHelp));
  AddOption(app, "FILE", flags->path, "A .npy file: a matrix, or a batch of them").Require();
  AddOption(app, "--name", flags->name,
            "Name of the tensor, whose place it takes if there is one (default: none, its handle "
            "is printed)")
      .TypeName("NAME");
  AddTypeOption(app, "--type", flags->type, "Type of the elements, where NumPy cannot name it");
  AddFlag(app, "--pin", flags->pin,
          "Keep it until it is removed, also beyond its session: the default without --lease");
  AddOption(app, "--lease", flags->lease,
            "Do not pin it; delete it so long after its last use, or with its session, which ends "
            "30 s after its last command: seconds, or 500ms, 2m")
      .TypeName("TIME");
  AddOption(app, "--device", flags->device, "Device that will need it; a hint").TypeName("NAME");
  AddFlag(app, "--known", flags->known,
          "Hash it first: nothing is sent where the session has these bytes, and what is sent is "
          "checked");
  AddOption(app, "--connections", flags->connections,
            "Connections that carry the bytes, 1 to 16 (default: 1 up to 8 MiB, 4 for more)", 1, 16)
      .TypeName("N");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunPut(global, *flags, console);
  };
}

}  // namespace

constexpr Command kPutCommand = {"put", "Keep a matrix on the server, where products name it @NAME",
                                 AddPut};

}  // namespace gemmd
