// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/command.h"
#include "client/gemmctl/operand_input.h"
#include "client/matrix/npy.h"
#include "client/matrix/packed_matrix.h"
#include "client/matrix/safetensors.h"
#include "client/operand_size.h"
#include "client/terminal/option.h"
#include "client/terminal/text.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "gemmd/prepare.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/status.h"
#include "nlohmann/json.hpp"

namespace gemmd {
namespace {

// How to convert a tensor.
struct TensorConversion {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;  // Unspecified: the input's.
  std::optional<v1::Order> order = {};                  // Absent: the input's.
  std::vector<int64_t> shape = {};                      // Empty: the input's.
  std::optional<ScalePer> scale = {};  // Quantize with factors of this granularity.
  std::optional<Prune> pack24 = {};    // Convert to the 2:4 form.
};

// A tensor by its name, of any number of dimensions. Borrows the bytes.
struct SourceTensor {
  std::string name = {};
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  std::vector<int64_t> shape = {};
  v1::Order order = v1::ORDER_ROW_MAJOR;
  absl::string_view data =
      {};  // Packed lines; one packed line if there are more than three dimensions.
};

struct ConvertedTensor {
  std::string name = {};  // Empty if the file format has no names.
  v1::ElementType input_type = v1::ELEMENT_TYPE_UNSPECIFIED;
  v1::Order input_order = v1::ORDER_ROW_MAJOR;
  NpyArray array = {};            // With all dimensions. Empty of elements in a report.
  ConversionCounts counts = {};   // Not counted if there are factors.
  std::vector<float> scale = {};  // Factors: for all, or for each row or column.
  bool is_packed24 = false;       // `array.data` is the 2:4 form, whose dense shape is the array's.
  size_t packed_bytes = 0;        // Size of the 2:4 form.
  int64_t dropped = 0;            // Nonzero elements that pruning removed.
};

absl::Status CheckShape(const std::vector<int64_t>& shape, const SourceTensor& input) {
  if (shape.size() > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shape: got ", shape.size(), " extents, want 1 to 3"));
  }
  const std::optional<int64_t> count = CountOf(input.shape);
  if (CountOf(shape) == count && count.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--shape: got ", absl::StrJoin(shape, ","), ", want a shape of ",
      count.has_value() ? absl::StrCat(*count) : "2^63 or more", " elements, as the input has"));
}

// Checks that sizes fit 63 bits, before any allocation.
absl::Status CheckSize(const NpyArray& output) {
  const PackedMatrix view = PackedTensor(output.type, output.shape, output.order, "");
  return SizeOperand("output", {.type = view.type,
                                .order = view.order,
                                .rows = view.rows,
                                .columns = view.columns,
                                .batch = view.batch})
      .status();
}

absl::Status CheckMatrix(const SourceTensor& input, const NpyArray& output, const char* option) {
  // Otherwise up to 2^62 empty lines would each have a factor.
  if (CountOf(output.shape) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": got no elements, want some"));
  }
  if (output.shape.size() == 2 && output.order == v1::ORDER_ROW_MAJOR) return absl::OkStatus();
  if (output.shape.size() == 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": got column order, want row order, such as --order row makes"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": got an array of ", input.shape.size(), " dimensions, want a matrix"));
}

absl::StatusOr<ConvertedTensor> QuantizeTensor(const SourceTensor& input, NpyArray output,
                                               ScalePer per) {
  ConversionCounts counts;
  const int64_t rows = output.shape[0];
  const int64_t columns = output.shape[1];
  const PackedMatrix floats = {.type = v1::ELEMENT_TYPE_F32, .rows = rows, .columns = columns};
  RETURN_IF_ERROR(CheckSize({.type = v1::ELEMENT_TYPE_F32, .shape = output.shape}));
  const std::string bytes = ConvertElements(
      PackedTensor(input.type, input.shape, input.order, input.data), floats, counts);
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  ASSIGN_OR_RETURN(auto quantized, Quantize(values, rows, columns, output.type, per));
  output.data = std::move(quantized.data);
  return ConvertedTensor{.array = std::move(output), .scale = std::move(quantized.scale)};
}

