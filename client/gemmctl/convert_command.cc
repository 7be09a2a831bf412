// SPDX-License-Identifier: Apache-2.0
//
// gemmctl convert.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/operand_input.h"
#include "client/matrix/npy.h"
#include "client/operand_size.h"
#include "client/terminal/option.h"
#include "client/terminal/text_table.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

constexpr char kHelp[] =
    "Values round to the nearest that the type has, ties to even. Values beyond the largest finite "
    "one become infinite in f32, tf32, f16 and bf16; in every other type they become the largest "
    "or least value. NaN becomes 0 in an integer type, and the largest value in a float type "
    "without a NaN. Elements whose type stays keep their bits. The report counts what was changed; "
    "it goes to standard error where the matrix goes to standard output.\n\n"
    "Examples:\n"
    "  gemmctl convert A.npy --type e4m3 --order column -o B.npy\n"
    "  gemmctl convert A.npy --input-type e2m1 --type f32 -o A32.npy\n"
    "  gemmctl convert stack.npy --shape 4096,512 --json -o tall.npy\n"
    "  gemmctl random 64,64 -o - | gemmctl convert - --type bf16 -o - > A.npy";

struct ConvertFlags {
  std::string input_path;      // "-": standard input.
  std::string input_type;      // Empty: what the file says.
  std::string type;            // Empty: the input's.
  std::string order;           // Empty: the input's.
  std::vector<int64_t> shape;  // Empty: the input's.
  std::string output_path;     // "-": standard output.
};

// An array of 1 to 3 dimensions as a batch of matrices; a vector is one row.
struct Extents {
  int64_t batch = 1;
  int64_t rows = 1;
  int64_t columns = 1;
};

Extents ExtentsOf(const NpyArray& array) {
  const size_t dimensions = array.shape.size();
  return {.batch = dimensions == 3 ? array.shape[0] : 1,
          .rows = dimensions >= 2 ? array.shape[dimensions - 2] : 1,
          .columns = array.shape.back()};
}

