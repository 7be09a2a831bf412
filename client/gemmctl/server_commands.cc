// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/server_commands.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/gemmctl/command.h"
#include "client/terminal/option.h"
#include "client/terminal/text.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/instructions.pb.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

// The processors of a device: "8 threads", "132 SMs, 1.98 GHz".
std::string ProcessorsOf(const v1::Device& device) {
  if (device.multiprocessors() == 0) return absl::StrCat(device.threads(), " threads");
  return absl::StrFormat("%d SMs, %.3g GHz", device.multiprocessors(),
                         static_cast<double>(device.clock_khz()) / 1e6);
}

std::string DeviceTable(const v1::ListDevicesResponse& devices) {
  TextTable table({{"device"},
                   {"kind"},
                   {"chip"},
                   {"arithmetic"},
                   {"ready"},
                   {"processors", Align::kRight},
                   {"memory", Align::kRight},
                   {"waiting", Align::kRight},
                   {"bytes waiting", Align::kRight},
                   {"completed", Align::kRight},
                   {"description"}});
  TextTable rates({{"device"}, {"engine"}, {"measured rate", Align::kRight}});
  bool has_rates = false;
  for (const v1::Device& device : devices.devices()) {
    table.AddRow({device.name(), device.kind(), OrDash(device.chip()), OrDash(device.arithmetic()),
                  device.ready() ? "yes" : "no", ProcessorsOf(device),
                  FormatBytes(device.memory_bytes()), FormatCount(device.queued_requests()),
                  FormatBytes(device.queued_bytes()), FormatCount(device.completed_requests()),
                  device.description()});
    // A GPU has one rate per instruction: too many to show; --json has them.
    if (device.multiprocessors() > 0) continue;
    for (const v1::Rate& rate : device.rates()) {
      rates.AddRow({device.name(), rate.engine(), FormatRate(rate.operations_per_second())});
      has_rates = true;
    }
  }
  std::string text = table.Print();
  for (const v1::Device& device : devices.devices()) {
    if (device.not_ready_reason().empty()) continue;
    absl::StrAppend(&text, "\nnot ready: ", device.not_ready_reason(), "\n");
  }
  return has_rates ? absl::StrCat(text, "\n", rates.Print()) : text;
}

}  // namespace

std::string ServerInfoText(const v1::GetServerInfoResponse& info) {
  const v1::Limits& limits = info.limits();
  std::vector<std::string> libraries;
  for (const v1::Library& library : info.libraries()) {
    libraries.push_back(absl::StrCat(library.name(), " ", library.version()));
  }
  TextTable table({{"gemmd"}, {info.version()}});
  table.AddRow({"state", info.draining() ? "draining" : "serving"});
  table.AddRow({"uptime", FormatNanoseconds(info.uptime_ns())});
  table.AddRow({"default device", info.default_device()});
  table.AddRow({"features", absl::StrJoin(info.features(), ", ")});
  table.AddRow({"libraries", absl::StrJoin(libraries, ", ")});
  table.AddRow({"longest message", FormatBytes(limits.max_message_bytes())});
  table.AddRow(
      {"queued at most", absl::StrCat(FormatCount(limits.max_queued_requests()), " requests, ",
                                      FormatBytes(limits.max_queued_bytes()))});
  table.AddRow({"calls per connection", FormatCount(limits.max_concurrent_streams())});
  table.AddRow({"unanswered per stream", FormatCount(limits.max_stream_requests())});
  return table.Print();
}

namespace {

constexpr char kDevicesHelp[] =
    "Examples:\n"
    "  gemmctl devices\n"
    "  gemmctl devices --json | jq '.devices[].name'";

ExitCode RunDevices(const GlobalFlags& global, const Console& console) {
  return PrintAnswer(
      global, console, [](Client& client) { return client.ListDevices(); }, DeviceTable);
}

}  // namespace