absl::Status PackTensor(ConvertedTensor& tensor, Prune prune) {
  NpyArray& array = tensor.array;
  const MatrixView dense =
      PackedView(array.type, std::as_bytes(std::span(array.data)), array.shape[0], array.shape[1]);
  auto packed = Pack24(dense, prune);
  if (!packed.ok()) {
    const bool may_be_pruned = prune == Prune::kRefuse && HasSparseForm(array.type);
    return absl::Status(packed.status().code(),
                        absl::StrCat("--pack24: ", packed.status().message(),
                                     may_be_pruned ? " (--prune drops the smallest)" : ""));
  }
  array.data = std::move(packed->data);
  tensor.is_packed24 = true;
  tensor.packed_bytes = array.data.size();
  tensor.dropped = packed->dropped;
  return absl::OkStatus();
}

// The type, shape and order that the conversion gives, without elements.
// Errors: InvalidArgument, naming the option, if the conversion is impossible.
absl::StatusOr<NpyArray> PlanConversion(const SourceTensor& input,
                                        const TensorConversion& conversion) {
  NpyArray output = {
      .type = conversion.type == v1::ELEMENT_TYPE_UNSPECIFIED ? input.type : conversion.type,
      .shape = conversion.shape.empty() ? input.shape : conversion.shape,
      .order = conversion.order.value_or(input.order)};
  if (!conversion.shape.empty()) {
    RETURN_IF_ERROR(CheckShape(output.shape, input));
  }
  if (output.shape.size() != 2) {
    // Files of vectors or batches have no order: elements are written row by row.
    if (conversion.order == v1::ORDER_COLUMN_MAJOR) {
      return absl::InvalidArgumentError(
          absl::StrCat("--order: got column for an array of ", output.shape.size(),
                       " dimensions, want row: only an array of 2 has an order in a .npy file"));
    }
    output.order = v1::ORDER_ROW_MAJOR;
  }
  RETURN_IF_ERROR(CheckSize(output));
  // Factors and 2:4 forms need rows.
  if (conversion.scale.has_value() || conversion.pack24.has_value()) {
    if (!conversion.order.has_value()) output.order = v1::ORDER_ROW_MAJOR;
    const char* const option = conversion.scale.has_value() ? "--quantize" : "--pack24";
    RETURN_IF_ERROR(CheckMatrix(input, output, option));
  }
  return output;
}

// Errors: those of PlanConversion, Quantize and Pack24.
absl::StatusOr<ConvertedTensor> ConvertTensor(const SourceTensor& input,
                                              const TensorConversion& conversion) {
  ASSIGN_OR_RETURN(auto output, PlanConversion(input, conversion));
  ConvertedTensor tensor;
  if (conversion.scale.has_value()) {
    auto quantized = QuantizeTensor(input, std::move(output), *conversion.scale);
    if (!quantized.ok()) return Prefixed("--quantize", quantized.status());
    tensor = *std::move(quantized);
  } else {
    tensor.array = std::move(output);
    tensor.array.data = ConvertElements(
        PackedTensor(input.type, input.shape, input.order, input.data),
        PackedTensor(tensor.array.type, tensor.array.shape, tensor.array.order, ""), tensor.counts);
  }
  if (conversion.pack24.has_value()) {
    RETURN_IF_ERROR(PackTensor(tensor, *conversion.pack24));
  }
  tensor.name = input.name;
  tensor.input_type = input.type;
  tensor.input_order = input.order;
  return tensor;
}

using Align = TextTable::Align;

std::string OrderName(v1::Order order) {
  return order == v1::ORDER_COLUMN_MAJOR ? "column" : "row";
}

std::string TypesText(const ConvertedTensor& report) {
  return absl::StrCat(ElementTypeName(report.input_type), " -> ",
                      ElementTypeName(report.array.type));
}

int64_t ValuesOf(const ConvertedTensor& report) { return CountOf(report.array.shape).value_or(0); }

