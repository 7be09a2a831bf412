// SPDX-License-Identifier: Apache-2.0
//
// gemmctl convert.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/convert_file.h"
#include "client/gemmctl/convert_report.h"
#include "client/gemmctl/convert_tensor.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/operand_input.h"
#include "client/gemmctl/tensor_file.h"
#include "client/matrix/npy.h"
#include "client/matrix/npy_map.h"
#include "client/matrix/safetensors.h"
#include "client/terminal/option.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

constexpr char kConvertHelp[] =
    "Values round to the nearest that the type has, ties to even. Values beyond the largest finite "
    "one become infinite in f32, tf32, f16 and bf16; in every other type they become the largest "
    "or least value. NaN becomes 0 in an integer type, and the largest value in a float type "
    "without a NaN. Elements whose type stays keep their bits. The report counts what was changed; "
    "it goes to standard error where the matrix goes to standard output.\n\n"
    "Of a .safetensors file, all tensors of float types are converted and all others copied; "
    "--tensor takes one, also to a .npy file. --quantize divides by factors that bring the largest "
    "magnitude to the largest value of the type, and --pack24 makes the 2:4 form that products "
    "take for a sparse A, as bytes; of a .safetensors file, both are for its matrices. The factors "
    "go to --scale-output, or as NAME_scale into a .safetensors file.\n\n"
    "Examples:\n"
    "  gemmctl convert A.npy --type e4m3 --order column -o B.npy\n"
    "  gemmctl convert A.npy --input-type e2m1 --type f32 -o A32.npy\n"
    "  gemmctl convert W.npy --type e4m3 --quantize column -o W8.npy --scale-output s.npy\n"
    "  gemmctl convert model.safetensors --type bf16 -o model16.safetensors\n"
    "  gemmctl convert model.safetensors --tensor layer.0.weight -o W.npy\n"
    "  gemmctl convert W.npy --type f16 --pack24 --prune -o W24.safetensors\n"
    "  gemmctl convert stack.npy --shape 4096,512 --json -o tall.npy\n"
    "  gemmctl random 64,64 -o - | gemmctl convert - --type bf16 -o - > A.npy";

struct ConvertFlags {
  std::string input_path;      // "-": standard input.
  std::string input_type;      // Empty: what the file says.
  std::string type;            // Empty: the input's.
  std::string order;           // Empty: the input's.
  std::vector<int64_t> shape;  // Empty: the input's.
  std::string tensor;          // The one wanted of a .safetensors file; empty: all.
  std::string name;            // In a .safetensors file; empty: the input's.
  std::string quantize;        // Empty: no factors.
  bool pack24 = false;
  bool prune = false;
  std::string scale_path;
  std::string output_path;  // "-": standard output.
};

v1::ElementType TypeOf(const std::string& name) {
  return ParseElementType(name).value_or(v1::ELEMENT_TYPE_UNSPECIFIED);
}

TensorConversion ConversionOf(const ConvertFlags& flags) {
  TensorConversion conversion = {.type = TypeOf(flags.type), .shape = flags.shape};
  if (!flags.order.empty()) conversion.order = OrderOf(flags.order);
  if (flags.quantize == "matrix") conversion.scale = ScalePer::kMatrix;
  if (flags.quantize == "row") conversion.scale = ScalePer::kRow;
  if (flags.quantize == "column") conversion.scale = ScalePer::kColumn;
  if (flags.pack24) conversion.pack24 = flags.prune ? Prune::kSmallest : Prune::kRefuse;
  // A .safetensors file knows no order but this.
  if (IsTensorFile(flags.output_path)) conversion.order = v1::ORDER_ROW_MAJOR;
  return conversion;
}

// What cannot be had together.
absl::Status CheckFlags(const ConvertFlags& flags) {
  const bool is_tensor_file = IsTensorFile(flags.output_path);
  if (is_tensor_file && flags.order == "column") {
    return absl::InvalidArgumentError(
        "--order: got column for a .safetensors file, want row: it knows no other");
  }
  if (!is_tensor_file && !flags.name.empty()) {
    return absl::InvalidArgumentError("--name: got a name for a .npy file, want none: it has none");
  }
  if (!IsTensorFile(flags.input_path) && !flags.tensor.empty()) {
    return absl::InvalidArgumentError(
        "--tensor: got a name in a .npy file, want none: it has one array");
  }
  if (!flags.scale_path.empty() && (flags.quantize.empty() || is_tensor_file)) {
    return absl::InvalidArgumentError(
        "--scale-output: got a file for no factors, want --quantize and a .npy file as --output; a "
        ".safetensors file holds them itself");
  }
  if (!flags.quantize.empty() && !is_tensor_file && flags.scale_path.empty()) {
    return absl::InvalidArgumentError(
        "--scale-output: got none, want a file for the factors of --quantize, or a .safetensors "
        "file as --output, which holds them itself");
  }
  if (flags.scale_path == "-") {
    return absl::InvalidArgumentError("--scale-output: got -, want a path of a file");
  }
  return absl::OkStatus();
}

