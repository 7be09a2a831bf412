// SPDX-License-Identifier: Apache-2.0
#include "tests/server/worker/scripted_runtime.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "kernels/matrix/element.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "tests/server/worker/rights.h"

namespace gemmd {
namespace {

std::string ScriptOfEnvironment() {
  const char* script = getenv("GEMMD_WORKER_SCRIPT");  // NOLINT(concurrency-mt-unsafe): no threads.
  return script == nullptr ? "" : script;
}

// An address without memory in any GPU or process, aligned as D must be.
std::byte* Nowhere() { return reinterpret_cast<std::byte*>(uintptr_t{256}); }

void FlipBit(const GemmArgs& args) {
  const int bits = BitsOf(args.problem.d.type);
  const uint64_t flipped =
      LoadBits(args.problem.d.type, args.d, 0) ^ uint64_t { 1 } << (bits > 2 ? bits - 2 : 0);
  StoreBits(args.problem.d.type, args.d, 0, flipped);
}

}  // namespace

ScriptedRuntime::ScriptedRuntime(GpuRuntime& inner, EndlessLoop endless_loop)
    : inner_(inner), endless_loop_(endless_loop), script_(ScriptOfEnvironment()) {}

std::string ScriptedRuntime::script_folder() const { return script_.substr(0, script_.rfind('/')); }

void ScriptedRuntime::ReadScript() {
  if (access(script_.c_str(), R_OK) != 0) return;
  std::ifstream file(script_);
  actions_.clear();
  calls_.clear();
  std::string function;
  std::string action;
  for (int call = 0; file >> function >> call >> action;) actions_[{function, call}] = action;
  unlink(script_.c_str());
}

std::string ScriptedRuntime::TakeAction(const std::string& function) {
  if (is_lost_) return "";
  ReadScript();
  const auto found = actions_.find({function, ++calls_[function]});
  return found == actions_.end() ? "" : found->second;
}

absl::Status ScriptedRuntime::Act(const std::string& function) {
  return Act(function, TakeAction(function));
}

absl::Status ScriptedRuntime::Act(const std::string& function, const std::string& action) {
  if (is_lost_) return absl::InternalError(Concat(function, ": scripted: lost before"));
  if (action.empty()) return absl::OkStatus();
  while (action == "hang") pause();
  if (action == "stop") {
    raise(SIGSTOP);
    return absl::OkStatus();
  }
  if (action == "abort") abort();
  if (action == "exit") _exit(1);
  if (action == "rights") return absl::InternalError(DescribeRights());
  const std::string message = Concat(function, ": scripted: ", action);
  if (action == "memory") return absl::ResourceExhaustedError(message);
  is_lost_ = action == "lost";
  return absl::InternalError(message);
}

absl::StatusOr<GpuDescription> ScriptedRuntime::Open(int ordinal) {
  RETURN_IF_ERROR(Act("Open"));
  return inner_.Open(ordinal);
}

absl::StatusOr<std::byte*> ScriptedRuntime::RegisterStaging(absl::Span<std::byte> staging) {
  RETURN_IF_ERROR(Act("RegisterStaging"));
  return inner_.RegisterStaging(staging);
}

absl::StatusOr<std::byte*> ScriptedRuntime::Allocate(int64_t bytes) {
  RETURN_IF_ERROR(Act("Allocate"));
  return inner_.Allocate(bytes);
}

void ScriptedRuntime::Free(std::byte* memory) {
  Act("Free").IgnoreError();
  inner_.Free(memory);
}

absl::Status ScriptedRuntime::CopyIn(Lane lane, std::byte* to, absl::Span<const std::byte> from) {
  RETURN_IF_ERROR(Act("CopyIn"));
  return inner_.CopyIn(lane, to, from);
}

absl::Status ScriptedRuntime::CopyOut(Lane lane, absl::Span<std::byte> to, const std::byte* from) {
  RETURN_IF_ERROR(Act("CopyOut"));
  return inner_.CopyOut(lane, to, from);
}

absl::Status ScriptedRuntime::Clear(Lane lane, std::byte* memory, int64_t bytes) {
  RETURN_IF_ERROR(Act("Clear"));
  return inner_.Clear(lane, memory, bytes);
}

absl::Status ScriptedRuntime::CopyLines(Lane lane, const MemoryLines& lines) {
  RETURN_IF_ERROR(Act("CopyLines"));
  return inner_.CopyLines(lane, lines);
}

absl::Status ScriptedRuntime::CopyParts(Lane lane, const CopiedPart* parts, int64_t count,
                                        int64_t max_bytes) {
  RETURN_IF_ERROR(Act("CopyParts"));
  return inner_.CopyParts(lane, parts, count, max_bytes);
}

absl::Status ScriptedRuntime::Launch(const Kernel& kernel, const GemmArgs& args) {
  const std::string action = TakeAction("Launch");
  if (action == "skip") return absl::OkStatus();
  if (action == "endless_loop") return endless_loop_();
  if (action == "illegal_address") {
    GemmArgs args_to_nowhere = args;
    args_to_nowhere.d = Nowhere();
    return inner_.Launch(kernel, args_to_nowhere);
  }
  if (action == "flip") {
    RETURN_IF_ERROR(inner_.Launch(kernel, args));
    FlipBit(args);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Act("Launch", action));
  return inner_.Launch(kernel, args);
}

absl::Status ScriptedRuntime::Compress(const CompressView& view, BadGroup* bad) {
  RETURN_IF_ERROR(Act("Compress"));
  return inner_.Compress(view, bad);
}

absl::Status ScriptedRuntime::Mark(Lane lane, Moment moment) {
  RETURN_IF_ERROR(Act("Mark"));
  return inner_.Mark(lane, moment);
}

absl::Status ScriptedRuntime::Follow(Lane lane, Moment moment) {
  RETURN_IF_ERROR(Act("Follow"));
  return inner_.Follow(lane, moment);
}

absl::StatusOr<bool> ScriptedRuntime::IsReached(Moment moment) {
  RETURN_IF_ERROR(Act("IsReached"));
  return inner_.IsReached(moment);
}

absl::Status ScriptedRuntime::Wait() {
  RETURN_IF_ERROR(Act("Wait"));
  return inner_.Wait();
}

absl::StatusOr<int64_t> ScriptedRuntime::NanosecondsBetween(Moment start, Moment end) {
  RETURN_IF_ERROR(Act("NanosecondsBetween"));
  return inner_.NanosecondsBetween(start, end);
}

}  // namespace gemmd