std::string ConversionText(const ConvertedTensor& report) {
  const auto count = [](int64_t values) { return FormatCount(values); };
  TextTable table({{"shape"}, {absl::StrJoin(report.array.shape, " x ")}});
  table.AddRow({"type", TypesText(report)});
  table.AddRow({"order", absl::StrCat(OrderName(report.input_order), " -> ",
                                      OrderName(report.array.order))});
  table.AddRow({"values", count(ValuesOf(report))});
  if (report.scale.empty()) {
    table.AddRow({"rounded", count(report.counts.rounded)});
    table.AddRow({"saturated", count(report.counts.saturated)});
    table.AddRow({"became infinite", count(report.counts.infinite)});
    table.AddRow({"NaN", count(report.counts.nan)});
    table.AddRow({"NaN lost", count(report.counts.nan_lost)});
  } else {
    table.AddRow({"factors", count(static_cast<int64_t>(report.scale.size()))});
  }
  if (report.is_packed24) {
    table.AddRow({"bytes of 2:4", count(static_cast<int64_t>(report.packed_bytes))});
    table.AddRow({"dropped", count(report.dropped)});
  }
  const std::string heading = report.name.empty() ? "" : absl::StrCat("tensor ", report.name, "\n");
  return heading + table.Print();
}

nlohmann::ordered_json ConversionJson(const ConvertedTensor& report) {
  const PackedMatrix view = PackedArray(report.array, "");
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!report.name.empty()) {
    json["name"] = report.name;
    json["shape"] = report.array.shape;
  } else {
    json["batch"] = view.batch;
    json["rows"] = view.rows;
    json["columns"] = view.columns;
  }
  json["input_type"] = std::string(ElementTypeName(report.input_type));
  json["input_order"] = OrderName(report.input_order);
  json["type"] = std::string(ElementTypeName(report.array.type));
  json["order"] = OrderName(report.array.order);
  json["values"] = ValuesOf(report);
  if (report.scale.empty()) {
    json["rounded"] = report.counts.rounded;
    json["saturated"] = report.counts.saturated;
    json["became_infinite"] = report.counts.infinite;
    json["nan"] = report.counts.nan;
    json["nan_lost"] = report.counts.nan_lost;
  } else {
    json["factors"] = report.scale.size();
  }
  if (report.is_packed24) {
    json["packed_bytes"] = report.packed_bytes;
    json["dropped"] = report.dropped;
  }
  return json;
}

// All tensors of a file, one per line. `copied`: the tensors left unchanged.
std::string ConversionsText(const std::vector<ConvertedTensor>& reports, size_t copied) {
  TextTable table({{"tensor"},
                   {"shape"},
                   {"type"},
                   {"rounded", Align::kRight},
                   {"saturated", Align::kRight},
                   {"became infinite", Align::kRight},
                   {"NaN", Align::kRight},
                   {"NaN lost", Align::kRight},
                   {"factors", Align::kRight},
                   {"dropped", Align::kRight}});
  for (const ConvertedTensor& report : reports) {
    const bool is_counted = report.scale.empty();
    const auto count = [is_counted](int64_t values) {
      return is_counted ? FormatCount(values) : "-";
    };
    table.AddRow({report.name, absl::StrJoin(report.array.shape, " x "), TypesText(report),
                  count(report.counts.rounded), count(report.counts.saturated),
                  count(report.counts.infinite), count(report.counts.nan),
                  count(report.counts.nan_lost),
                  FormatCount(static_cast<int64_t>(report.scale.size())),
                  report.is_packed24 ? FormatCount(report.dropped) : "-"});
  }
  return absl::StrCat(table.Print(), FormatCount(static_cast<int64_t>(reports.size())),
                      " tensors converted, ", FormatCount(static_cast<int64_t>(copied)),
                      " copied as they are\n");
}

// Reading and writing tensors of .safetensors files. In a file, the elements of a tensor follow
// each other without gaps; here, each line of a matrix begins on a byte.

// All elements as one line, as in a file.
PackedMatrix OneLine(v1::ElementType type, const std::vector<int64_t>& shape,
                     absl::string_view data) {
  return {.type = type, .rows = 1, .columns = CountOf(shape).value_or(0), .data = data};
}

// The bits of an element in a file; a boolean takes a byte.
int FileBits(v1::ElementType type) { return type == v1::ELEMENT_TYPE_B1 ? 8 : ElementBits(type); }