// Absent where the product leaves 63 bits.
std::optional<int64_t> CountOf(const std::vector<int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

// Where the elements of an array lie, which are counted row by row in matrix after matrix.
class Places {
 public:
  struct Place {
    size_t first_byte;  // Where the element's line begins.
    int64_t index;      // In its line.
  };

  explicit Places(const NpyArray& array)
      : extents_(ExtentsOf(array)),
        by_columns_(array.order == v1::ORDER_COLUMN_MAJOR),
        lines_(by_columns_ ? extents_.columns : extents_.rows),
        line_bytes_(PackedLineBytes(array.type, by_columns_ ? extents_.rows : extents_.columns)
                        .value_or(0)) {}

  Place At(int64_t element) const {
    const int64_t column = element % extents_.columns;
    const int64_t row = element / extents_.columns % extents_.rows;
    const int64_t matrix = element / extents_.columns / extents_.rows;
    const int64_t line = matrix * lines_ + (by_columns_ ? column : row);
    return {static_cast<size_t>(line * line_bytes_), by_columns_ ? row : column};
  }

  int64_t bytes() const { return extents_.batch * lines_ * line_bytes_; }

 private:
  Extents extents_;
  bool by_columns_;
  int64_t lines_;  // Those of one matrix.
  int64_t line_bytes_;
};

// What became of values. Each value counts at most once.
struct Changes {
  int64_t rounded = 0;
  int64_t saturated = 0;  // Became the largest or least finite value of the type.
  int64_t infinite = 0;   // Were finite.
  int64_t nan = 0;        // Still are NaN.
  int64_t nan_lost = 0;   // Were NaN; the type has none.
};

// Converts single elements, and counts.
class Converter {
 public:
  Converter(v1::ElementType from, v1::ElementType to) : from_(from), to_(to) {
    if (ElementBits(from) > 16) return;
    for (uint64_t pattern = 0; pattern < uint64_t{1} << ElementBits(from); ++pattern) {
      known_.push_back(Convert(pattern));
    }
  }

  uint64_t operator()(uint64_t pattern) {
    const Result result = known_.empty() ? Convert(pattern) : known_[pattern];
    if (result.counter != nullptr) ++(changes_.*result.counter);
    return result.pattern;
  }

  const Changes& changes() const { return changes_; }

 private:
  struct Result {
    uint64_t pattern;
    int64_t Changes::*counter;  // Null: the value is the same.
  };

  Result Convert(uint64_t pattern) const {
    const double value = ElementValue(from_, pattern);
    // The same type keeps every bit, those of a NaN too.
    const uint64_t converted = from_ == to_ ? pattern : ElementPattern(to_, value);
    const double after = ElementValue(to_, converted);
    if (std::isnan(value)) {
      return {converted, std::isnan(after) ? &Changes::nan : &Changes::nan_lost};
    }
    if (after == value) return {converted, nullptr};
    if (std::isinf(after)) return {converted, &Changes::infinite};
    return {converted, ExceedsRange(to_, value) ? &Changes::saturated : &Changes::rounded};
  }

  v1::ElementType from_;
  v1::ElementType to_;
  std::vector<Result> known_;  // By pattern, for types of at most 16 bits.
  Changes changes_;
};

absl::StatusOr<NpyArray> ReadInput(const ConvertFlags& flags, const Console& console) {
  const auto hint = ParseElementType(flags.input_type);
  auto array = ReadArray(flags.input_path, hint.value_or(v1::ELEMENT_TYPE_UNSPECIFIED), console);
  if (!array.ok() || flags.input_path != "-") return array;
  const absl::Status status = ExpectEndOfInput(console);
  if (!status.ok()) return status;
  return array;
}

// The array to be written, without its elements.
absl::StatusOr<NpyArray> EmptyOutput(const ConvertFlags& flags, const NpyArray& input) {
  NpyArray output = {.type = ParseElementType(flags.type).value_or(input.type),
                     .shape = flags.shape.empty() ? input.shape : flags.shape,
                     .order = flags.order.empty() ? input.order : OrderOf(flags.order)};
  if (output.shape.size() > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shape: got ", output.shape.size(), " extents, want 1 to 3"));
  }
  const std::optional<int64_t> count = CountOf(input.shape);
  if (CountOf(output.shape) != count) {
    return absl::InvalidArgumentError(absl::StrCat("--shape: got ", absl::StrJoin(flags.shape, ","),
                                                   ", want a shape of ", *count,
                                                   " elements, as the input has"));
  }
  if (output.shape.size() != 2) {
    // A file of vectors or of a batch has no order: its elements are written row by row.
    if (flags.order == "column") {
      return absl::InvalidArgumentError(
          absl::StrCat("--order: got column for an array of ", output.shape.size(),
                       " dimensions, want row: only an array of 2 has an order in a .npy file"));
    }
    output.order = v1::ORDER_ROW_MAJOR;
  }
  return output;
}

// Fills in the elements of `output`.
Changes ConvertElements(const NpyArray& input, NpyArray& output) {
  const int64_t count = CountOf(input.shape).value_or(0);
  if (count == 0) return {};
  const Places sources(input);
  const Places targets(output);
  output.data.assign(static_cast<size_t>(targets.bytes()), '\0');
  const absl::string_view data = input.data;
  Converter convert(input.type, output.type);
  for (int64_t i = 0; i < count; ++i) {
    const Places::Place source = sources.At(i);
    const Places::Place target = targets.At(i);
    const uint64_t pattern = LoadElement(input.type, data.substr(source.first_byte), source.index);
    StoreElement(output.type, convert(pattern), target.index,
                 output.data.data() + target.first_byte);
  }
  return convert.changes();
}

std::string OrderName(v1::Order order) {
  return order == v1::ORDER_COLUMN_MAJOR ? "column" : "row";
}

std::string ChangesText(const NpyArray& input, const NpyArray& output, const Changes& changes) {
  const auto count = [](int64_t values) { return FormatCount(values); };
  TextTable table({{"shape"}, {absl::StrJoin(output.shape, " x ")}});
  table.AddRow(
      {"type", absl::StrCat(ElementTypeName(input.type), " -> ", ElementTypeName(output.type))});
  table.AddRow({"order", absl::StrCat(OrderName(input.order), " -> ", OrderName(output.order))});
  table.AddRow({"values", count(CountOf(output.shape).value_or(0))});
  table.AddRow({"rounded", count(changes.rounded)});
  table.AddRow({"saturated", count(changes.saturated)});
  table.AddRow({"became infinite", count(changes.infinite)});
  table.AddRow({"NaN", count(changes.nan)});
  table.AddRow({"NaN lost", count(changes.nan_lost)});
  return table.Print();
}

nlohmann::ordered_json ChangesJson(const NpyArray& input, const NpyArray& output,
                                   const Changes& changes) {
  const Extents extents = ExtentsOf(output);
  return {{"batch", extents.batch},
          {"rows", extents.rows},
          {"columns", extents.columns},
          {"input_type", std::string(ElementTypeName(input.type))},
          {"input_order", OrderName(input.order)},
          {"type", std::string(ElementTypeName(output.type))},
          {"order", OrderName(output.order)},
          {"values", CountOf(output.shape).value_or(0)},
          {"rounded", changes.rounded},
          {"saturated", changes.saturated},
          {"became_infinite", changes.infinite},
          {"nan", changes.nan},
          {"nan_lost", changes.nan_lost}};
}

ExitCode RunConvert(const GlobalFlags& global, const ConvertFlags& flags, const Console& console) {
  const auto input = ReadInput(flags, console);
  if (!input.ok()) return FailLocally(console, input.status());
  auto output = EmptyOutput(flags, *input);
  if (!output.ok()) return FailLocally(console, output.status());
  const Changes changes = ConvertElements(*input, *output);
  const absl::Status status = WriteArray(*output, flags.output_path, console);
  if (!status.ok()) return FailLocally(console, status);
  ReportBeside(flags.output_path, console)
      .Print(global.json ? JsonLine(ChangesJson(*input, *output, changes))
                         : ChangesText(*input, *output, changes));
  return ExitCode::kOk;
}

CommandRun AddConvert(CLI::App& app) {
  auto flags = std::make_unique<ConvertFlags>();
  SetFooter(app, absl::StrCat(TypeHelp(), "\n\n", kHelp));
  AddOption(app, "IN", flags->input_path, "The .npy file to convert; - is standard input")
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
  AddOption(app, "-o,--output", flags->output_path, "The file to write; - is standard output")
      .Require()
      .TypeName("PATH");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunConvert(global, *flags, console);
  };
}

}  // namespace

constexpr Command kConvertCommand = {
    "convert", "Convert a .npy file to another element type, order or shape (needs no server)",
    AddConvert};

}  // namespace gemmd