CommandRun AddDevices(CLI::App& app) {
  SetFooter(app, kDevicesHelp);
  return RunDevices;
}

namespace {

constexpr char kInfoHelp[] =
    "Examples:\n"
    "  gemmctl info\n"
    "  gemmctl --address unix:/run/gemmd.sock info --json";

ExitCode RunInfo(const GlobalFlags& global, const Console& console) {
  return PrintAnswer(
      global, console, [](Client& client) { return client.GetServerInfo(); }, ServerInfoText);
}

}  // namespace

CommandRun AddInfo(CLI::App& app) {
  SetFooter(app, kInfoHelp);
  return RunInfo;
}

namespace {

constexpr char kHealthHelp[] =
    "Examples:\n"
    "  gemmctl health && echo up\n"
    "  gemmctl health --service gemmd.v1.Gemm --watch\n\n"
    "Exits with 0 only for SERVING; with --watch, only if the last status was SERVING.";

struct HealthFlags {
  std::string service;
  bool watch = false;
};

void PrintStatus(const GlobalFlags& global, ServingStatus status, const Console& console) {
  const std::string name(ServingStatusName(status));
  console.Print(global.json ? JsonLine({{"status", name}}) : absl::StrCat(name, "\n"));
  std::fflush(console.out);
}

ExitCode Judge(ServingStatus status) {
  return status == ServingStatus::kServing ? ExitCode::kOk : ExitCode::kRefused;
}

ExitCode Watch(Client& client, const GlobalFlags& global, const HealthFlags& flags,
               const Console& console) {
  ServingStatus last = ServingStatus::kUnknown;
  bool has_status = false;
  const absl::Status status = client.WatchHealth(flags.service, [&](ServingStatus changed) {
    last = changed;
    has_status = true;
    PrintStatus(global, changed, console);
    return true;
  });
  // A watch normally ends by its timeout.
  if (has_status && absl::IsDeadlineExceeded(status)) return Judge(last);
  return FailCall(console, status);
}

ExitCode RunHealth(const GlobalFlags& global, const HealthFlags& flags, const Console& console) {
  auto client = Connect(global, flags.watch ? absl::Hours(365 * 24) : absl::Seconds(60));
  if (!client.ok()) return FailLocally(console, client.status());
  if (flags.watch) return Watch(*client, global, flags, console);
  const auto status = client->CheckHealth(flags.service);
  if (!status.ok()) return FailCall(console, status.status());
  PrintStatus(global, *status, console);
  return Judge(*status);
}

}  // namespace

CommandRun AddHealth(CLI::App& app) {
  auto flags = std::make_unique<HealthFlags>();
  SetFooter(app, kHealthHelp);
  AddOption(app, "--service", flags->service,
            "Name of one service (default: the server as a whole)");
  AddFlag(app, "--watch", flags->watch, "Print each change until the timeout (default: a year)");
  return RunWith(std::move(flags), RunHealth);
}

namespace {

constexpr char kRestartDeviceHelp[] =
    "Examples:\n"
    "  gemmctl restart-device cuda:0 --address unix:/run/gemmd/gemmd.sock\n\n"
    "The server allows this over a unix socket only, for root, its own user and members of its\n"
    "--operators-group; if it has rules, for callers with the role `administer`.\n"
    "The product running on the GPU ends with ABORTED, waiting products with UNAVAILABLE. A GPU\n"
    "that is paused after too many restarts is tried again at once. The worker of cpu or of a\n"
    "simulator ends after its current product. Kernels that the device refused because they\n"
    "crashed its workers are used again.\n"
    "`gemmctl health --service cuda:0 --watch` shows when a GPU is ready.";

ExitCode RunRestart(const GlobalFlags& global, const std::string& device, const Console& console) {
  return PrintAnswer(
      global, console,
      [&](Client& client) -> absl::StatusOr<std::string> {
        RETURN_IF_ERROR(client.RestartDevice(device));
        return device;
      },
      [](const std::string& name) { return absl::StrCat(name, " is getting a new worker\n"); },
      [](const std::string& name) {
        return nlohmann::ordered_json({{"restarting", name}});
      });
}

}  // namespace