absl::Status NoName(v1::ElementType type) {
  return absl::InvalidArgumentError(absl::StrCat(
      "--type: got ", ElementTypeName(type),
      ", which a .safetensors file cannot name, want f64, f32, tf32, f16, bf16, e4m3, e5m2, e3m2, "
      "e2m3, e2m1, s8, u8, b1 or s32"));
}

// Whether a path ends like a .safetensors file.
bool IsTensorFile(const std::string& path) { return absl::EndsWith(path, ".safetensors"); }

// The tensor. Its bytes are in the file or, if elements are narrower than a byte, in `own`. `hint`
// reinterprets the bits as a type of the same width; unspecified: the file's type. Errors:
// InvalidArgument, with the name, if there is no such element type.
absl::StatusOr<SourceTensor> TensorOf(const MappedSafetensors& file, const SafetensorsEntry& entry,
                                      v1::ElementType hint, std::string& own) {
  const v1::ElementType of_file = TypeOfSafetensors(entry.type);
  const v1::ElementType type = hint == v1::ELEMENT_TYPE_UNSPECIFIED ? of_file : hint;
  const int64_t count = CountOf(entry.shape).value_or(0);
  const bool is_known = type != v1::ELEMENT_TYPE_UNSPECIFIED &&
                        SafetensorsBytes(entry.type, {8}).value_or(0) == FileBits(type);
  if (!is_known) {
    return absl::InvalidArgumentError(absl::StrCat(
        entry.name, ": got a tensor of ", entry.type, ", want one of ",
        hint == v1::ELEMENT_TYPE_UNSPECIFIED ? "an element type" : ElementTypeName(hint)));
  }
  SourceTensor tensor = {.name = entry.name, .type = type, .shape = entry.shape};
  tensor.data = file.BytesOf(entry);
  if (ElementBits(type) >= 8) return tensor;
  if (type == v1::ELEMENT_TYPE_B1) {
    ASSIGN_OR_RETURN(own, PackLines(type, tensor.data, count));
  } else {
    own = std::string(tensor.data);
  }
  ConversionCounts ignored;
  own = ConvertElements(OneLine(type, entry.shape, own),
                        PackedTensor(type, entry.shape, v1::ORDER_ROW_MAJOR, ""), ignored);
  tensor.data = own;
  return tensor;
}

// The entries of a tensor that PlanConversion plans: its elements, or its 2:4 form as U8, and its
// factors, F32, as NAME_scale. Offsets begin at 0.
// Errors: InvalidArgument for a type that such a file cannot name.
absl::StatusOr<std::vector<SafetensorsEntry>> EntriesFor(const std::string& name,
                                                         const NpyArray& planned,
                                                         const TensorConversion& conversion) {
  SafetensorsEntry entry = {.name = name, .type = std::string(SafetensorsTypeOf(planned.type))};
  if (conversion.pack24.has_value()) {
    ASSIGN_OR_RETURN(const auto bytes, SizeOperand(name, {.type = planned.type,
                                                          .rows = planned.shape[0],
                                                          .columns = planned.shape[1],
                                                          .sparsity = v1::SPARSITY_2_4}));
    entry.type = "U8";
    entry.shape = {bytes.full};
  } else if (entry.type.empty()) {
    return NoName(planned.type);
  } else {
    entry.shape = planned.shape;
  }
  const auto bytes = SafetensorsBytes(entry.type, entry.shape);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", bytes.status().message()));
  }
  entry.end = *bytes;
  std::vector<SafetensorsEntry> entries = {std::move(entry)};
  if (!conversion.scale.has_value()) return entries;
  int64_t factors = 1;
  if (*conversion.scale != ScalePer::kMatrix) {
    factors = planned.shape[*conversion.scale == ScalePer::kRow ? 0 : 1];
  }
  entries.push_back({.name = absl::StrCat(name, "_scale"),
                     .type = "F32",
                     .shape = {factors},
                     .begin = entries[0].end,
                     .end = entries[0].end + factors * static_cast<int64_t>(sizeof(float))});
  return entries;
}

