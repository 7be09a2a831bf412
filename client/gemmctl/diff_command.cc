// SPDX-License-Identifier: Apache-2.0
//
// gemmctl diff.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/difference_drawing.h"
#include "client/gemmctl/difference_report.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/operand_input.h"
#include "client/gemmctl/product_flags.h"
#include "client/gemmctl/product_input.h"
#include "client/gemmctl/tensor_session.h"
#include "client/matrix/npy_map.h"
#include "client/terminal/option.h"
#include "client/terminal/text_file.h"
#include "gemmd/product.h"
#include "gemmd/v1/gemm.pb.h"

namespace gemmd {
namespace {

constexpr char kDiffHelp[] =
    "Compares two files bit by bit; with --chips, A and B are multiplied on each chip and every "
    "other D is compared with the first chip's. A NaN differs from all but the same NaN, +0 from "
    "-0. An ulp is the step from one value of the type to the next. Integers are so many ulps "
    "apart as they differ by.\n\n"
    "Exit code: 0 where all bits are the same, 1 where they differ, 2 where nothing could be "
    "compared, also because the server refused, 3 where it could not be reached.\n\n"
    "Examples:\n"
    "  gemmctl diff D.npy expected.npy\n"
    "  gemmctl diff D8.npy E8.npy --type e4m3 --json | jq .most_ulps\n"
    "  gemmctl diff A.npy B.npy --type bf16 --chips sm_80,sm_90 --html where.html\n"
    "  gemmctl diff --random 256,256,4096 --type f16 --chips cpu,sm_90,cuda:0 --svg where.svg";

struct DiffFlags {
  ProductFlags product;
  std::string chips;  // Empty: files are compared.
  int64_t worst = 10;
  std::string svg_path;
  std::string html_path;
};

// An array and its bytes, which are mapped where the file is not standard input.
class ReadMatrix {
 public:
  static absl::StatusOr<ReadMatrix> Open(const std::string& path, v1::ElementType hint,
                                         const Console& console) {
    ReadMatrix read;
    if (path == "-") {
      auto array = ReadArray(path, hint, console);
      if (!array.ok()) return array.status();
      read.array_ = *std::move(array);
      return read;
    }
    auto mapped = MappedNpy::Open(path, hint);
    if (!mapped.ok()) return mapped.status();
    read.mapped_ = *std::move(mapped);
    return read;
  }

