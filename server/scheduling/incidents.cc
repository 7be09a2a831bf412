// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/incidents.h"

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/system/log.h"
#include "server/system/regular_file.h"

namespace gemmd {
namespace {

std::string Hexadecimal(uint64_t bits) { return absl::StrCat("0x", absl::Hex(bits)); }

}  // namespace

int64_t KeptProduct::scale_bytes() const {
  return static_cast<int64_t>((a_scale.size() + b_scale.size()) * sizeof(float) + a_factors.size() +
                              b_factors.size());
}

int64_t KeptProduct::bytes() const {
  return static_cast<int64_t>(a.size() + b.size() + c.size() + bias.size()) + scale_bytes();
}

int64_t IncidentLog::Add(Incident incident, std::shared_ptr<const KeptProduct> product) {
  const bool has_too_many_factors =
      product != nullptr && !product->has_operands && product->scale_bytes() > kMostScaleBytes;
  if (has_too_many_factors) product = nullptr;
  MutexLock lock(&mutex_);
  incident.id = ++found_;
  Write(incident);
  entries_.push_back({std::move(incident), std::move(product)});
  if (entries_.back().has_operands()) kept_bytes_ += entries_.back().product->bytes();
  if (entries_.size() > options_.most_incidents) {
    DropOperands(entries_.front());
    entries_.pop_front();
  }
  // The oldest operands go first; those of the newest alone may be too many, too.
  for (Entry& entry : entries_) {
    if (kept_bytes_ <= options_.most_kept_bytes) break;
    DropOperands(entry);
  }
  return found_;
}

void IncidentLog::DropOperands(Entry& entry) {
  if (!entry.has_operands()) return;
  const KeptProduct& whole = *entry.product;
  kept_bytes_ -= whole.bytes();
  if (whole.scale_bytes() > kMostScaleBytes) {
    entry.product = nullptr;
    return;
  }
  entry.product = std::make_shared<KeptProduct>(KeptProduct{.problem = whole.problem,
                                                            .has_operands = false,
                                                            .a = {},
                                                            .b = {},
                                                            .c = {},
                                                            .bias = {},
                                                            .a_scale = whole.a_scale,
                                                            .b_scale = whole.b_scale,
                                                            .a_factors = whole.a_factors,
                                                            .b_factors = whole.b_factors});
}

void IncidentLog::Write(const Incident& incident) {
  if (options_.file.empty()) return;
  const absl::StatusOr<FileDescriptor> file =
      OpenRegularFile(options_.file, O_WRONLY | O_CREAT | O_APPEND);
  const std::string line = JsonOf(incident) + "\n";
  if (file.ok()) {
    const auto bytes = static_cast<int64_t>(line.size());
    const bool has_room = lseek(file->get(), 0, SEEK_END) + bytes <= options_.most_file_bytes;
    if (has_room && write(file->get(), line.data(), line.size()) == bytes) return;
  }
  spdlog::warn("event=incident_not_written id={} file={}", incident.id, LogValue(options_.file));
}

std::vector<IncidentLog::Entry> IncidentLog::entries() const {
  MutexLock lock(&mutex_);
  return {entries_.rbegin(), entries_.rend()};
}

int64_t IncidentLog::found() const {
  MutexLock lock(&mutex_);
  return found_;
}

std::string JsonOf(const Incident& incident) {
  const nlohmann::ordered_json json = {{"id", incident.id},
                                       {"time_unix_ns", incident.time_unix_ns},
                                       {"device", incident.device},
                                       {"kernel", incident.kernel},
                                       {"problem", incident.problem},
                                       {"mode", NameOf(incident.mode)},
                                       {"batch", incident.element.batch},
                                       {"row", incident.element.row},
                                       {"column", incident.element.column},
                                       {"element_type", NameOf(incident.element_type)},
                                       {"got_bits", Hexadecimal(incident.element.got_bits)},
                                       {"want_bits", Hexadecimal(incident.element.want_bits)},
                                       {"wrong_elements", incident.wrong_elements},
                                       {"a_sha256", incident.a_sha256},
                                       {"b_sha256", incident.b_sha256},
                                       {"c_sha256", incident.c_sha256},
                                       {"bias_sha256", incident.bias_sha256},
                                       {"chip_state", incident.chip_state},
                                       {"request_id", incident.request_id},
                                       {"took_out_device", incident.took_out_device}};
  // What a caller sent need not be UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace gemmd