// What a reader of a 2:4 form needs, as keys and values of the file's metadata.
std::vector<std::pair<std::string, std::string>> MetadataFor(const std::string& name,
                                                             const NpyArray& planned) {
  return {{absl::StrCat(name, ".sparsity"), "2:4"},
          {absl::StrCat(name, ".type"), std::string(ElementTypeName(planned.type))},
          {absl::StrCat(name, ".shape"), absl::StrJoin(planned.shape, ",")}};
}

// The bytes of those entries, one after the other.
std::string BytesFor(const ConvertedTensor& tensor) {
  const NpyArray& array = tensor.array;
  std::string bytes = array.data;
  if (!tensor.is_packed24 && ElementBits(array.type) < 8) {
    ConversionCounts ignored;
    bytes = ConvertElements(PackedTensor(array.type, array.shape, array.order, array.data),
                            OneLine(array.type, array.shape, ""), ignored);
    const int64_t count = CountOf(array.shape).value_or(0);
    if (array.type == v1::ELEMENT_TYPE_B1) bytes = UnpackLines(array.type, bytes, count, 1);
  }
  bytes.append(reinterpret_cast<const char*>(tensor.scale.data()),
               tensor.scale.size() * sizeof(float));
  return bytes;
}

bool IsConverted(const SafetensorsEntry& entry, const TensorConversion& conversion) {
  if (!IsFloat(TypeOfSafetensors(entry.type))) return false;
  if (!conversion.scale.has_value() && !conversion.pack24.has_value()) return true;
  return entry.shape.size() == 2 && entry.bytes() > 0;
}

// Appends entries.
void Append(std::vector<SafetensorsEntry> entries, SafetensorsHeader& header) {
  const int64_t first = header.tensors.empty() ? 0 : header.tensors.back().end;
  for (SafetensorsEntry& entry : entries) {
    entry.begin += first;
    entry.end += first;
    header.tensors.push_back(std::move(entry));
  }
}

// Adds the entries that the conversion will fill. Sums of sizes fit 63 bits: an entry is at most 64
// times as large as its bytes in the input file.
absl::Status Plan(const SourceTensor& input, const TensorConversion& conversion,
                  SafetensorsHeader& header) {
  const auto planned = PlanConversion(input, conversion);
  if (!planned.ok()) return Prefixed(input.name, planned.status());
  auto entries = EntriesFor(input.name, *planned, conversion);
  if (!entries.ok()) return Prefixed(input.name, entries.status());
  Append(*std::move(entries), header);
  if (!conversion.pack24.has_value()) return absl::OkStatus();
  for (auto& fact : MetadataFor(input.name, *planned)) header.metadata.push_back(std::move(fact));
  return absl::OkStatus();
}

// Planning needs only the name, type and shape in a tensor's header.
absl::StatusOr<SafetensorsHeader> PlanFile(const MappedSafetensors& input,
                                           const TensorConversion& conversion) {
  SafetensorsHeader header;
  header.metadata = input.header().metadata;
  for (const SafetensorsEntry& entry : input.header().tensors) {
    if (!IsConverted(entry, conversion)) {
      SafetensorsEntry copy = entry;
      copy.begin = 0;
      copy.end = entry.bytes();
      Append({std::move(copy)}, header);
      continue;
    }
    const SourceTensor tensor = {
        .name = entry.name, .type = TypeOfSafetensors(entry.type), .shape = entry.shape};
    RETURN_IF_ERROR(Plan(tensor, conversion, header));
  }
  return header;
}

// Converts one tensor and appends its bytes to the file. Returns the tensor without its bytes.
absl::StatusOr<ConvertedTensor> AddTensor(const SourceTensor& input,
                                          const TensorConversion& conversion, OutputFile& file) {
  auto made = ConvertTensor(input, conversion);
  if (!made.ok()) return Prefixed(input.name, made.status());
  RETURN_IF_ERROR(file.Write(BytesFor(*made)));
  made->array.data = std::string();
  return made;
}

