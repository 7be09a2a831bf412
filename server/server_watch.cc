// SPDX-License-Identifier: Apache-2.0
//
// What the server looks at while it serves: memory, peers, devices and its own life.
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/server.h"
#include "server/system/log.h"
#include "server/system/resident_memory.h"
#include "server/wire/gemm_service.h"
#include "server/wire/registry_service.h"
#include "server/wire/self_call.h"

namespace gemmd {
namespace {

// Where memory is nearly used up, this stands for --send-timeout.
constexpr absl::Duration kSendTimeoutUnderPressure = absl::Seconds(1);

// As admission has it for products.
int64_t LargestTensor(Pressure pressure) {
  if (pressure == Pressure::kNone) return std::numeric_limits<int64_t>::max();
  return pressure == Pressure::kHigh ? Admission::kLargeBytes : -1;
}

}  // namespace

// With that of the workers, which share the limit. What they share with the daemon is its own.
std::optional<int64_t> Server::UsedMemory(int64_t limit_bytes) const {
  std::optional<int64_t> used = UsedBytes(limit_bytes);
  if (!used) return used;
  for (const auto& device : devices_) *used += device->worker_memory_bytes();
  return used;
}

void Server::WatchMemory() {
  const Pressure pressure = memory_.Measure(admission_.load().bytes + tensors_.used_bytes());
  tensors_.SetMostNewBytes(LargestTensor(pressure));
  if (!admission_.SetPressure(pressure)) return;
  const auto level = pressure == Pressure::kNone ? spdlog::level::info : spdlog::level::warn;
  spdlog::log(level, "event=memory_pressure pressure={} used_bytes={}", NameOf(pressure),
              memory_.used_bytes());
}

void Server::WatchPeers() {
  const bool is_critical = admission_.load().pressure == Pressure::kCritical;
  const int ended =
      sends_.EndSilent(is_critical ? kSendTimeoutUnderPressure : absl::InfiniteDuration());
  if (ended == 0) return;
  stats_.AddSilentCalls(ended);
  spdlog::info("event=silent_calls_ended calls={}", ended);
}

// A device that gave wrong answers serves no longer: health tells that as it does of others.
void Server::WatchTrust() {
  for (size_t i = 0; i < served_.size(); ++i) {
    const absl::Status status = served_[i].trust->status();
    if (status.ok() || is_out_[i]) continue;
    is_out_[i] = true;
    const std::string& name = served_[i].device->info().name;
    health_.SetReady(name, false);
    spdlog::error("event=device_not_ready device={} reason={}", LogValue(name),
                  LogValue(std::string(status.message())));
  }
}

// What NVML last said of the chip, for the record of an incident.
std::string Server::ChipStateOf(size_t device) const {
  const std::optional<GpuSample> sample = gpus_ == nullptr ? std::nullopt : gpus_->sample(device);
  if (!sample) return "";
  const GpuReading& reading = sample->reading;
  std::string text = absl::StrCat("uuid=", sample->uuid);
  const auto add = [&text](const char* name, const auto& value) {
    if (value) absl::StrAppend(&text, " ", name, "=", *value);
  };
  add("sm_clock_hertz", reading.sm_clock_hertz);
  add("memory_clock_hertz", reading.memory_clock_hertz);
  add("temperature_celsius", reading.temperature_celsius);
  add("power_watts", reading.power_watts);
  add("ecc_corrected", reading.ecc_corrected);
  add("ecc_uncorrected", reading.ecc_uncorrected);
  return text;
}

absl::Status Server::CheckLife(absl::Duration longest_turn) {
  // On a machine with too much to do an answer may take seconds, and nothing is wrong.
  constexpr absl::Duration kPatience = absl::Seconds(10);
  const auto is_too_long = [&](int64_t since_ns) {
    return absl::Nanoseconds(clock_.NowNs() - since_ns) > longest_turn;
  };
  const std::optional<int64_t> hold_ns = handler_times_.oldest_hold_ns();
  if (hold_ns && is_too_long(*hold_ns)) {
    return absl::InternalError("a thread of gRPC stands still in a handler");
  }
  for (const auto& device : devices_) {
    const int64_t turn_ns = device->condition().thread_turn_ns;
    if (turn_ns != 0 && is_too_long(turn_ns)) {
      return absl::InternalError(
          absl::StrCat("the thread of device ", device->info().name, " stands still"));
    }
  }
  const auto take = [this](int descriptor) {
    connections_.Give(ConnectionKind::kSelf, descriptor);
  };
  const absl::Status answer = CallSelf(take, kPatience);
  // To have no room is no reason to be started again.
  return absl::IsResourceExhausted(answer) ? absl::OkStatus() : answer;
}

absl::Status Server::life() {
  MutexLock lock(&acceptor_mutex_);
  return life_ == nullptr ? absl::OkStatus() : life_->status();
}

absl::Status Server::serving() const {
  return is_listening_ ? health_.serving() : absl::UnavailableError("not listening yet");
}

// From now on the log and health tell when a device becomes ready or stops being so.
void Server::WatchDevices() {
  health_.SetReady(v1::Registry::service_full_name(), true);
  for (const ServedDevice& served : served_) {
    const std::string name = served.device->info().name;
    if (!served.canary.ok()) {
      health_.SetReady(name, false);
      continue;
    }
    const DeviceTrust* const trust = served.trust;
    served.device->WatchReadiness(
        [this, name, trust, was_ready = true](const absl::Status& now) mutable {
          health_.SetReady(name, now.ok() && trust->status().ok());
          if (!now.ok()) {
            spdlog::error("event=device_not_ready device={} reason={}", LogValue(name),
                          LogValue(std::string(now.message())));
          } else if (!was_ready) {
            spdlog::info("event=device_ready device={}", LogValue(name));
          }
          was_ready = now.ok();
        });
  }
}

}  // namespace gemmd
