// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/command.h"
#include "client/gemmctl/operand_input.h"
#include "client/gemmctl/tensor_session.h"
#include "client/matrix/npy.h"
#include "client/operand_size.h"
#include "client/output_file.h"
#include "client/sparse_operand.h"
#include "client/terminal/console.h"
#include "client/terminal/option.h"
#include "client/terminal/text.h"
#include "gemmd/v1/admin.pb.h"
#include "gemmd/v1/resident.pb.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

constexpr char kPutHelp[] =
    "Examples:\n"
    "  gemmctl put W.npy --name weights/layer3        It stays until `gemmctl rm weights/layer3`\n"
    "  gemmctl multiply A.npy @weights/layer3 -o D.npy\n"
    "  gemmctl put W.npy --name w --lease 5m --known  Nothing is sent if the server has it\n\n";

ExitCode PrintTensor(const GlobalFlags& global, const v1::TensorInfo& tensor,
                     const Console& console) {
  console.Print(global.json ? JsonLine(TensorJson(tensor)) : TensorText(tensor));
  return ExitCode::kOk;
}

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

absl::StatusOr<PutOptions> OptionsFor(const PutFlags& flags) {
  PutOptions options;
  options.name = flags.name;
  options.device = flags.device;
  options.connections = flags.connections;
  options.pinned = flags.pin || flags.lease.empty();
  if (flags.lease.empty()) return options;
  ASSIGN_OR_RETURN(options.lease, ParseTimeout(flags.lease, "--lease"));
  return options;
}

ExitCode RunPut(const GlobalFlags& global, const PutFlags& flags, const Console& console) {
  auto options = OptionsFor(flags);
  if (!options.ok()) return FailLocally(console, options.status());
  const auto file = FactsOf(flags.path, flags.type);
  const auto npy = MappedNpy::Open(flags.path, TypeOf(flags.type));
  if (!npy.ok()) return FailLocally(console, npy.status());
  const auto view = ViewFile(*npy, *options);
  if (!view.ok()) return FailLocally(console, view.status());
  auto client = ConnectSession(global, true, console, flags.name);
  if (!client.ok()) return FailSession(console, client.status());
  const bool is_remembered = file.has_value() && options->pinned && !flags.name.empty();
  const std::string sha256 = flags.known || is_remembered ? Sha256Of(view->data) : "";
  if (flags.known) options->sha256 = sha256;
  absl::StatusOr<ResidentTensor> tensor = absl::UnknownError("");
  {
    ProgressLine line(console.err, absl::StrCat("put ", flags.path));
    options->progress = [&](const TransferProgress& progress) { line.Show(progress); };
    tensor = client->Put(*view, *options);
  }
  if (!tensor.ok()) return FailCall(console, tensor.status());
  const v1::TensorInfo info = tensor->info();
  std::move(*tensor).Release();
  options->sha256 = sha256;
  if (is_remembered) {
    RememberPut(global, *client, *file, info, *options, console);
  } else {
    ForgetPut(global, flags.name, console);
  }
  return PrintTensor(global, info, console);
}

}  // namespace

CommandRun AddPut(CLI::App& app) {
  auto flags = std::make_unique<PutFlags>();
  SetFooter(app, absl::StrCat(kPutHelp, kSessionHelp));
  AddOption(app, "FILE", flags->path, "A .npy file: a matrix, or a batch of them").Require();
  AddOption(app, "--name", flags->name,
            "Name of the tensor; replaces a tensor of that name (default: none; prints the handle)")
      .TypeName("NAME");
  AddTypeOption(app, "--type", flags->type, "Type of the elements, if NumPy cannot name it");
  AddFlag(app, "--pin", flags->pin,
          "Keep it until it is removed, even after its session ends: the default without --lease");
  AddOption(app, "--lease", flags->lease,
            "Do not pin it; delete it this long after its last use, or with its session, which "
            "ends 30 s after its last command: seconds, or 500ms, 2m")
      .TypeName("TIME");
  AddOption(app, "--device", flags->device, "Device that will need it; a hint").TypeName("NAME");
  AddFlag(
      app, "--known", flags->known,
      "Hash it first: nothing is sent if the session has these bytes, and sent bytes are checked");
  AddOption(app, "--connections", flags->connections,
            "Connections that carry the bytes, 1 to 16 (default: 1 up to 8 MiB, 4 for more)", 1, 16)
      .TypeName("N");
  return RunWith(std::move(flags), RunPut);
}