// Writes every tensor of `input` to `path`. Converts tensors of float types (only matrices, if
// factors or 2:4 forms are requested), and copies all others. Keeps one tensor in memory at a time.
// Returns a report of the converted tensors. Errors: InvalidArgument, naming the tensor; Internal
// if the file cannot be written. On error there is no file.
absl::StatusOr<std::vector<ConvertedTensor>> ConvertFile(const MappedSafetensors& input,
                                                         const TensorConversion& conversion,
                                                         const std::string& path) {
  ASSIGN_OR_RETURN(const auto header, PlanFile(input, conversion));
  OutputFile file;
  RETURN_IF_ERROR(BeginSafetensors(path, header, file));
  std::vector<ConvertedTensor> reports;
  for (const SafetensorsEntry& entry : input.header().tensors) {
    if (!IsConverted(entry, conversion)) {
      RETURN_IF_ERROR(file.Write(input.BytesOf(entry)));
      continue;
    }
    std::string own;
    ASSIGN_OR_RETURN(const auto tensor, TensorOf(input, entry, v1::ELEMENT_TYPE_UNSPECIFIED, own));
    ASSIGN_OR_RETURN(auto report, AddTensor(tensor, conversion, file));
    reports.push_back(std::move(report));
  }
  RETURN_IF_ERROR(file.Commit());
  return reports;
}

// Writes `path` with one tensor. Errors: those of ConvertFile.
absl::StatusOr<ConvertedTensor> ConvertToFile(const SourceTensor& input,
                                              const TensorConversion& conversion,
                                              const std::string& path) {
  SafetensorsHeader header;
  RETURN_IF_ERROR(Plan(input, conversion, header));
  OutputFile file;
  RETURN_IF_ERROR(BeginSafetensors(path, header, file));
  ASSIGN_OR_RETURN(auto report, AddTensor(input, conversion, file));
  RETURN_IF_ERROR(file.Commit());
  return report;
}

constexpr char kConvertHelp[] =
    "Values are rounded to the nearest value of the type, ties to even. Values beyond the largest "
    "finite one become infinite in f32, tf32, f16 and bf16; in every other type they become the "
    "largest or lowest value. NaN becomes 0 in an integer type, and the largest value in a float "
    "type without a NaN. Elements whose type does not change keep their bits. The report counts "
    "the changes; it goes to standard error if the matrix goes to standard output.\n\n"
    "In a .safetensors file, all tensors of float types are converted and all others copied; "
    "--tensor selects one, which may also go to a .npy file. --quantize divides by factors that "
    "scale the largest magnitude to the largest value of the type, and --pack24 makes the 2:4 form "
    "for a sparse A, as bytes; in a .safetensors file, both apply to matrices only. The factors go "
    "to --scale-output, or as NAME_scale into a .safetensors file.\n\n"
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
  std::string tensor;          // The tensor to read from a .safetensors file; empty: all.
  std::string name;            // In a .safetensors file; empty: the input's.
  std::string quantize;        // Empty: no factors.
  bool pack24 = false;
  bool prune = false;
  std::string scale_path;
  std::string output_path;  // "-": standard output.
};

TensorConversion ConversionOf(const ConvertFlags& flags) {
  TensorConversion conversion = {.type = TypeOf(flags.type), .shape = flags.shape};
  if (!flags.order.empty()) conversion.order = OrderOf(flags.order);
  if (flags.quantize == "matrix") conversion.scale = ScalePer::kMatrix;
  if (flags.quantize == "row") conversion.scale = ScalePer::kRow;
  if (flags.quantize == "column") conversion.scale = ScalePer::kColumn;
  if (flags.pack24) conversion.pack24 = flags.prune ? Prune::kSmallest : Prune::kRefuse;
  // A .safetensors file is always row-major.
  if (IsTensorFile(flags.output_path)) conversion.order = v1::ORDER_ROW_MAJOR;
  return conversion;
}

// Refuses flags that exclude each other.
absl::Status CheckFlags(const ConvertFlags& flags) {
  const bool is_tensor_file = IsTensorFile(flags.output_path);
  if (is_tensor_file && flags.order == "column") {
    return absl::InvalidArgumentError(
        "--order: got column for a .safetensors file, want row: the format is row-major");
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
        "file as --output, which contains its factors");
  }
  if (flags.scale_path == "-") {
    return absl::InvalidArgumentError("--scale-output: got -, want a path of a file");
  }
  return absl::OkStatus();
}

