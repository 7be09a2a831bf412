// SPDX-License-Identifier: Apache-2.0
//
// gemmctl get.
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/operand_input.h"
#include "client/gemmctl/tensor_session.h"
#include "client/gemmctl/tensor_table.h"
#include "client/matrix/npy_map.h"
#include "client/operand_size.h"
#include "client/output_file.h"
#include "client/sparse_operand.h"
#include "client/terminal/option.h"
#include "client/terminal/progress.h"
#include "gemmd/v1/resident.pb.h"

namespace gemmd {
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

// The array that a tensor's bytes stand for, without them.
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

// Whether a file holds the very bytes of the tensor.
bool IsPlain(const v1::TensorSpec& spec) {
  const bool has_gaps =
      spec.leading_dimension() != 0 && spec.leading_dimension() != LineLength(spec);
  const bool is_batch_of_columns = spec.order() == v1::ORDER_COLUMN_MAJOR && spec.matrices() > 1;
  return ElementBits(spec.type()) >= 8 && spec.sparsity() == v1::SPARSITY_NONE && !has_gaps &&
         !is_batch_of_columns;
}

// Writes the bytes to the file as they arrive.
absl::Status GetToFile(Client& client, const v1::TensorInfo& info, const std::string& path,
                       const GetOptions& options) {
  OutputFile file;
  if (const absl::Status status = file.Open(path, std::nullopt); !status.ok()) {
    return absl::InternalError(status.message());  // It is no answer of the server.
  }
  const std::string beginning = NpyBeginning(ArrayOf(info.spec()));
  const TensorSink sink = [&](int64_t offset, std::span<const std::byte> bytes) {
    return file.WriteAt(offset + static_cast<int64_t>(beginning.size()),
                        {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  absl::Status status = file.WriteAt(0, beginning);
  if (status.ok()) {
    status = client.Get(TensorOfHandle(info.handle()), sink, options).status();
  }
  return status.ok() ? file.Commit() : status;
}

// Takes the padding after each line away.
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
  std::string bytes(static_cast<size_t>(info.bytes()), '\0');
  const auto got =
      client.Get(TensorOfHandle(info.handle()), std::as_writable_bytes(std::span(bytes)), options);
  if (!got.ok()) return got.status();
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
  const bool is_stream = flags.path == "-" || OutputFile::IsStream(flags.path);
  if (!is_stream && IsPlain(info.spec())) {
    return GetToFile(client, info, flags.path, options);
  }
  const auto array = GetArray(client, info, options);
  if (!array.ok()) return array.status();
  return WriteArray(*array, flags.path, console);
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
  const Console report = ReportBeside(flags.path, console);
  report.Print(global.json ? JsonLine(TensorJson(*info)) : TensorText(*info));
  return ExitCode::kOk;
}

CommandRun AddGet(CLI::App& app) {
  auto flags = std::make_unique<GetFlags>();
  SetFooter(app, absl::StrCat(kGetHelp, kSessionHelp));
  AddOption(app, "NAME", flags->name, "Name or handle of the tensor").Require();
  AddOption(app, "FILE", flags->path,
            "The .npy file to write, dense also where the tensor is 2:4; - is standard output")
      .Require();
  AddOption(app, "--connections", flags->connections,
            "Connections that carry the bytes, 1 to 16 (default: 1 up to 8 MiB, 4 for more)", 1, 16)
      .TypeName("N");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunGet(global, *flags, console);
  };
}

}  // namespace

constexpr Command kGetCommand = {"get", "Write a tensor of the server to a .npy file", AddGet};

}  // namespace gemmd
