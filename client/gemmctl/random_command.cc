// SPDX-License-Identifier: Apache-2.0
//
// gemmctl random.
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/operand_input.h"
#include "client/matrix/npy.h"
#include "client/terminal/option.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
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
  const RandomOperand operand = {
      .type = ParseElementType(flags.type).value_or(v1::ELEMENT_TYPE_F32),
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

CommandRun AddRandom(CLI::App& app) {
  auto flags = std::make_unique<RandomFlags>();
  SetFooter(app, kRandomHelp);
  AddShape(app, "SHAPE", flags->shape, "Shape of the matrix: rows,columns or batch,rows,columns",
           {.least_extents = 2})
      .Require()
      .TypeName("");
  AddTypeOption(app, "--type", flags->type, "Type of the elements").ShowDefault();
  AddChoice(app, "--order", flags->order, "Storage order of the matrix", {"row", "column"})
      .ShowDefault();
  AddOption(app, "--seed", flags->seed, "Seed of the random numbers").ShowDefault().TypeName("N");
  AddOption(app, "-o,--output", flags->output_path, "File to write; - is standard output")
      .Require()
      .TypeName("PATH");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunRandom(global, *flags, console);
  };
}

}  // namespace

constexpr Command kRandomCommand = {
    "random", "Write a random matrix to a .npy file (needs no server)", AddRandom};

}  // namespace gemmd