// One tensor and the owner of its bytes.
class ConvertInput {
 public:
  // Errors: those of reading; InvalidArgument if the file has several tensors and none is named.
  static absl::StatusOr<ConvertInput> Open(const ConvertFlags& flags, const Console& console) {
    ConvertInput input;
    if (IsTensorFile(flags.input_path)) {
      RETURN_IF_ERROR(input.OpenTensor(flags));
      return input;
    }
    ASSIGN_OR_RETURN(input.array_, MapArray(flags.input_path, TypeOf(flags.input_type), console));
    if (flags.input_path == "-") {
      RETURN_IF_ERROR(ExpectEndOfInput(console));
    }
    return input;
  }

  // Valid while this object exists and is not moved.
  absl::StatusOr<SourceTensor> Get(v1::ElementType hint) {
    if (entry_ != nullptr) return TensorOf(*file_, *entry_, hint, own_);
    const NpyArray& array = array_.array();
    const std::span<const std::byte> bytes = array_.data();
    return SourceTensor{.type = array.type,
                        .shape = array.shape,
                        .order = array.order,
                        .data = {reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
  }

 private:
  absl::Status OpenTensor(const ConvertFlags& flags) {
    ASSIGN_OR_RETURN(file_, MappedSafetensors::Open(flags.input_path));
    const std::vector<SafetensorsEntry>& tensors = file_->header().tensors;
    entry_ = flags.tensor.empty() && tensors.size() == 1 ? &tensors[0] : file_->Find(flags.tensor);
    if (entry_ != nullptr) return absl::OkStatus();
    std::vector<std::string> names;
    for (const SafetensorsEntry& tensor : tensors) {
      if (names.size() == kMaxNames) break;
      names.push_back(tensor.name);
    }
    return absl::NotFoundError(
        absl::StrCat("--tensor: got ", flags.tensor.empty() ? "none" : flags.tensor,
                     ", want one of the ", tensors.size(), " tensors of ", flags.input_path,
                     ", such as ", absl::StrJoin(names, ", ")));
  }

  static constexpr size_t kMaxNames = 5;

  MappedNpy array_;
  std::optional<MappedSafetensors> file_;
  const SafetensorsEntry* entry_ = nullptr;
  std::string own_;
};

// The file name without folder and extension: "W" for "dir/W.npy".
std::string StemOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string file = slash == std::string::npos ? path : path.substr(slash + 1);
  return path == "-" ? "tensor" : file.substr(0, file.find('.'));
}

// The content of a .npy file: the array, or the bytes of its 2:4 form.
NpyArray ArrayFor(const ConvertedTensor& made) {
  if (!made.is_packed24) return made.array;
  return {.type = v1::ELEMENT_TYPE_U8,
          .shape = {static_cast<int64_t>(made.array.data.size())},
          .data = made.array.data};
}

absl::StatusOr<ConvertedTensor> ConvertToArray(const SourceTensor& tensor,
                                               const TensorConversion& conversion,
                                               const ConvertFlags& flags, const Console& console) {
  ASSIGN_OR_RETURN(auto made, ConvertTensor(tensor, conversion));
  RETURN_IF_ERROR(WriteArray(ArrayFor(made), flags.output_path, console));
  if (!made.scale.empty()) {
    NpyArray scale = {.type = v1::ELEMENT_TYPE_F32,
                      .shape = {static_cast<int64_t>(made.scale.size())}};
    scale.data.assign(reinterpret_cast<const char*>(made.scale.data()),
                      made.scale.size() * sizeof(float));
    RETURN_IF_ERROR(WriteArray(scale, flags.scale_path, console));
  }
  return made;
}

ExitCode ConvertOne(const GlobalFlags& global, const ConvertFlags& flags, const Console& console) {
  auto input = ConvertInput::Open(flags, console);
  if (!input.ok()) return FailLocally(console, input.status());
  auto tensor = input->Get(TypeOf(flags.input_type));
  if (!tensor.ok()) return FailLocally(console, tensor.status());
  const TensorConversion conversion = ConversionOf(flags);
  absl::StatusOr<ConvertedTensor> report;
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
  const auto reports = ConvertFile(*input, ConversionOf(flags), flags.output_path);
  if (!reports.ok()) return FailLocally(console, reports.status());
  if (!global.json) {
    console.Print(ConversionsText(*reports, input->header().tensors.size() - reports->size()));
    return ExitCode::kOk;
  }
  for (const ConvertedTensor& report : *reports) {
    console.Print(JsonLine(ConversionJson(report)));
  }
  return ExitCode::kOk;
}

ExitCode RunConvert(const GlobalFlags& global, const ConvertFlags& flags, const Console& console) {
  if (absl::Status status = CheckFlags(flags); !status.ok()) return FailLocally(console, status);
  // --output may name the input, which it then replaces.
  const NamedFile scale = {"--scale-output", flags.scale_path};
  absl::Status outputs = CheckOutputFiles(global, {{"--output", flags.output_path}, scale}, {});
  outputs.Update(CheckOutputFiles(global, {scale}, {{"IN", flags.input_path}}));
  if (!outputs.ok()) return FailLocally(console, outputs);
  const bool is_all =
      IsTensorFile(flags.input_path) && IsTensorFile(flags.output_path) && flags.tensor.empty();
  return is_all ? ConvertAll(global, flags, console) : ConvertOne(global, flags, console);
}

}  // namespace

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
  const CommandOption pack24 =
      AddFlag(app, "--pack24", flags->pack24,
              "Make the 2:4 form of the matrix, a vector of bytes, for use as a sparse A");
  AddFlag(app, "--prune", flags->prune,
          "Drop the smallest elements if the 2:4 form cannot keep all")
      .Need(pack24);
  AddOption(app, "--tensor", flags->tensor,
            "Name of the only tensor of a .safetensors file to convert")
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
  return RunWith(std::move(flags), RunConvert);
}