  PackedMatrix Get() const {
    if (!mapped_.has_value()) return PackedArray(array_, array_.data);
    const std::span<const std::byte> bytes = mapped_->data();
    return PackedArray(mapped_->array(),
                       {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

 private:
  NpyArray array_;
  std::optional<MappedNpy> mapped_;
};

v1::ElementType TypeOr(const std::string& name, const std::string& otherwise) {
  return ParseElementType(name.empty() ? otherwise : name).value_or(v1::ELEMENT_TYPE_UNSPECIFIED);
}

CompareOptions OptionsOf(const DiffFlags& flags) {
  return {.most_worst = static_cast<size_t>(flags.worst)};
}

// Files have no options of a product, but for their types.
absl::Status CheckFileFlags(const ProductFlags& given) {
  ProductFlags plain;
  plain.a_path = given.a_path;
  plain.b_path = given.b_path;
  plain.type = given.type;
  plain.a_type = given.a_type;
  plain.b_type = given.b_type;
  if (given != plain) {
    return absl::InvalidArgumentError(
        "--chips: got none beside options of a product, want the chips to compute it on, such as "
        "--chips sm_80,sm_90; two files are compared with no more than --type");
  }
  if (given.b_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.a_path.empty() ? "A, B" : "B",
                     ": got none, want two .npy files to compare, or a product and --chips"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NamedDifference>> DiffFiles(const DiffFlags& flags,
                                                       const Console& console) {
  const ProductFlags& product = flags.product;
  if (absl::Status status = CheckFileFlags(product); !status.ok()) return status;
  const auto a = ReadMatrix::Open(product.a_path, TypeOr(product.a_type, product.type), console);
  if (!a.ok()) return a.status();
  const auto b = ReadMatrix::Open(product.b_path, TypeOr(product.b_type, product.type), console);
  if (!b.ok()) return b.status();
  if (product.a_path == "-" || product.b_path == "-") {
    if (absl::Status status = ExpectEndOfInput(console); !status.ok()) return status;
  }
  auto difference = Compare(a->Get(), b->Get(), OptionsOf(flags));
  if (!difference.ok()) return difference.status();
  return std::vector<NamedDifference>{{product.a_path, product.b_path, *std::move(difference)}};
}

// "sm_80" is short for "sim:sm_80".
std::string DeviceNamed(absl::string_view name) {
  return absl::StrCat(absl::StartsWith(name, "sm_") ? "sim:" : "", name);
}

PackedMatrix PackedResult(const v1::Matrix& d) {
  return {.type = d.type(),
          .batch = d.batch(),
          .rows = d.rows(),
          .columns = d.columns(),
          .order = d.order(),
          .data = d.data()};
}

std::string NameOf(const v1::MultiplyResponse& response) {
  return absl::StrCat(response.device(), " ", response.kernel());
}

// Computes the product on each device and compares with the first.
absl::StatusOr<std::vector<NamedDifference>> DiffDevices(const DiffFlags& flags,
                                                         v1::MultiplyRequest& request,
                                                         Client& client) {
  std::optional<MultiplyResult> first;
  std::vector<NamedDifference> all;
  for (const absl::string_view name : absl::StrSplit(flags.chips, ',')) {
    request.set_device(DeviceNamed(name));
    auto response = client.Multiply(request);
    if (!response.ok()) {
      return absl::Status(response.status().code(),
                          absl::StrCat(request.device(), ": ", response.status().message()));
    }
    auto result = MultiplyResult::FromResponse(*std::move(response));
    if (!result.ok()) return result.status();
    if (!first.has_value()) {
      first = *std::move(result);
      continue;
    }
    auto difference = Compare(PackedResult(first->response().d()),
                              PackedResult(result->response().d()), OptionsOf(flags));
    if (!difference.ok()) return difference.status();
    all.push_back({NameOf(first->response()), NameOf(result->response()), *std::move(difference)});
  }
  return all;
}

absl::Status CheckDeviceFlags(const ProductFlags& product) {
  if (product.device.empty() && product.chip.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--chips: got --device or --chip too, want all names in --chips");
}

ExitCode WriteOrPrint(const std::string& path, const std::string& text, const Console& console) {
  if (path == "-") {
    console.Print(text);
    return ExitCode::kOk;
  }
  const absl::Status status = WriteTextFile(path, text);
  return status.ok() ? ExitCode::kOk : FailLocally(console, status);
}

// What was found, in all the forms that are asked for.
ExitCode Report(const GlobalFlags& global, const DiffFlags& flags,
                const std::vector<NamedDifference>& all, const Console& console) {
  const bool is_drawn_there = flags.svg_path == "-" || flags.html_path == "-";
  const Console report = ReportBeside(is_drawn_there ? "-" : "", console);
  bool is_same = true;
  for (const NamedDifference& named : all) {
    if (!global.json && &named != &all.front()) report.Print("\n");
    report.Print(global.json ? JsonLine(DifferenceJson(named)) : DifferenceText(named));
    is_same = is_same && named.difference.differing == 0;
  }
  if (!flags.svg_path.empty()) {
    const ExitCode code = WriteOrPrint(flags.svg_path, DifferencesSvg(all), console);
    if (code != ExitCode::kOk) return code;
  }
  if (!flags.html_path.empty()) {
    const ExitCode code = WriteOrPrint(flags.html_path, DifferencesPage(all), console);
    if (code != ExitCode::kOk) return code;
  }
  return is_same ? ExitCode::kOk : ExitCode::kRefused;
}

// What a failure means where kRefused stands for other bits.
ExitCode WithoutAnswer(ExitCode code) {
  return code == ExitCode::kRefused ? ExitCode::kUsage : code;
}

ExitCode RunDiff(const GlobalFlags& global, const DiffFlags& flags, const Console& console) {
  const absl::Status outputs = CheckOutputFiles(
      global, {{"--svg", flags.svg_path}, {"--html", flags.html_path}}, FilesOf(flags.product));
  if (!outputs.ok()) return FailLocally(console, outputs);
  if (flags.chips.empty()) {
    const auto all = DiffFiles(flags, console);
    return all.ok() ? Report(global, flags, *all, console) : FailLocally(console, all.status());
  }
  if (absl::Status status = CheckDeviceFlags(flags.product); !status.ok()) {
    return FailLocally(console, status);
  }
  auto client =
      NamesTensors(flags.product) ? ConnectSession(global, false, console) : Connect(global);
  if (!client.ok()) return WithoutAnswer(FailSession(console, client.status()));
  auto request = ProductRequest(flags.product, true, console, &*client);
  if (!request.ok()) return FailLocally(console, request.status());
  const auto all = DiffDevices(flags, *request, *client);
  if (all.ok()) return Report(global, flags, *all, console);
  return WithoutAnswer(FailCall(console, all.status()));
}

// What is wrong with the value of --chips; empty: nothing.
std::string RefuseChips(const std::string& text) {
  const std::vector<std::string> names = absl::StrSplit(text, ',');
  bool has_names = names.size() >= 2;
  for (const std::string& name : names) has_names = has_names && !name.empty();
  return has_names ? "" : absl::StrCat("got ", text, ", want two names or more, as sm_80,sm_90");
}

CommandRun AddDiff(CLI::App& app) {
  auto flags = std::make_unique<DiffFlags>();
  SetFooter(app, absl::StrCat(TypeHelp(), "\n\n", kDiffHelp));
  AddOption(app, "--chips", flags->chips,
            "Multiply A and B on each of these and compare the results: chips that the server "
            "simulates (sm_80 is short for sim:sm_80) or its devices, the first to compare with")
      .Check(RefuseChips)
      .TypeName("NAME,NAME,...")
      .Group("Comparison");
  AddOption(app, "--worst", flags->worst, "Number of elements to list, the worst first", 0)
      .ShowDefault()
      .TypeName("N")
      .Group("Comparison");
  AddOption(app, "--svg", flags->svg_path,
            "File for a heat map in SVG, whose cells tell about themselves under the pointer; - is "
            "standard output")
      .TypeName("PATH")
      .Group("Comparison");
  AddOption(app, "--html", flags->html_path,
            "File for a page with the heat map and the report; - is standard output")
      .TypeName("PATH")
      .Group("Comparison");
  AddProductFlags(app, flags->product);
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunDiff(global, *flags, console);
  };
}

}  // namespace

constexpr Command kDiffCommand = {
    "diff", "Show where the bits of two files, or of a product on two chips, differ, and how far",
    AddDiff};

}  // namespace gemmd