CommandRun AddRestart(CLI::App& app) {
  return AddSubject(app, kRestartDeviceHelp, "device", "NAME",
                    "Name of the device, as `gemmctl devices` lists it", RunRestart);
}

namespace {

// Splits a name of wgmma into "wgmma.m64nNk16.f32.f16.f16" and its N. Returns any other name as it
// is, with 0.
std::pair<std::string, int> SplitWidth(const std::string& name) {
  const size_t n = absl::StartsWith(name, "wgmma.") ? name.find(".m64n") : name.npos;
  if (n == name.npos) return {name, 0};
  const size_t first = n + 5;
  const size_t last = name.find('k', first);
  int width = 0;
  if (last == name.npos ||
      !absl::SimpleAtoi(absl::string_view(name).substr(first, last - first), &width)) {
    return {name, 0};
  }
  return {absl::StrCat(name.substr(0, first), "N", name.substr(last)), width};
}

}  // namespace

std::string DescribeNumbers(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t first = 0; first < numbers.size();) {
    size_t last = first;
    const int step = first + 1 < numbers.size() ? numbers[first + 1] - numbers[first] : 0;
    while (last + 1 < numbers.size() && numbers[last + 1] - numbers[last] == step) ++last;
    if (last - first < 2) last = first;  // Two numbers are not a run.
    absl::StrAppend(&text, text.empty() ? "" : ", ", numbers[first]);
    if (last > first) absl::StrAppend(&text, "..", numbers[last], " by ", step);
    first = last + 1;
  }
  return text;
}

std::vector<TableRow> CollapseWidths(const std::vector<TableRow>& rows) {
  // Rows that will be merged, each with its widths.
  std::vector<std::pair<TableRow, std::vector<int>>> groups;
  std::map<TableRow, size_t> group_of;
  for (const TableRow& row : rows) {
    TableRow key = row;
    const auto [name, width] = SplitWidth(row.front());
    key.front() = name;
    const auto [found, is_new] = group_of.try_emplace(std::move(key), groups.size());
    const bool is_alone = is_new || width == 0;
    if (is_alone) groups.push_back({row, {}});
    if (width > 0) (is_alone ? groups.back() : groups[found->second]).second.push_back(width);
  }
  std::vector<TableRow> collapsed;
  for (auto& [row, widths] : groups) {
    if (widths.size() > 1) {
      row.front() =
          absl::StrCat(SplitWidth(row.front()).first, ", N = ", DescribeNumbers(std::move(widths)));
    }
    collapsed.push_back(std::move(row));
  }
  return collapsed;
}

namespace {

std::string ComputedIn(const v1::Kernel& kernel) {
  const std::string a = TypeText(kernel.compute_type_a());
  const std::string b = TypeText(kernel.compute_type_b());
  return a == b ? a : absl::StrCat(a, ", ", b);
}

// The names of the devices that run the kernel.
std::vector<std::string> DevicesOf(const v1::Kernel& kernel) {
  std::vector<std::string> devices;
  for (const v1::KernelAvailability& at : kernel.availability()) {
    if (at.available()) devices.push_back(at.device());
  }
  return devices;
}

bool IsSelected(const v1::Kernel& kernel, const v1::Device* device, bool is_complete) {
  if (device == nullptr) return is_complete || !DevicesOf(kernel).empty();
  if (is_complete) return kernel.device_kind() == device->kind();
  const std::vector<std::string> devices = DevicesOf(kernel);
  return std::find(devices.begin(), devices.end(), device->name()) != devices.end();
}

// The kernels that at least one device runs, or that `device` runs if given. With `is_complete`,
// all kernels (of the device's kind), whether they run or not.
v1::ListKernelsResponse SelectKernels(const v1::ListKernelsResponse& kernels,
                                      const v1::Device* device, bool is_complete) {
  v1::ListKernelsResponse selected;
  for (const v1::Kernel& kernel : kernels.kernels()) {
    if (IsSelected(kernel, device, is_complete)) *selected.add_kernels() = kernel;
  }
  return selected;
}

}  // namespace