namespace {

constexpr char kRandomHelp[] =
    "Examples:\n"
    "  gemmctl random 300,200 -o A.npy\n"
    "  gemmctl random 4,64,64 --type e4m3 --seed 7 -o B.npy";

struct RandomFlags {
  std::vector<int64_t> shape;
  std::string type = "f32";
  std::string order = "row";
  uint64_t seed = 1;
  std::string output_path;  // "-": standard output.
};

ExitCode RunRandom(const GlobalFlags& global, const RandomFlags& flags, const Console& console) {
  const absl::Status outputs = CheckOutputFiles(global, {{"--output", flags.output_path}}, {});
  if (!outputs.ok()) return FailLocally(console, outputs);
  const bool is_batch = flags.shape.size() == 3;
  const RandomOperand operand = {.type = TypeOf(flags.type, v1::ELEMENT_TYPE_F32),
                                 .batch = is_batch ? flags.shape[0] : 1,
                                 .rows = flags.shape[flags.shape.size() - 2],
                                 .columns = flags.shape.back(),
                                 .order = OrderOf(flags.order),
                                 .transpose = false,
                                 .seed = flags.seed};
  auto array = MakeRandomArray("shape", operand, true);
  if (!array.ok()) return FailLocally(console, array.status());
  if (!is_batch) array->shape.erase(array->shape.begin());
  const absl::Status status = WriteArray(*array, flags.output_path, console);
  return status.ok() ? ExitCode::kOk : FailLocally(console, status);
}

}  // namespace

CommandRun AddRandom(CLI::App& app) {
  auto flags = std::make_unique<RandomFlags>();
  SetFooter(app, kRandomHelp);
  AddShape(app, "SHAPE", flags->shape, "Shape of the matrix: rows,columns or batch,rows,columns",
           {.min_extents = 2})
      .Require()
      .TypeName("");
  AddTypeOption(app, "--type", flags->type, "Type of the elements").ShowDefault();
  AddChoice(app, "--order", flags->order, "Storage order of the matrix", {"row", "column"})
      .ShowDefault();
  AddOption(app, "--seed", flags->seed, "Seed of the random numbers").ShowDefault().TypeName("N");
  AddOption(app, "-o,--output", flags->output_path, "File to write; - is standard output")
      .Require()
      .TypeName("PATH");
  return RunWith(std::move(flags), RunRandom);
}

}  // namespace gemmd