namespace {

constexpr char kGetHelp[] =
    "Examples:\n"
    "  gemmctl get weights/layer3 W.npy\n"
    "  gemmctl get weights/layer3 - | python3 -c 'import numpy, sys; "
    "print(numpy.load(sys.stdin.buffer))'\n\n";

struct GetFlags {
  std::string name;
  std::string path;
  int connections = 0;
};

// The array that a tensor represents, without its bytes.
NpyArray ArrayOf(const v1::TensorSpec& spec) {
  NpyArray array;
  array.type = spec.type();
  array.order = spec.order();
  if (spec.has_matrices() && spec.matrices() != 1) array.shape.push_back(spec.matrices());
  array.shape.insert(array.shape.end(), {spec.rows(), spec.columns()});
  return array;
}

int64_t LineLength(const v1::TensorSpec& spec) {
  return spec.order() == v1::ORDER_COLUMN_MAJOR ? spec.rows() : spec.columns();
}

// Whether a file holds the tensor's bytes unchanged.
bool IsPlain(const v1::TensorSpec& spec) {
  const bool has_gaps =
      spec.leading_dimension() != 0 && spec.leading_dimension() != LineLength(spec);
  const bool is_batch_of_columns = spec.order() == v1::ORDER_COLUMN_MAJOR && spec.matrices() > 1;
  return ElementBits(spec.type()) >= 8 && spec.sparsity() == v1::SPARSITY_NONE && !has_gaps &&
         !is_batch_of_columns;
}

// Bytes of the tensor's matrices, without the factors of blocks that follow them.
absl::StatusOr<int64_t> BytesOfMatrices(const v1::TensorSpec& spec) {
  ASSIGN_OR_RETURN(const OperandBytesRange size, SizeOperand("tensor", ShapeOf(spec)));
  return size.full;
}

// Writes the bytes to the file as they arrive.
absl::Status GetToFile(Client& client, const v1::TensorInfo& info, const std::string& path,
                       const GetOptions& options) {
  OutputFile file;
  if (const absl::Status status = file.Open(path, std::nullopt); !status.ok()) {
    return absl::InternalError(status.message());  // Not a status from the server.
  }
  const std::string header = NpyHeaderText(ArrayOf(info.spec()));
  const TensorSink sink = [&](int64_t offset, std::span<const std::byte> bytes) {
    return file.WriteAt(offset + static_cast<int64_t>(header.size()),
                        {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  absl::Status status = file.WriteAt(0, header);
  if (status.ok()) {
    status = client.Get(TensorOfHandle(info.handle()), sink, options).status();
  }
  return status.ok() ? file.Commit() : status;
}

// Removes the padding after each line.
std::string WithoutGaps(const v1::TensorSpec& spec, const std::string& bytes) {
  const int64_t length = LineLength(spec);
  const size_t stride = static_cast<size_t>(
      *PackedLineBytes(spec.type(), std::max(spec.leading_dimension(), length)));
  const size_t line = static_cast<size_t>(*PackedLineBytes(spec.type(), length));
  if (stride == line) return bytes;
  std::string tight;
  for (size_t at = 0; at + line <= bytes.size(); at += stride) tight.append(bytes, at, line);
  return tight;
}

absl::StatusOr<NpyArray> GetArray(Client& client, const v1::TensorInfo& info,
                                  const GetOptions& options) {
  std::string bytes(static_cast<size_t>(options.bytes.value_or(info.bytes())), '\0');
  ASSIGN_OR_RETURN(const auto got, client.Get(TensorOfHandle(info.handle()),
                                              std::as_writable_bytes(std::span(bytes)), options));
  NpyArray array = ArrayOf(info.spec());
  if (info.spec().sparsity() == v1::SPARSITY_NONE) {
    array.data = WithoutGaps(info.spec(), bytes);
    return array;
  }
  v1::Operand sparse;
  sparse.set_type(info.spec().type());
  sparse.set_data(std::move(bytes));
  array.data = ExpandOperand(sparse, info.spec().rows(), info.spec().columns());
  return array;
}

absl::Status GetTo(Client& client, const v1::TensorInfo& info, const GetFlags& flags,
                   const Console& console) {
  ProgressLine line(console.err, absl::StrCat("get ", flags.name));
  GetOptions options;
  options.connections = flags.connections;
  options.progress = [&](const TransferProgress& progress) { line.Show(progress); };
  if (info.spec().scale().has_blocks()) {
    ASSIGN_OR_RETURN(options.bytes, BytesOfMatrices(info.spec()));
  }
  const bool is_stream = flags.path == "-" || OutputFile::IsStream(flags.path);
  if (!is_stream && IsPlain(info.spec())) {
    return GetToFile(client, info, flags.path, options);
  }
  ASSIGN_OR_RETURN(const auto array, GetArray(client, info, options));
  return WriteArray(array, flags.path, console);
}

ExitCode RunGet(const GlobalFlags& global, const GetFlags& flags, const Console& console) {
  const absl::Status outputs = CheckOutputFiles(global, {{"FILE", flags.path}}, {});
  if (!outputs.ok()) return FailLocally(console, outputs);
  auto client = ConnectSession(global, false, console);
  if (!client.ok()) return FailSession(console, client.status());
  const auto info = client->Describe(TensorNamed(flags.name));
  if (!info.ok()) return FailCall(console, info.status());
  if (const absl::Status status = GetTo(*client, *info, flags, console); !status.ok()) {
    return absl::IsInternal(status) ? FailLocally(console, status) : FailCall(console, status);
  }
  return PrintTensor(global, *info, ReportBeside(flags.path, console));
}

}  // namespace

CommandRun AddGet(CLI::App& app) {
  auto flags = std::make_unique<GetFlags>();
  SetFooter(app, absl::StrCat(kGetHelp, kSessionHelp));
  AddOption(app, "NAME", flags->name, "Name or handle of the tensor").Require();
  AddOption(app, "FILE", flags->path,
            "The .npy file to write, dense even if the tensor is 2:4; - is standard output")
      .Require();
  AddOption(app, "--connections", flags->connections,
            "Connections that carry the bytes, 1 to 16 (default: 1 up to 8 MiB, 4 for more)", 1, 16)
      .TypeName("N");
  return RunWith(std::move(flags), RunGet);
}

namespace {

constexpr char kLsHelp[] =
    "Examples:\n"
    "  gemmctl ls\n"
    "  gemmctl ls 'weights/*' --json | jq -r '.tensors[].handle'\n\n";

ExitCode RunLs(const GlobalFlags& global, const std::string& pattern, const Console& console) {
  auto client = ConnectSession(global, false, console);
  if (!client.ok()) return FailSession(console, client.status());
  const auto tensors = client->ListTensors(pattern);
  if (!tensors.ok()) return FailCall(console, tensors.status());
  if (!global.json) {
    console.Print(TensorTable(*tensors));
    return ExitCode::kOk;
  }
  nlohmann::ordered_json json = MessageJson(*tensors);
  json["tensors"] = nlohmann::ordered_json::array();
  for (const v1::TensorInfo& tensor : tensors->tensors()) {
    json["tensors"].push_back(TensorJson(tensor));
  }
  console.Print(JsonLine(json));
  return ExitCode::kOk;
}

}  // namespace

CommandRun AddLs(CLI::App& app) {
  auto pattern = std::make_unique<std::string>();
  SetFooter(app, absl::StrCat(kLsHelp, kSessionHelp));
  AddOption(app, "PATTERN", *pattern,
            "Only names that match, with * and ? (default: all tensors, including unnamed ones)");
  return RunWith(std::move(pattern), RunLs);
}

namespace {

constexpr char kRmHelp[] =
    "Examples:\n"
    "  gemmctl rm weights/layer3\n"
    "  gemmctl rm 0f3a5c6e7b8d9a0b1c2d3e4f5a6b7c8d     A handle, as `gemmctl ls` shows it\n\n";

ExitCode RunRm(const GlobalFlags& global, const std::string& name, const Console& console) {
  // Before the session is connected, which fails if a remembered file has changed.
  const bool was_remembered = ForgetPut(global, name, console);
  auto client = ConnectSession(global, false, console);
  if (!client.ok()) return FailSession(console, client.status());
  const absl::Status status = client->Delete(TensorNamed(name));
  // The server may have lost it.
  const bool is_gone = absl::IsNotFound(status) && was_remembered;
  return status.ok() || is_gone ? ExitCode::kOk : FailCall(console, status);
}

}  // namespace

CommandRun AddRm(CLI::App& app) {
  auto name = std::make_unique<std::string>();
  SetFooter(app, absl::StrCat(kRmHelp, kSessionHelp));
  AddOption(app, "NAME", *name, "Name or handle of the tensor").Require();
  return RunWith(std::move(name), RunRm);
}

namespace {

constexpr char kKeepHelp[] =
    "Examples:\n"
    "  gemmctl keep weights/layer3 --pin\n"
    "  gemmctl keep weights/layer3 --unpin --lease 10m    It ends 10 min after its last use\n\n";

struct KeepFlags {
  std::string name;
  std::string lease;
  bool pin = false;
  bool unpin = false;
};

absl::StatusOr<KeepAliveOptions> OptionsFor(const KeepFlags& flags) {
  KeepAliveOptions options;
  if (flags.pin && flags.unpin) {
    return absl::InvalidArgumentError("--pin: got --unpin too, want one of them");
  }
  if (flags.pin || flags.unpin) options.pinned = flags.pin;
  if (flags.lease.empty()) return options;
  ASSIGN_OR_RETURN(options.lease, ParseTimeout(flags.lease, "--lease"));
  return options;
}

ExitCode RunKeep(const GlobalFlags& global, const KeepFlags& flags, const Console& console) {
  const auto options = OptionsFor(flags);
  if (!options.ok()) return FailLocally(console, options.status());
  auto client = ConnectSession(global, false, console);
  if (!client.ok()) return FailSession(console, client.status());
  const auto info = client->KeepAlive(TensorNamed(flags.name), *options);
  if (!info.ok()) return FailCall(console, info.status());
  if (flags.unpin) ForgetPut(global, flags.name, console);
  return PrintTensor(global, *info, console);
}

}  // namespace

CommandRun AddKeep(CLI::App& app) {
  auto flags = std::make_unique<KeepFlags>();
  SetFooter(app, absl::StrCat(kKeepHelp, kSessionHelp));
  AddOption(app, "NAME", flags->name, "Name or handle of the tensor").Require();
  AddFlag(app, "--pin", flags->pin, "Keep it until it is removed, also beyond its session");
  AddFlag(app, "--unpin", flags->unpin, "Let it be deleted with its lease or its session");
  AddOption(app, "--lease", flags->lease,
            "Time from its last use to its deletion: seconds, or 500ms, 2m (default: unchanged)")
      .TypeName("TIME");
  return RunWith(std::move(flags), RunKeep);
}

namespace {

constexpr char kCompressHelp[] =
    "Examples:\n"
    "  gemmctl compress a --name a24                  Keeps the largest 2 of every 4 of a row\n"
    "  gemmctl compress a --name a24 --mask kept      Keeps those that a b1 tensor marks\n"
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
  ForgetPut(global, flags.name, console);
  return PrintTensor(global, info, console);
}

}  // namespace

CommandRun AddCompress(CLI::App& app) {
  auto flags = std::make_unique<CompressFlags>();
  SetFooter(app, absl::StrCat(kCompressHelp, kSessionHelp));
  AddOption(app, "TENSOR", flags->tensor, "Name or handle of a dense tensor, row major").Require();
  AddOption(app, "--name", flags->name, "Name of the new tensor (default: none)").TypeName("NAME");
  AddOption(app, "--mask", flags->mask,
            "Name of a b1 tensor that marks the elements to keep (default: the largest)")
      .TypeName("NAME");
  AddOption(app, "--lease", flags->lease,
            "Do not pin it; delete it this long after its last use, or with its session")
      .TypeName("TIME");
  return RunWith(std::move(flags), RunCompress);
}

namespace {

constexpr char kSessionsHelp[] =
    "Examples:\n"
    "  gemmctl sessions --address unix:/run/gemmd/gemmd.sock\n"
    "  gemmctl sessions --json | jq '.sessions[] | select(.streams == 0) | .id'\n\n"
    "The sessions with the most bytes come first. A session is `connected` while its owner holds\n"
    "it open, and `in use` while only calls use it. A session that `lingers` loses its tensors\n"
    "after the time shown, except pinned ones and those of callers that the rules name, which "
    "stay\n"
    "for a day. `idle`: only such tensors are left.\n"
    "`gemmctl drop-session ID` ends a session. The server allows this over a unix socket only, "
    "for\n"
    "root, its own user and members of its --operators-group, or for a caller with the role\n"
    "`administer`.";

using Align = TextTable::Align;

std::string StateText(const v1::Session& session) {
  if (session.streams() > 0) return "connected";
  if (session.in_use()) return "in use";
  if (session.lingers_ns() == 0) return "idle";
  return absl::StrCat("lingers ", FormatNanoseconds(session.lingers_ns()));
}

std::string LargestText(const v1::Session& session) {
  std::vector<std::string> names;
  for (const v1::SessionTensor& tensor : session.largest_tensors()) {
    names.push_back(tensor.name().empty() ? "-" : tensor.name());
  }
  return absl::StrJoin(names, " ");
}

std::string SessionTable(const v1::ListSessionsResponse& sessions) {
  TextTable table({{"id"},
                   {"caller"},
                   {"age", Align::kRight},
                   {"state"},
                   {"tensors", Align::kRight},
                   {"pinned", Align::kRight},
                   {"uploads", Align::kRight},
                   {"bytes", Align::kRight},
                   {"largest"}});
  for (const v1::Session& session : sessions.sessions()) {
    table.AddRow({session.id(), session.caller(), FormatNanoseconds(session.age_ns()),
                  StateText(session), FormatCount(session.tensors()),
                  FormatCount(session.pinned_tensors()), FormatCount(session.uploads()),
                  FormatBytes(session.host_bytes()), LargestText(session)});
  }
  return absl::StrCat(
      table.Print(), "\n", sessions.sessions_size(),
      sessions.sessions_size() == 1 ? " session" : " sessions",
      sessions.left_out() == 0 ? "" : absl::StrCat(", ", sessions.left_out(), " more are left out"),
      "\n");
}

ExitCode RunSessions(const GlobalFlags& global, int64_t limit, const Console& console) {
  return PrintAnswer(
      global, console, [limit](Client& client) { return client.ListSessions(limit); },
      SessionTable);
}

}  // namespace

CommandRun AddSessions(CLI::App& app) {
  auto limit = std::make_unique<int64_t>(100);
  SetFooter(app, kSessionsHelp);
  AddOption(app, "--limit", *limit, "Max number of sessions to list", 1, 1000).ShowDefault();
  return RunWith(std::move(limit), RunSessions);
}

namespace {

constexpr char kDropSessionHelp[] =
    "Examples:\n"
    "  gemmctl drop-session 0123456789abcdef --address unix:/run/gemmd/gemmd.sock\n\n"
    "The server allows this over a unix socket only, for root, its own user and members of its\n"
    "--operators-group; if it has rules, for callers with the role `administer`. All tensors of\n"
    "the session are deleted, pinned ones too, and its uploads end with NOT_FOUND. Running\n"
    "products keep the tensors that they read and finish normally, except that a product whose\n"
    "result would be a new tensor of the session ends with NOT_FOUND. The owner may open another\n"
    "session at once.";

std::string DroppedText(const std::string& id, const v1::DropSessionResponse& dropped) {
  return absl::StrCat(id, " is dropped: ", FormatCount(dropped.tensors()),
                      dropped.tensors() == 1 ? " tensor, " : " tensors, ",
                      FormatBytes(dropped.freed_bytes()), " freed",
                      dropped.held_bytes() == 0
                          ? ""
                          : absl::StrCat(", ", FormatBytes(dropped.held_bytes()),
                                         " more when the calls that use them end"),
                      "\n");
}

ExitCode RunDropSession(const GlobalFlags& global, const std::string& id, const Console& console) {
  return PrintAnswer(
      global, console, [&](Client& client) { return client.DropSession(id); },
      [&](const v1::DropSessionResponse& dropped) { return DroppedText(id, dropped); });
}

}  // namespace

CommandRun AddDropSession(CLI::App& app) {
  return AddSubject(app, kDropSessionHelp, "id", "ID",
                    "The session's id, as `gemmctl sessions` lists it", RunDropSession);
}

}  // namespace gemmd