std::string KernelTable(const v1::ListKernelsResponse& kernels, bool is_complete) {
  std::vector<TableRow> rows;
  for (const v1::Kernel& kernel : kernels.kernels()) {
    const std::vector<std::string> devices = DevicesOf(kernel);
    rows.push_back({kernel.name(), TypeText(kernel.a_type()), TypeText(kernel.b_type()),
                    TypeText(kernel.accumulation_type()), ComputedIn(kernel), kernel.provider(),
                    devices.empty() ? "-" : absl::StrJoin(devices, ", ")});
  }
  TextTable table(
      {{"kernel"}, {"A"}, {"B"}, {"accumulation"}, {"computed in"}, {"provider"}, {"runs on"}});
  for (TableRow& row : is_complete ? rows : CollapseWidths(rows)) table.AddRow(std::move(row));
  return table.Print();
}

namespace {

constexpr char kKernelsHelp[] =
    "Lists the kernels that at least one device of the server runs; wgmma kernels that differ only "
    "in N share a line.\n\n"
    "Examples:\n"
    "  gemmctl kernels\n"
    "  gemmctl kernels --pattern '*bf16*' --device sim:sm_90\n"
    "  gemmctl kernels --all --json | jq -r '.kernels[].name'";

struct KernelsFlags {
  std::string pattern;
  std::string device;
  bool all = false;  // Also kernels that no device runs, and each width of wgmma.
};

// The kernels selected by the flags.
absl::StatusOr<v1::ListKernelsResponse> AskForKernels(Client& client, const KernelsFlags& flags) {
  ASSIGN_OR_RETURN(auto kernels, client.ListKernels(flags.pattern));
  if (flags.device.empty()) return SelectKernels(kernels, nullptr, flags.all);
  const auto devices = client.ListDevices();
  if (!devices.ok()) return devices.status();
  std::vector<std::string> names;
  for (const v1::Device& device : devices->devices()) {
    if (device.name() == flags.device) return SelectKernels(kernels, &device, flags.all);
    names.push_back(device.name());
  }
  return absl::NotFoundError(absl::StrCat("--device: got ", flags.device, ", want a device of the ",
                                          "server: ", absl::StrJoin(names, ", ")));
}

ExitCode RunKernels(const GlobalFlags& global, const KernelsFlags& flags, const Console& console) {
  return PrintAnswer(
      global, console, [&](Client& client) { return AskForKernels(client, flags); },
      [&](const v1::ListKernelsResponse& kernels) { return KernelTable(kernels, flags.all); });
}

}  // namespace

CommandRun AddKernels(CLI::App& app) {
  auto flags = std::make_unique<KernelsFlags>();
  SetFooter(app, kKernelsHelp);
  AddOption(app, "--pattern", flags->pattern,
            "List only kernels whose names match; * is any run of characters")
      .TypeName("PATTERN");
  AddOption(app, "--device", flags->device, "List only kernels that this device runs")
      .TypeName("NAME");
  AddFlag(app, "--all", flags->all,
          "List each kernel on a separate line, including kernels that no device runs; with "
          "--device, every kernel for its kind of device");
  return RunWith(std::move(flags), RunKernels);
}