// One tensor and what its bytes lie in.
class ConvertInput {
 public:
  // Errors: those of reading; InvalidArgument for a file of several tensors of which none is named.
  static absl::StatusOr<ConvertInput> Open(const ConvertFlags& flags, const Console& console) {
    ConvertInput input;
    const v1::ElementType hint = TypeOf(flags.input_type);
    const absl::Status status = IsTensorFile(flags.input_path)
                                    ? input.OpenTensor(flags)
                                    : input.OpenArray(flags, hint, console);
    if (!status.ok()) return status;
    return input;
  }

  // Valid while this is there, unmoved.
  absl::StatusOr<SourceTensor> Get(v1::ElementType hint) {
    if (entry_ != nullptr) return TensorOf(*file_, *entry_, hint, own_);
    const absl::string_view data(reinterpret_cast<const char*>(bytes().data()), bytes().size());
    return SourceTensor{
        .type = array().type, .shape = array().shape, .order = array().order, .data = data};
  }

 private:
  absl::Status OpenArray(const ConvertFlags& flags, v1::ElementType hint, const Console& console) {
    if (flags.input_path != "-") {
      auto mapped = MappedNpy::Open(flags.input_path, hint);
      if (!mapped.ok()) return mapped.status();
      mapped_ = *std::move(mapped);
      return absl::OkStatus();
    }
    auto read = ReadArray(flags.input_path, hint, console);
    if (!read.ok()) return read.status();
    read_ = *std::move(read);
    return ExpectEndOfInput(console);
  }

  absl::Status OpenTensor(const ConvertFlags& flags) {
    auto file = MappedSafetensors::Open(flags.input_path);
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
    const std::vector<SafetensorsEntry>& tensors = file_->header().tensors;
    entry_ = flags.tensor.empty() && tensors.size() == 1 ? &tensors[0] : file_->Find(flags.tensor);
    if (entry_ != nullptr) return absl::OkStatus();
    std::vector<std::string> names;
    for (const SafetensorsEntry& tensor : tensors) {
      if (names.size() == kMostNames) break;
      names.push_back(tensor.name);
    }
    return absl::NotFoundError(
        absl::StrCat("--tensor: got ", flags.tensor.empty() ? "none" : flags.tensor,
                     ", want one of the ", tensors.size(), " tensors of ", flags.input_path,
                     ", such as ", absl::StrJoin(names, ", ")));
  }

  static constexpr size_t kMostNames = 5;

  const NpyArray& array() const { return mapped_.has_value() ? mapped_->array() : read_; }
  std::span<const std::byte> bytes() const {
    return mapped_.has_value() ? mapped_->data() : std::as_bytes(std::span(read_.data));
  }

  NpyArray read_;
  std::optional<MappedNpy> mapped_;
  std::optional<MappedSafetensors> file_;
  const SafetensorsEntry* entry_ = nullptr;
  std::string own_;
};

// The name that the path has without folder and ending: "W" for "dir/W.npy".
std::string StemOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string file = slash == std::string::npos ? path : path.substr(slash + 1);
  return path == "-" ? "tensor" : file.substr(0, file.find('.'));
}

// What a .npy file holds: the array, or the bytes of its 2:4 form.
NpyArray ArrayFor(const ConvertedTensor& made) {
  if (!made.is_packed24) return made.array;
  return {.type = v1::ELEMENT_TYPE_U8,
          .shape = {static_cast<int64_t>(made.array.data.size())},
          .data = made.array.data};
}

absl::StatusOr<ConversionReport> ConvertToArray(const SourceTensor& tensor,
                                                const TensorConversion& conversion,
                                                const ConvertFlags& flags, const Console& console) {
  const auto made = ConvertTensor(tensor, conversion);
  if (!made.ok()) return made.status();
  if (absl::Status status = WriteArray(ArrayFor(*made), flags.output_path, console); !status.ok()) {
    return status;
  }
  if (!made->scale.empty()) {
    NpyArray scale = {.type = v1::ELEMENT_TYPE_F32,
                      .shape = {static_cast<int64_t>(made->scale.size())}};
    scale.data.assign(reinterpret_cast<const char*>(made->scale.data()),
                      made->scale.size() * sizeof(float));
    if (absl::Status status = WriteArray(scale, flags.scale_path, console); !status.ok()) {
      return status;
    }
  }
  return ReportOf(tensor, *made);
}