namespace {

// The matrix instructions as tables: which chips have them, how a chip executes them, and counts
// per family.

using Columns = std::vector<TextTable::Column>;

std::string TypesText(const v1::Instruction& instruction) {
  return absl::StrCat(
      ElementTypeName(instruction.d_type()), " <- ", ElementTypeName(instruction.a_type()), " x ",
      ElementTypeName(instruction.b_type()), " + ", ElementTypeName(instruction.c_type()));
}

// A row for many widths of wgmma leaves out N.
std::string ShapeText(const v1::Instruction& instruction, bool leaves_width_open) {
  const bool is_open = leaves_width_open && instruction.lanes() == 128;
  const std::string n = is_open ? "N" : absl::StrCat(instruction.n());
  return absl::StrCat(instruction.m(), " x ", n, " x ", instruction.k());
}

TableRow CommonCells(const v1::Instruction& instruction, bool is_collapsed) {
  return {instruction.name(), ShapeText(instruction, is_collapsed), TypesText(instruction),
          instruction.sparsity()};
}

std::string SupportWord(v1::InstructionSupport support) {
  switch (support) {
    case v1::INSTRUCTION_SUPPORT_NATIVE: return "native";
    case v1::INSTRUCTION_SUPPORT_EMULATED: return "emulated";
    case v1::INSTRUCTION_SUPPORT_UNAVAILABLE: return "unavailable";
    default: return "unknown";
  }
}

std::string SupportLetter(v1::InstructionSupport support) {
  switch (support) {
    case v1::INSTRUCTION_SUPPORT_NATIVE: return "N";
    case v1::INSTRUCTION_SUPPORT_EMULATED: return "e";
    case v1::INSTRUCTION_SUPPORT_UNAVAILABLE: return "-";
    default: return "?";
  }
}

// Registers of one lane. A row without N leaves out C and D, whose registers vary with N.
std::string RegistersText(const v1::Instruction& instruction, bool leaves_width_open) {
  if (instruction.lanes() == 128 && leaves_width_open) {
    return absl::StrCat("a ", instruction.a_registers());
  }
  std::string text = absl::StrCat("a ", instruction.a_registers());
  if (instruction.b_registers() > 0) absl::StrAppend(&text, ", b ", instruction.b_registers());
  return absl::StrCat(text, ", c ", instruction.c_registers(), ", d ", instruction.d_registers());
}

Columns ColumnsFor(const v1::ListInstructionsResponse& instructions, bool is_of_one_chip) {
  Columns columns = {{"instruction"}, {"m x n x k"}, {"types"}, {"sparse"}};
  if (is_of_one_chip) {
    columns.insert(columns.end(), {{"registers"}, {"support"}, {"lowering"}});
  } else if (!instructions.instructions().empty()) {
    for (const v1::ChipSupport& chip : instructions.instructions(0).chips()) {
      columns.push_back({std::string(absl::StripPrefix(chip.chip(), "sm_")), Align::kRight});
    }
  }
  return columns;
}

// How many of a family a chip has.
struct Count {
  int64_t native = 0;
  int64_t emulated = 0;
};

std::string CountText(const Count& count) {
  if (count.native == 0 && count.emulated == 0) return "-";
  if (count.emulated == 0) return FormatCount(count.native);
  const std::string emulated = absl::StrCat(FormatCount(count.emulated), " emulated");
  return count.native == 0 ? emulated : absl::StrCat(FormatCount(count.native), " + ", emulated);
}

// Families in the order of the list.
struct FamilyCount {
  std::string family;
  int64_t total = 0;
  std::map<std::string, Count> by_chip;
};

std::vector<FamilyCount> CountFamilies(const v1::ListInstructionsResponse& instructions) {
  std::vector<FamilyCount> families;
  for (const v1::Instruction& instruction : instructions.instructions()) {
    if (families.empty() || families.back().family != instruction.family()) {
      families.push_back({instruction.family(), 0, {}});
    }
    FamilyCount& family = families.back();
    ++family.total;
    for (const v1::ChipSupport& chip : instruction.chips()) {
      Count& count = family.by_chip[chip.chip()];
      if (chip.support() == v1::INSTRUCTION_SUPPORT_NATIVE) ++count.native;
      if (chip.support() == v1::INSTRUCTION_SUPPORT_EMULATED) ++count.emulated;
    }
  }
  return families;
}

// One line for each instruction or, unless `is_complete`, for each that differs in more than the N
// of wgmma. With a chip: registers, support and lowering there; else a letter for each chip.
std::string InstructionTable(const v1::ListInstructionsResponse& instructions,
                             const std::string& chip, bool is_complete) {
  const bool is_collapsed = !is_complete;
  std::vector<TableRow> rows;
  for (const v1::Instruction& instruction : instructions.instructions()) {
    TableRow row = CommonCells(instruction, is_collapsed);
    if (!chip.empty()) row.push_back(RegistersText(instruction, is_collapsed));
    for (const v1::ChipSupport& known : instruction.chips()) {
      if (chip.empty()) {
        row.push_back(SupportLetter(known.support()));
      } else if (known.chip() == chip) {
        row.insert(row.end(), {SupportWord(known.support()), known.lowering()});
      }
    }
    rows.push_back(std::move(row));
  }
  TextTable table(ColumnsFor(instructions, !chip.empty()));
  for (TableRow& row : is_collapsed ? CollapseWidths(rows) : rows) table.AddRow(std::move(row));
  std::string text = table.Print();
  absl::StrAppend(&text, "\n", FormatCount(instructions.instructions_size()), " instructions.");
  if (chip.empty()) {
    text += " Chips sm_70 and so on: N native, e emulated by ptxas, - unavailable.";
  }
  return text + "\n";
}

// Families with their counts: all, and for each chip native ones and emulated ones.
std::string FamilyTable(const v1::ListInstructionsResponse& instructions) {
  Columns columns = {{"family"}, {"instructions", Align::kRight}};
  if (!instructions.instructions().empty()) {
    for (const v1::ChipSupport& chip : instructions.instructions(0).chips()) {
      columns.push_back({chip.chip(), Align::kRight});
    }
  }
  TextTable table(columns);
  for (const FamilyCount& family : CountFamilies(instructions)) {
    TableRow row = {family.family, FormatCount(family.total)};
    for (size_t i = 2; i < columns.size(); ++i) {
      const auto count = family.by_chip.find(columns[i].heading);
      row.push_back(CountText(count == family.by_chip.end() ? Count() : count->second));
    }
    table.AddRow(std::move(row));
  }
  return table.Print();
}

constexpr char kInstructionsHelp[] =
    "Examples:\n"
    "  gemmctl instructions --chip sm_90\n"
    "  gemmctl instructions --pattern 'mma.sp.*bf16*'\n"
    "  gemmctl instructions --families";

struct InstructionsFlags {
  std::string chip;
  std::string pattern;
  bool all = false;  // Each width of wgmma.
  bool families = false;
};

ExitCode RunInstructions(const GlobalFlags& global, const InstructionsFlags& flags,
                         const Console& console) {
  return PrintAnswer(
      global, console,
      [&](Client& client) { return client.ListInstructions(flags.chip, flags.pattern); },
      [&](const v1::ListInstructionsResponse& instructions) {
        return flags.families ? FamilyTable(instructions)
                              : InstructionTable(instructions, flags.chip, flags.all);
      });
}

}  // namespace

CommandRun AddInstructions(CLI::App& app) {
  auto flags = std::make_unique<InstructionsFlags>();
  SetFooter(app, kInstructionsHelp);
  AddOption(app, "--chip", flags->chip,
            "List only instructions that this chip (such as sm_90) has, with the lowering of "
            "emulated ones by ptxas")
      .TypeName("CHIP");
  AddOption(app, "--pattern", flags->pattern,
            "List only instructions whose names match; * is any run of characters")
      .TypeName("PATTERN");
  AddFlag(app, "--all", flags->all, "List each N of wgmma on a separate line");
  AddFlag(app, "--families", flags->families,
          "Count the instructions by family and chip instead of listing them");
  return RunWith(std::move(flags), RunInstructions);
}

}  // namespace gemmd