ExitCode ConvertOne(const GlobalFlags& global, const ConvertFlags& flags, const Console& console) {
  auto input = ConvertInput::Open(flags, console);
  if (!input.ok()) return FailLocally(console, input.status());
  auto tensor = input->Get(TypeOf(flags.input_type));
  if (!tensor.ok()) return FailLocally(console, tensor.status());
  const TensorConversion conversion = ConversionOf(flags);
  absl::StatusOr<ConversionReport> report;
  if (IsTensorFile(flags.output_path)) {
    if (tensor->name.empty()) tensor->name = StemOf(flags.input_path);
    if (!flags.name.empty()) tensor->name = flags.name;
    report = ConvertToFile(*tensor, conversion, flags.output_path);
  } else {
    report = ConvertToArray(*tensor, conversion, flags, console);
  }
  if (!report.ok()) return FailLocally(console, report.status());
  ReportBeside(flags.output_path, console)
      .Print(global.json ? JsonLine(ConversionJson(*report)) : ConversionText(*report));
  return ExitCode::kOk;
}

// All tensors of a file.
ExitCode ConvertAll(const GlobalFlags& global, const ConvertFlags& flags, const Console& console) {
  if (!flags.input_type.empty() || !flags.shape.empty() || !flags.name.empty()) {
    return FailLocally(console, absl::InvalidArgumentError(
                                    "--tensor: got none beside --input-type, --shape or --name, "
                                    "want the name of the tensor that they are for"));
  }
  const auto input = MappedSafetensors::Open(flags.input_path);
  if (!input.ok()) return FailLocally(console, input.status());
  const auto done = ConvertFile(*input, ConversionOf(flags), flags.output_path);
  if (!done.ok()) return FailLocally(console, done.status());
  if (!global.json) {
    console.Print(ConversionsText(done->reports, done->copied));
    return ExitCode::kOk;
  }
  for (const ConversionReport& report : done->reports) {
    console.Print(JsonLine(ConversionJson(report)));
  }
  return ExitCode::kOk;
}

ExitCode RunConvert(const GlobalFlags& global, const ConvertFlags& flags, const Console& console) {
  if (absl::Status status = CheckFlags(flags); !status.ok()) return FailLocally(console, status);
  // --output may be the input, whose place it takes.
  const NamedFile scale = {"--scale-output", flags.scale_path};
  absl::Status outputs = CheckOutputFiles(global, {{"--output", flags.output_path}, scale}, {});
  outputs.Update(CheckOutputFiles(global, {scale}, {{"IN", flags.input_path}}));
  if (!outputs.ok()) return FailLocally(console, outputs);
  const bool is_all =
      IsTensorFile(flags.input_path) && IsTensorFile(flags.output_path) && flags.tensor.empty();
  return is_all ? ConvertAll(global, flags, console) : ConvertOne(global, flags, console);
}

CommandRun AddConvert(CLI::App& app) {
  auto flags = std::make_unique<ConvertFlags>();
  SetFooter(app, absl::StrCat(TypeHelp(), "\n\n", kConvertHelp));
  AddOption(app, "IN", flags->input_path,
            "The .npy or .safetensors file to convert; - is standard input")
      .Require()
      .TypeName("");
  AddTypeOption(app, "--input-type", flags->input_type,
                "Type of the input, for a file whose type NumPy cannot name");
  AddTypeOption(app, "--type", flags->type, "Type of the output (default: that of the input)");
  AddChoice(app, "--order", flags->order,
            "Storage order of the output (default: that of the input)", {"row", "column"});
  AddShape(app, "--shape", flags->shape,
           "Shape of the output: columns, rows,columns or batch,rows,columns, with elements "
           "counted row by row (default: that of the input)",
           {})
      .TypeName("N,...");
  AddChoice(app, "--quantize", flags->quantize,
            "Divide by factors: one for the matrix, or one for each row (of A) or column (of B); "
            "for the types e4m3, e5m2, s8 and u8",
            {"matrix", "row", "column"});
  const CommandOption pack24 = AddFlag(
      app, "--pack24", flags->pack24,
      "Make the 2:4 form of the matrix, a vector of bytes, as products take it for a sparse A");
  AddFlag(app, "--prune", flags->prune,
          "Drop the smallest elements of the matrix where its 2:4 form cannot keep all")
      .Need(pack24);
  AddOption(app, "--tensor", flags->tensor, "Name of the one tensor of a .safetensors file to take")
      .TypeName("NAME");
  AddOption(app, "--name", flags->name,
            "Name of the tensor in a .safetensors file (default: that of the input)")
      .TypeName("NAME");
  AddOption(app, "-o,--output", flags->output_path,
            "The .npy or .safetensors file to write; - is standard output")
      .Require()
      .TypeName("PATH");
  AddOption(app, "--scale-output", flags->scale_path, "The .npy file for the factors of --quantize")
      .TypeName("PATH");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunConvert(global, *flags, console);
  };
}

}  // namespace

constexpr Command kConvertCommand = {
    "convert",
    "Convert matrices of .npy and .safetensors files to other types, orders, shapes and forms "
    "(needs no server)",
    AddConvert};

}  // namespace gemmd
